//! A plain HTTP client: JSON in, status, headers and bytes out, server-sent events one by one. It retries nothing and
//! hides nothing. What needs control over single socket reads uses `tokio::net::TcpStream` instead.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use wire::sse::Decoder;

/// The longest a test waits for a head or for the next piece of a body.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Client {
    base: String,
    key: Option<String>,
    inner: hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// The answer to a streaming call: the head, then event by event.
#[derive(Debug)]
pub struct Stream {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    decoder: Decoder,
}

impl Client {
    /// `base`: scheme, host and port, e.g. `http://127.0.0.1:8080`.
    pub fn new(base: impl Into<String>, key: Option<&str>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let inner = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
        Self { base: base.into(), key: key.map(str::to_owned), inner }
    }

    pub fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    /// The status of a GET, or `None` when nobody answers.
    pub async fn try_get(&self, path: &str) -> Option<u16> {
        let answer = self.inner.request(self.request(Method::GET, path, &[], Bytes::new())).await.ok()?;
        Some(answer.status().as_u16())
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[], body.to_string().into()).await
    }

    pub async fn chat(&self, body: &Value) -> Answer {
        self.post("/v1/chat/completions", body).await
    }

    /// Any method, more headers, any bytes.
    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Answer {
        let response = self.head(method, path, headers, body).await;
        let (head, body) = response.into_parts();
        let body = within(body.collect(), "the body").await.expect("a whole body").to_bytes();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    /// Like `chat`, but tells why the connection broke instead of failing.
    pub async fn try_chat(&self, body: &Value) -> Result<Answer, String> {
        let (head, body) = self.try_head("/v1/chat/completions", body).await?.into_parts();
        let body = body.collect().await.map_err(|error| format!("{error:?}"))?.to_bytes();
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// Reads a streaming answer to its end, or leaves after so many events. The status, or why the connection broke.
    pub async fn try_events(&self, path: &str, body: &Value, leave_after: Option<usize>) -> Result<u16, String> {
        let mut stream = Stream::of(self.try_head(path, body).await?);
        let mut seen = 0;
        while leave_after.is_none_or(|enough| seen < enough) && stream.next().await?.is_some() {
            seen += 1;
        }
        Ok(stream.status)
    }

    async fn try_head(&self, path: &str, body: &Value) -> Result<http::Response<Incoming>, String> {
        let request = self.request(Method::POST, path, &[], body.to_string().into());
        within(self.inner.request(request), "an answer").await.map_err(|error| format!("{error:?}"))
    }

    pub async fn stream(&self, path: &str, body: &Value) -> Stream {
        Stream::of(self.head(Method::POST, path, &[], body.to_string().into()).await)
    }

    pub async fn stream_chat(&self, body: &Value) -> Stream {
        self.stream("/v1/chat/completions", body).await
    }

    async fn head(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> http::Response<Incoming> {
        let request = self.request(method, path, headers, body);
        within(self.inner.request(request), "an answer").await.unwrap_or_else(|error| panic!("{path}: {error:?}"))
    }

    fn request(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            request = request.header("content-type", "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::new(body)).expect("a well-formed request")
    }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("an ASCII header"))
    }

    /// A header that is a whole number.
    pub fn number(&self, name: &str) -> u64 {
        let text = self.header(name).unwrap_or_else(|| panic!("no header {name} in {:?}", self.headers));
        text.parse().unwrap_or_else(|_| panic!("{name}: {text} is no number"))
    }

    /// The error's `code` of the one envelope, whose four fields must all be there.
    pub fn error_code(&self) -> String {
        let body = self.json();
        let error = &body["error"];
        for field in ["message", "type", "param", "code"] {
            assert!(error.get(field).is_some(), "no `{field}` in the error envelope: {body}");
        }
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "an empty message: {body}");
        error["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Stream {
    fn of(response: http::Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status.as_u16(), headers: head.headers, body, decoder: Decoder::new(1 << 20) }
    }

    /// The next event's data; `None` at the end of the body. A connection that breaks is an error.
    pub async fn next(&mut self) -> Result<Option<String>, String> {
        loop {
            if let Some(event) = self.decoder.next_event().expect("events under 1 MiB") {
                match event.data() {
                    Some(data) => return Ok(Some(String::from_utf8(data.into_owned()).expect("UTF-8 events"))),
                    None => continue,
                }
            }
            match within(self.body.frame(), "the next event").await {
                None => return Ok(None),
                Some(Err(error)) => return Err(format!("{error:?}")),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.decoder.push(&data);
                    }
                }
            }
        }
    }

    /// Every event to the end of the body.
    pub async fn all(mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await.expect("a stream that ends well") {
            events.push(event);
        }
        events
    }
}

async fn within<T>(work: impl Future<Output = T>, what: &str) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}
