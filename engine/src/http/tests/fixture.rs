//! A server on a free port with the test backend behind it, and a client that is no more than HTTP.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use gguf::write::{Entry, Writer};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokenizer::{ChatTemplate, Tokenizer};
use tokio::net::{TcpListener, TcpStream};

use crate::fake::{FakeBackend, Log, spec};
use crate::handle::{Config, spawn};
use crate::http::{Listener, Model, Options, Server};

pub(super) const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
    {{ raise_exception('system comes first') }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

pub(super) struct Setup {
    pub(super) pace: Duration,
    pub(super) fails_after: Option<u64>,
    pub(super) config: Config,
    pub(super) template: bool,
    pub(super) context: u32,
    pub(super) options: Options,
}

impl Default for Setup {
    fn default() -> Self {
        let config = Config::default();
        Self {
            pace: Duration::ZERO,
            fails_after: None,
            config,
            template: true,
            context: 400,
            options: Options::new("letters"),
        }
    }
}

pub(super) struct Running {
    pub(super) server: Arc<Server>,
    pub(super) address: SocketAddr,
    pub(super) serving: tokio::task::JoinHandle<()>,
    pub(super) log: Arc<Mutex<Log>>,
}

pub(super) async fn running() -> Running {
    start(Setup::default()).await
}

pub(super) async fn start(setup: Setup) -> Running {
    let (server, address, serving) = listening(setup.options.clone()).await;
    let (model, log) = model(&setup);
    server.install(model);
    Running { server, address, serving, log }
}

/// A server without a model yet.
pub(super) async fn listening(options: Options) -> (Arc<Server>, SocketAddr, tokio::task::JoinHandle<()>) {
    let server = Arc::new(Server::new(options));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serving = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.serve(Listener::Tcp(listener)).await }
    });
    (server, address, serving)
}

pub(super) fn model(setup: &Setup) -> (Model, Arc<Mutex<Log>>) {
    let mut backend = FakeBackend::new(spec(&[None, Some(40)], 400, setup.context));
    (backend.pace, backend.fails_after) = (setup.pace, setup.fails_after);
    let log = Arc::clone(&backend.log);
    let file = vocabulary();
    let tokenizer = Arc::new(Tokenizer::from_gguf(&file).expect("a whole vocabulary"));
    let template = setup.template.then(|| ChatTemplate::from_gguf(&file).expect("valid").expect("there is one"));
    let handle = spawn(Box::new(backend), Box::new(Arc::clone(&tokenizer)), "letters", setup.config).expect("a thread");
    (Model { handle, tokenizer, template: template.map(Arc::new) }, log)
}

/// A byte-level vocabulary without merges: token = byte, as the test backend has it.
fn vocabulary() -> gguf::File {
    let shows = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut hidden = 0x100_u32..;
    let mut symbol = |byte: u32| if shows(byte) { byte } else { hidden.next().expect("endless") };
    let symbols = (0..256).map(|byte| char::from_u32(symbol(byte)).expect("a letter").to_string());
    let tokens: Vec<String> = symbols.chain(["<|im_end|>".to_owned()]).collect();
    let kinds = (0..257).map(|token| if token == 256 { 3 } else { 1 }).collect();
    let writer = Writer::new()
        .key("tokenizer.ggml.model", Entry::String("gpt2".into()))
        .key("tokenizer.ggml.pre", Entry::String("smollm".into()))
        .key("tokenizer.ggml.tokens", Entry::strings(tokens))
        .key("tokenizer.ggml.token_type", Entry::I32s(kinds))
        .key("tokenizer.ggml.merges", Entry::Strings(Vec::new()))
        .key("tokenizer.ggml.eos_token_id", Entry::U32(256))
        .key("tokenizer.chat_template", Entry::String(TEMPLATE.into()));
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), writer.finish()).expect("written");
    gguf::File::open(file.path()).expect("valid")
}

impl Running {
    pub(super) async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let response = send(self.address, Method::POST, path, &[], body.to_string().into()).await;
        let status = response.status();
        (status, json_of(response).await)
    }

    /// The answer to a request that must succeed.
    pub(super) async fn ok(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }

    pub(super) async fn get(&self, path: &str) -> (StatusCode, String) {
        let response = send(self.address, Method::GET, path, &[], Bytes::new()).await;
        (response.status(), text_of(response).await)
    }

    /// Headers and the `data` of all events of a streamed answer.
    pub(super) async fn stream(&self, path: &str, mut body: Value) -> (HeaderMap, Vec<String>) {
        body["stream"] = json!(true);
        let response = send(self.address, Method::POST, path, &[], body.to_string().into()).await;
        assert_eq!(response.status(), StatusCode::OK);
        let headers = response.headers().clone();
        let text = text_of(response).await;
        let events = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").expect("data").to_owned());
        (headers, events.collect())
    }

    /// The chunks before `[DONE]`, which must come last.
    pub(super) async fn chunks(&self, path: &str, body: Value) -> Vec<Value> {
        let (_, mut events) = self.stream(path, body).await;
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
    }

    pub(super) fn steps(&self) -> u64 {
        self.log.lock().expect("not poisoned").steps
    }
}

pub(super) async fn send(
    address: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> Response<Incoming> {
    let stream = TcpStream::connect(address).await.expect("the server listens");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header("host", "test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    sender.send_request(request.body(Full::new(body)).expect("valid")).await.expect("an answer")
}

pub(super) async fn text_of(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

pub(super) async fn json_of(response: Response<Incoming>) -> Value {
    serde_json::from_str(&text_of(response).await).expect("JSON")
}

pub(super) fn chat(more: Value) -> Value {
    with(json!({ "model": "letters", "messages": [{ "role": "user", "content": "hi" }] }), more)
}

pub(super) fn completion(more: Value) -> Value {
    with(json!({ "model": "letters", "prompt": "once upon a time" }), more)
}

fn with(mut base: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("fields") {
        base[name] = value.clone();
    }
    base
}
