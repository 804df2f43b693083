//! A server with a real model behind it, and a client that is no more than HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use engine::http::{Listener, Model, Options, Server};
use engine::{Config, LoadOptions, load};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::driver::{OPTIONS, model_path};

pub const NAME: &str = "model";

pub struct Running {
    address: SocketAddr,
    pub model: Model,
    _server: Arc<Server>,
}

pub fn load_model(file: &str, kv_blocks: u32, config: Config) -> Model {
    let cpu = engine::cpu::CpuOptions { kv_blocks, ..OPTIONS };
    load(&model_path(file), NAME, LoadOptions { cpu, config }).expect("the model loads")
}

pub async fn serve(model: &Model) -> Running {
    let server = Arc::new(Server::new(Options::new(NAME)));
    server.install(model.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serving = Arc::clone(&server);
    tokio::spawn(async move { serving.serve(Listener::Tcp(listener)).await });
    Running { address, model: model.clone(), _server: server }
}

impl Running {
    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, String) {
        let stream = TcpStream::connect(self.address).await.expect("listening");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        let request = Request::post(path).header("host", "test").body(Full::<Bytes>::from(body.to_string()));
        let response = sender.send_request(request.expect("valid")).await.expect("an answer");
        let status = response.status();
        let bytes = response.into_body().collect().await.expect("whole").to_bytes();
        (status, String::from_utf8(bytes.to_vec()).expect("UTF-8"))
    }

    pub async fn ok(&self, path: &str, mut body: Value) -> Value {
        body["model"] = json!(NAME);
        let (status, text) = self.post(path, body).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// The chunks of a stream, `[DONE]` checked and taken off.
    pub async fn chunks(&self, path: &str, mut body: Value) -> Vec<Value> {
        (body["model"], body["stream"]) = (json!(NAME), json!(true));
        body["stream_options"] = json!({ "include_usage": true });
        let (status, text) = self.post(path, body).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let mut events: Vec<&str> = text.split_terminator("\n\n").map(|event| &event["data: ".len()..]).collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events.into_iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
    }
}

pub fn text(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    choice["text"].as_str().or(choice["message"]["content"].as_str()).expect("a choice with text")
}
