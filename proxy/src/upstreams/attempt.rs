//! One try at one upstream: the request as it goes out, and what its answer means. Nothing here settles.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header, response};
use prometheus::IntCounter;

use super::{
    Failure, Upstreams,
    line::{self, Reply, SendError},
    outgoing::Outgoing,
};
use crate::{call::Call, catalogue::Upstream, events::AttemptOutcome, passing};

/// The largest answer that is not a stream.
const LARGEST_ANSWER: usize = 64 << 20;
/// Of the body of an error, for its message.
const LARGEST_ERROR: usize = 64 << 10;
const ERROR_WAIT: Duration = Duration::from_secs(5);
/// A stream's head waits this long for its first event: they then leave in one write, and an upstream that dies at
/// once can still be answered for with a status.
const FIRST_EVENT_GRACE: Duration = Duration::from_millis(250);

pub(super) enum Answer {
    Stream(Stream),
    Whole { head: response::Parts, body: Bytes },
}

/// A stream whose first bytes may already be here.
pub struct Stream {
    pub head: response::Parts,
    pub body: Reply,
    pub first: Bytes,
    pub received: IntCounter,
}

pub(super) fn outcome(tried: &Result<Answer, Failure>) -> AttemptOutcome {
    match tried {
        Ok(Answer::Whole { head, .. }) if head.status.is_client_error() => AttemptOutcome::Rejected,
        Ok(_) => AttemptOutcome::Answered,
        Err(Failure::Unreachable { .. }) => AttemptOutcome::Unreachable,
        Err(Failure::Reset { .. }) => AttemptOutcome::Reset,
        Err(Failure::TimedOut { .. }) => AttemptOutcome::TimedOut,
        Err(_) => AttemptOutcome::Failed,
    }
}

impl Upstreams {
    pub(super) async fn attempt(&self, request: Request<Outgoing>, upstream: &Upstream) -> Result<Answer, Failure> {
        let name = || upstream.name.clone();
        let sent = line::send(&upstream.pool, &self.connector, &upstream.origin, request);
        let waited = self.limits.response_timeout;
        let (head, body) = match tokio::time::timeout(waited, sent).await {
            Err(_) => return Err(Failure::TimedOut { upstream: name(), waited }),
            Ok(Err(SendError::Connect(error))) => {
                return Err(Failure::Unreachable { upstream: name(), message: causes(&*error) });
            }
            Ok(Err(SendError::Broken(error))) => {
                return Err(Failure::Reset { upstream: name(), message: causes(&error) });
            }
            Ok(Ok(answer)) => answer,
        };
        match head.status {
            StatusCode::TOO_MANY_REQUESTS => Err(Failure::RateLimited {
                upstream: name(),
                retry_after: retry_after(&head.headers),
                message: error_text(body, upstream).await,
            }),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(Failure::Credentials { upstream: name(), status: head.status.as_u16() })
            }
            status if status.is_success() && is_event_stream(&head.headers) => self.stream(head, body, upstream).await,
            // 408 is the upstream's own trouble, whatever its number says.
            status if status.is_success() || (status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT) => {
                self.whole(head, body, upstream).await
            }
            status => {
                let message = error_text(body, upstream).await;
                Err(Failure::Status { upstream: name(), status: status.as_u16(), message })
            }
        }
    }

    async fn stream(&self, head: response::Parts, mut body: Reply, upstream: &Upstream) -> Result<Answer, Failure> {
        let first = match tokio::time::timeout(FIRST_EVENT_GRACE, body.data()).await {
            Err(_) => Bytes::new(),
            Ok(Some(Ok(first))) => first,
            Ok(None) => {
                let message = "the stream ended before its first event".to_owned();
                return Err(Failure::Reset { upstream: upstream.name.clone(), message });
            }
            Ok(Some(Err(error))) => {
                return Err(Failure::Reset { upstream: upstream.name.clone(), message: causes(&error) });
            }
        };
        Ok(Answer::Stream(Stream { head, body, first, received: upstream.received.clone() }))
    }

    /// Reads all of an answer before any of it is passed on, so that one cut short is an error and not a cut answer.
    async fn whole(&self, head: response::Parts, mut body: Reply, upstream: &Upstream) -> Result<Answer, Failure> {
        let name = || upstream.name.clone();
        let waited = self.limits.idle_stream_timeout;
        let mut first = Bytes::new();
        let mut joined = BytesMut::new();
        loop {
            let data = match tokio::time::timeout(waited, body.data()).await {
                Err(_) => return Err(Failure::TimedOut { upstream: name(), waited }),
                Ok(Some(Err(error))) => return Err(Failure::Reset { upstream: name(), message: causes(&error) }),
                Ok(None) => break,
                Ok(Some(Ok(data))) => data,
            };
            if first.len() + joined.len() + data.len() > LARGEST_ANSWER {
                return Err(Failure::TooLong { upstream: name(), limit: LARGEST_ANSWER });
            }
            if first.is_empty() && joined.is_empty() {
                first = data;
                continue;
            }
            if joined.is_empty() {
                let announced = body.announced() as usize;
                joined.reserve(first.len() + data.len() + announced.min(LARGEST_ANSWER));
                joined.extend_from_slice(&std::mem::take(&mut first));
            }
            joined.extend_from_slice(&data);
        }
        let body = if joined.is_empty() { first } else { joined.freeze() };
        upstream.received.inc_by(body.len() as u64);
        let body = if head.status.is_success() { body } else { without_key(body, upstream) };
        Ok(Answer::Whole { head, body })
    }
}

/// The client's headers without those that are between it and us, and the gateway's own key.
pub(super) fn request(call: &Call, headers: &HeaderMap, upstream: &Upstream, body: Outgoing) -> Request<Outgoing> {
    let mut request = Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = upstream.path(call.endpoint).clone();
    let out = request.headers_mut();
    out.reserve(headers.len() + 3);
    for (name, value) in passing::to_upstream(headers) {
        out.append(name.clone(), value.clone());
    }
    out.insert(header::HOST, upstream.host.clone());
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(authorization) = &upstream.authorization {
        out.insert(header::AUTHORIZATION, authorization.clone());
    }
    request
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

/// `retry-after-ms`, else `retry-after` in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// What an upstream says went wrong: the message of its envelope, else the start of its text.
async fn error_text(mut body: Reply, upstream: &Upstream) -> String {
    let mut text = BytesMut::new();
    let read = async {
        while let Some(data) = body.data().await {
            text.extend_from_slice(&data?);
            if text.len() > LARGEST_ERROR {
                break;
            }
        }
        Ok::<_, hyper::Error>(())
    };
    let Ok(Ok(())) = tokio::time::timeout(ERROR_WAIT, read).await else {
        return "its error could not be read".to_owned();
    };
    let body = without_key(text.freeze(), upstream);
    let envelope: Option<wire::openai::ErrorBody> = serde_json::from_slice(&body).ok();
    match envelope {
        Some(envelope) => envelope.error.message,
        None => String::from_utf8_lossy(&body).chars().take(300).collect(),
    }
}

/// Some providers quote the key that they refuse: it is ours, and no client may see it.
fn without_key(text: Bytes, upstream: &Upstream) -> Bytes {
    let value = upstream.authorization.as_ref().map(HeaderValue::as_bytes);
    let Some(key) = value.and_then(|value| value.strip_prefix(b"Bearer ")).filter(|key| !key.is_empty()) else {
        return text;
    };
    let mut places = memchr::memmem::find_iter(&text, key).peekable();
    if places.peek().is_none() {
        return text;
    }
    let (mut out, mut at) = (BytesMut::with_capacity(text.len()), 0);
    for place in places {
        out.extend_from_slice(&text[at..place]);
        out.extend_from_slice(b"[key]");
        at = place + key.len();
    }
    out.extend_from_slice(&text[at..]);
    out.freeze()
}

/// An error with its causes: the outer one alone says little.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
