//! What clients are told: the one table from error to status, type, code and headers, and the headers of rates. The
//! layer `Errors` is the only place where an error becomes an answer.

pub mod names;
mod rate;
mod retry;

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use tower::{Layer, Service};
use wire::openai::ErrorBody;

pub use rate::stamp_rate;
use retry::Retry;

use crate::{
    body::Body,
    call::ReadError,
    error::Error,
    events::Events,
    paths::Miss,
    quota::{RateHeaders, Refusal, Refused, StoreError, Unit},
    upstreams::Failure,
};

/// An error, and the rates to tell if the caller is known.
#[derive(Debug)]
pub struct Failed {
    pub error: Error,
    pub rate: RateHeaders,
    /// A call that was read as far as its tenant counts its own end, under its model.
    pub counted: bool,
}

impl<E: Into<Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self { error: error.into(), rate: RateHeaders::default(), counted: false }
    }
}

/// What an error means for the client.
struct Verdict {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
    param: Option<&'static str>,
    retry: Retry,
}

fn verdict(error: &Error) -> Verdict {
    use StatusCode as S;
    const CALLER: &str = "invalid_request_error";
    const SERVER: &str = "server_error";
    let is = |status, kind, code, retry| Verdict { status, kind, code, param: None, retry };
    let soon = Retry::After { wait: Duration::from_secs(1), estimate: true };
    match error {
        Error::Path { miss: Miss::NotFound, .. } => is(S::NOT_FOUND, CALLER, "not_found", Retry::No),
        Error::Path { miss: Miss::Method(_), .. } => is(S::METHOD_NOT_ALLOWED, CALLER, "method_not_allowed", Retry::No),
        Error::Unauthenticated(_) => is(S::UNAUTHORIZED, CALLER, "invalid_api_key", Retry::No),
        Error::Read(ReadError::TooLarge { .. }) => is(S::PAYLOAD_TOO_LARGE, CALLER, "body_too_large", Retry::No),
        Error::Read(ReadError::TimedOut) => is(S::REQUEST_TIMEOUT, CALLER, "request_timeout", Retry::Yes),
        Error::Read(ReadError::Overloaded) => is(S::SERVICE_UNAVAILABLE, SERVER, "overloaded", soon),
        Error::Read(ReadError::TwoLengths) => is(S::BAD_REQUEST, CALLER, "ambiguous_length", Retry::No),
        Error::Read(ReadError::Cut) => is(S::BAD_REQUEST, CALLER, "body_cut_short", Retry::No),
        Error::Read(ReadError::Unsupported { .. }) => {
            is(S::UNSUPPORTED_MEDIA_TYPE, CALLER, "unsupported_media_type", Retry::No)
        }
        Error::Invalid(invalid) => {
            Verdict { param: invalid.param, ..is(S::BAD_REQUEST, CALLER, "invalid_request", Retry::No) }
        }
        Error::UnknownModel(_) => {
            Verdict { param: Some("model"), ..is(S::NOT_FOUND, CALLER, "model_not_found", Retry::No) }
        }
        Error::Refused(Refused::Limit(refusal)) => refused(refusal),
        Error::Refused(Refused::Store(_)) => is(S::SERVICE_UNAVAILABLE, SERVER, "quota_store_unavailable", soon),
        Error::Refused(Refused::Overloaded) | Error::Overloaded | Error::Uncounted => {
            is(S::SERVICE_UNAVAILABLE, SERVER, "overloaded", soon)
        }
        Error::Upstream(failure) => failed(failure),
    }
}

fn failed(failure: &Failure) -> Verdict {
    let is = |status, code, retry| Verdict { status, kind: "upstream_error", code, param: None, retry };
    match failure {
        Failure::TimedOut { .. } => is(StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", Retry::Yes),
        Failure::RateLimited { retry_after, .. } => {
            let retry = retry_after.map_or(Retry::Yes, |wait| Retry::After { wait, estimate: true });
            is(StatusCode::TOO_MANY_REQUESTS, "upstream_rate_limited", retry)
        }
        _ => is(StatusCode::BAD_GATEWAY, "upstream_error", Retry::Yes),
    }
}

fn refused(refusal: &Refusal) -> Verdict {
    let kind = match refusal.unit {
        _ if refusal.insufficient => "insufficient_quota",
        Unit::Requests | Unit::Concurrency => "requests",
        Unit::Tokens | Unit::InputTokens | Unit::OutputTokens => "tokens",
        Unit::NanoUsd => "insufficient_quota",
    };
    let code = match () {
        () if refusal.never_fits => "request_too_large",
        () if refusal.insufficient => "insufficient_quota",
        () => "rate_limit_exceeded",
    };
    let retry = match refusal.retry_after {
        Some(wait) if !refusal.never_fits => Retry::After { wait, estimate: refusal.estimate },
        _ => Retry::No,
    };
    Verdict { status: StatusCode::TOO_MANY_REQUESTS, kind, code, param: None, retry }
}

impl Failed {
    pub fn status_of_failure(failure: &Failure) -> StatusCode {
        failed(failure).status
    }

    pub fn status_of(error: &Error) -> StatusCode {
        verdict(error).status
    }

    fn answer(&self) -> Response<Body> {
        let verdict = verdict(&self.error);
        let body = ErrorBody::new(verdict.kind, Some(verdict.code), verdict.param, self.error.to_string());
        let mut answer = json(verdict.status, body.to_json());
        let headers = answer.headers_mut();
        verdict.retry.stamp(headers, rand::random());
        stamp_rate(headers, &self.rate);
        if let Error::Path { miss: Miss::Method(allowed), .. } = self.error {
            headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        if matches!(self.error, Error::Read(_)) {
            // The rest of the body is not read, so the connection has no next request.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

pub fn json(status: StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut answer = Response::new(Body::whole(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

#[derive(Clone)]
pub struct Errors {
    events: Arc<Events>,
}

impl Errors {
    pub fn new(events: Arc<Events>) -> Self {
        Self { events }
    }
}

impl<S> Layer<S> for Errors {
    type Service = Answered<S>;

    fn layer(&self, inner: S) -> Answered<S> {
        Answered { inner, events: self.events.clone() }
    }
}

#[derive(Clone)]
pub struct Answered<S> {
    inner: S,
    events: Arc<Events>,
}

impl<S, B> Service<Request<B>> for Answered<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Failed>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        match self.inner.poll_ready(cx) {
            // An error here will come again from `call`, where it can be answered.
            Poll::Ready(_) => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (answer, events) = (self.inner.call(request), self.events.clone());
        Box::pin(async move {
            Ok(answer.await.unwrap_or_else(|failed| {
                if let Error::Refused(Refused::Store(error)) = &failed.error {
                    unanswered_by_store(error);
                }
                if !failed.counted {
                    events.answered(None, Failed::status_of(&failed.error).as_u16());
                }
                failed.answer()
            }))
        })
    }
}

/// What the client is not told. An outage has its line already, when it begins.
fn unanswered_by_store(error: &StoreError) {
    match error {
        StoreError::Refused(_) | StoreError::Unreadable(_) => tracing::warn!(%error, "a call is refused"),
        _ => tracing::debug!(%error, "a call is refused"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{call::Invalid, quota::Level, tenants::Unauthenticated};

    fn refusal() -> Refusal {
        Refusal {
            level: Level::Org,
            subject: "acme".into(),
            limit: "tokens/minute".into(),
            unit: Unit::Tokens,
            needed: 10,
            left: 3,
            retry_after: Some(Duration::from_micros(1_500_200)),
            estimate: false,
            never_fits: false,
            model_bound: false,
            insufficient: false,
            shed: None,
            rate: RateHeaders::default(),
        }
    }

    fn check(error: Error, status: u16, headers: &[(&str, &str)]) {
        let answer = Failed::from(error).answer();
        assert_eq!(answer.status(), status);
        for (name, value) in headers {
            assert_eq!(
                answer.headers().get(*name).and_then(|v| v.to_str().ok()).unwrap_or("-"),
                *value,
                "{status} {name}"
            );
        }
    }

    #[test]
    fn a_refusal_says_when_to_come_back() {
        let limit = |refusal| Error::Refused(Refused::Limit(Box::new(refusal)));
        check(limit(refusal()), 429, &[("retry-after", "2"), ("x-should-retry", "true"), ("x-penstock-retry", "-")]);
        let never = Refusal { never_fits: true, retry_after: None, ..refusal() };
        check(limit(never), 429, &[("retry-after", "-"), ("x-should-retry", "false")]);
        let daily = Refusal { insufficient: true, retry_after: Some(Duration::from_secs(40_000)), ..refusal() };
        check(limit(daily), 429, &[("retry-after", "40000"), ("x-should-retry", "false")]);
        let guess = Refusal { estimate: true, ..refusal() };
        check(limit(guess), 429, &[("x-penstock-retry", "estimate")]);
    }

    #[test]
    fn those_refused_together_come_back_apart() {
        let answer = || Failed::from(Error::Refused(Refused::Limit(Box::new(refusal())))).answer();
        let ms =
            || answer().headers()[names::RETRY_AFTER_MS].to_str().expect("digits").parse::<u64>().expect("a number");
        let seen: std::collections::HashSet<u64> = (0..1000).map(|_| ms()).collect();
        assert!(seen.iter().all(|ms| (1501..=1576).contains(ms)) && seen.len() > 40, "{seen:?}");
    }

    #[tokio::test]
    async fn what_redis_says_and_where_it_is_stay_inside() {
        let secret = || "10.0.0.7:6379 READONLY ERR".to_owned();
        for error in [
            StoreError::Unreachable(secret()),
            StoreError::Broken(secret()),
            StoreError::Refused(secret()),
            StoreError::Unreadable(secret()),
        ] {
            let answer = Failed::from(Error::Refused(Refused::Store(error))).answer();
            let body = http_body_util::BodyExt::collect(answer.into_body()).await.expect("a whole body").to_bytes();
            let text = String::from_utf8_lossy(&body);
            assert!(text.contains("quota_store_unavailable"), "{text}");
            assert!(!text.contains("10.0.0.7") && !text.contains("READONLY"), "{text}");
        }
    }

    #[test]
    fn callers_mistakes_are_not_retried_and_ours_are() {
        check(Error::Invalid(Invalid::new("n", "x")), 400, &[("x-should-retry", "false")]);
        check(Error::Unauthenticated(Unauthenticated::Missing), 401, &[("x-should-retry", "false")]);
        check(Error::Overloaded, 503, &[("x-should-retry", "true"), ("retry-after", "1")]);
    }
}
