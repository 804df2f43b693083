//! The outermost layer: gives each request its id and its arrival time, and a span, so that everything below logs
//! with them. The id is ours: a client's own could forge log lines.

use std::{
    fmt,
    task::{Context, Poll},
    time::{Instant, SystemTime},
};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response};
use rand::RngCore;
use tower::{Layer, Service};
use tracing::Instrument;

use crate::{body::Body, respond::names};

/// When and under which id a request came; in its extensions.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub id: RequestId,
    pub at: Instant,
    pub wall: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId(u128);

impl RequestId {
    fn random() -> Self {
        let mut bytes = [0; 16];
        rand::rng().fill_bytes(&mut bytes);
        Self(u128::from_le_bytes(bytes))
    }

    pub fn header(self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).expect("invariant: hexadecimal is a valid header")
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "req_{:032x}", self.0)
    }
}

impl Arrival {
    pub fn now() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the access log says when a request came")]
        let wall = SystemTime::now();
        Self { id: RequestId::random(), at: Instant::now(), wall }
    }
}

#[derive(Clone, Copy)]
pub struct Trace;

impl<S> Layer<S> for Trace {
    type Service = Traced<S>;

    fn layer(&self, inner: S) -> Traced<S> {
        Traced { inner }
    }
}

#[derive(Clone)]
pub struct Traced<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for Traced<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let arrival = Arrival::now();
        // At `debug`: nothing above it is logged on the way of a call, and an id spelled out for each costs 3 % of it.
        let span = tracing::debug_span!("request", id = %arrival.id);
        request.extensions_mut().insert(arrival);
        let answer = self.inner.call(request).instrument(span);
        Box::pin(async move {
            let mut answer = answer.await?;
            answer.headers_mut().insert(names::REQUEST_ID, arrival.id.header());
            Ok(answer)
        })
    }
}
