//! From a request to an answer: the OpenAI endpoints, and the control endpoints that script them.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use wire::openai::ErrorBody;

use super::{
    State,
    answers::{self, Asked, Endpoint},
    line::Line,
    record::{Ended, Exchange},
    settings::{Ending, Fault, Settings},
    stream::StreamBody,
};

pub enum Answer {
    Whole { bytes: Bytes, exchange: Option<Exchange> },
    Stream(Box<StreamBody>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Whole { bytes, exchange } => {
                if let Some(exchange) = exchange {
                    exchange.end(Ended::Finished);
                }
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Self::Stream(stream) => Pin::new(stream.as_mut()).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole { bytes, .. } if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole { bytes, .. } => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// One connection's view of the mock.
#[derive(Clone)]
pub struct Routes {
    pub state: Arc<State>,
    pub line: Arc<Line>,
    pub connection: u64,
}

enum Route {
    Text(Endpoint),
    Embeddings,
    Models,
    Model(String),
    Control,
    Unknown,
}

fn route(parts: &Parts) -> Route {
    let path = parts.uri.path();
    match (&parts.method, path) {
        (&Method::PUT | &Method::DELETE, "/settings") | (&Method::POST, "/next") => Route::Control,
        (&Method::GET, "/stats" | "/health" | "/healthz") | (&Method::GET | &Method::DELETE, "/requests") => {
            Route::Control
        }
        (&Method::POST, path) if path.ends_with("/chat/completions") => Route::Text(Endpoint::Chat),
        (&Method::POST, path) if path.ends_with("/completions") => Route::Text(Endpoint::Completions),
        (&Method::POST, path) if path.ends_with("/embeddings") => Route::Embeddings,
        (&Method::GET, path) if path.ends_with("/models") => Route::Models,
        (&Method::GET, path) => match path.rsplit_once("/models/") {
            Some((_, name)) => Route::Model(name.to_owned()),
            None => Route::Unknown,
        },
        _ => Route::Unknown,
    }
}

impl Routes {
    /// An error ends the connection without an answer.
    pub async fn serve(self, request: Request<Incoming>) -> Result<Response<Answer>, hyper::Error> {
        let (parts, body) = request.into_parts();
        let route = route(&parts);
        let body = body.collect().await?.to_bytes();
        if let Route::Control = route {
            return Ok(self.control(&parts, &body));
        }
        let exchange = self.state.log.arrived(self.connection, &self.line, &parts, &body);
        Ok(self.answer(route, &parts, &body, exchange).await)
    }

    async fn answer(&self, route: Route, parts: &Parts, body: &Bytes, exchange: Exchange) -> Response<Answer> {
        let asked: Asked = match serde_json::from_slice(body) {
            Ok(asked) => asked,
            Err(_) if matches!(route, Route::Models | Route::Model(_) | Route::Unknown) => Asked::default(),
            Err(error) => return refuse(StatusCode::BAD_REQUEST, &format!("not a request: {error}"), exchange),
        };
        let settings = match self.settings(parts, &asked) {
            Ok(settings) => settings,
            Err(error) => return refuse(StatusCode::BAD_REQUEST, &format!("x-mock: {error}"), exchange),
        };
        let exchange = self.misbehave(&settings, exchange).await;
        let body = match route {
            _ if settings.status != 200 => answers::error(&settings),
            Route::Text(endpoint) if asked.streams() => {
                let stream = StreamBody::new(endpoint, &asked, settings.clone(), exchange, self.line.clone());
                return respond(&settings, Answer::Stream(Box::new(stream)));
            }
            Route::Text(endpoint) => {
                pause(settings.ttft_ms).await;
                let made = || answers::completion(endpoint, &asked, &settings).to_string();
                settings.body.clone().unwrap_or_else(made)
            }
            Route::Embeddings => {
                settings.body.clone().unwrap_or_else(|| answers::embeddings(&asked, &settings).to_string())
            }
            Route::Models => json(&answers::models(&settings)),
            Route::Model(name) if settings.models.contains(&name) => json(&answers::model(&name)),
            Route::Model(_) | Route::Unknown | Route::Control => {
                return refuse(StatusCode::NOT_FOUND, &format!("no such thing: {}", parts.uri.path()), exchange);
            }
        };
        respond(&settings, Answer::Whole { bytes: body.into(), exchange: Some(exchange) })
    }

    /// The delays and faults that come before the head. May never return: then the client's leaving ends it.
    async fn misbehave(&self, settings: &Settings, mut exchange: Exchange) -> Exchange {
        pause(settings.delay_ms).await;
        match settings.fault {
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Cut { after_bytes, ending }) => {
                if ending != Ending::Hang {
                    exchange.end(Ended::Died);
                }
                self.line.cut(after_bytes, ending);
            }
            Some(Fault::Die { .. }) | None => {}
        }
        exchange
    }

    /// The next scripted settings, or the standing ones; then the header's and the body's patches.
    fn settings(&self, parts: &Parts, asked: &Asked) -> Result<Arc<Settings>, String> {
        let mut settings = self.state.take_settings();
        if let Some(text) = parts.headers.get("x-mock") {
            let patch: Value = serde_json::from_slice(text.as_bytes()).map_err(|error| error.to_string())?;
            settings = Arc::new(settings.patched(&patch)?);
        }
        if let Some(patch) = &asked.x_mock {
            settings = Arc::new(settings.patched(patch)?);
        }
        Ok(settings)
    }

    fn control(&self, parts: &Parts, body: &Bytes) -> Response<Answer> {
        let state = &self.state;
        let done = match (parts.method.as_str(), parts.uri.path()) {
            ("GET", "/stats") => Ok(json(&state.log.stats())),
            ("GET", "/requests") => Ok(json(&state.log.records())),
            ("DELETE", "/requests") => {
                state.log.forget();
                Ok("{}".to_owned())
            }
            ("DELETE", _) => {
                state.set(state.initial.clone());
                Ok("{}".to_owned())
            }
            ("PUT", _) => parse(body).and_then(|patch| state.patch(&patch)).map(|()| "{}".to_owned()),
            ("POST", _) => parse(body).and_then(|patch| state.push(&patch)).map(|()| "{}".to_owned()),
            _ => Ok("{\"status\":\"ok\"}".to_owned()),
        };
        match done {
            Ok(body) => respond(&Settings::default(), Answer::Whole { bytes: body.into(), exchange: None }),
            Err(error) => error_response(StatusCode::BAD_REQUEST, &error, None),
        }
    }
}

fn parse(body: &Bytes) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

/// What the mock says is plain data that always serialises.
fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

async fn pause(ms: u64) {
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

fn respond(settings: &Settings, body: Answer) -> Response<Answer> {
    let content_type = match &body {
        Answer::Whole { .. } => "application/json",
        Answer::Stream(_) => "text/event-stream; charset=utf-8",
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(settings.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(value) = settings.retry_after.as_ref().and_then(|text| text.parse().ok()) {
        headers.insert(header::RETRY_AFTER, value);
    }
    for (name, value) in &settings.headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            headers.insert(name, value);
        }
    }
    response
}

fn refuse(status: StatusCode, message: &str, exchange: Exchange) -> Response<Answer> {
    error_response(status, message, Some(exchange))
}

fn error_response(status: StatusCode, message: &str, exchange: Option<Exchange>) -> Response<Answer> {
    let body = ErrorBody::new("invalid_request_error", None, None, message).to_json();
    let settings = Settings { status: status.as_u16(), ..Settings::default() };
    respond(&settings, Answer::Whole { bytes: body.into(), exchange })
}
