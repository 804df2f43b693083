//! The limit of calls at the same time: a full gateway sheds at once and never queues. The slot moves into the body
//! of the answer, because a limit that ends with the head would not count streams.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use http::Response;
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{Layer, Service};

use crate::{body::Body, error::Error, respond::Failed};

#[derive(Clone)]
pub struct InFlight {
    slots: Arc<Semaphore>,
    gauge: IntGauge,
}

/// One call's place; the gauge falls when it is dropped.
pub struct Slot {
    gauge: IntGauge,
    _permit: OwnedSemaphorePermit,
}

impl InFlight {
    pub fn new(limit: usize, gauge: IntGauge) -> Self {
        Self { slots: Arc::new(Semaphore::new(limit)), gauge }
    }

    fn slot(&self) -> Option<Slot> {
        let permit = self.slots.clone().try_acquire_owned().ok()?;
        self.gauge.inc();
        Some(Slot { gauge: self.gauge.clone(), _permit: permit })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

impl<S> Layer<S> for InFlight {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limit: self.clone() }
    }
}

#[derive(Clone)]
pub struct Limited<S> {
    inner: S,
    limit: InFlight,
}

impl<S, R> Service<R> for Limited<S>
where
    S: Service<R, Response = Response<Body>, Error = Failed>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Failed;
    type Future = BoxFuture<'static, Result<Response<Body>, Failed>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let Some(slot) = self.limit.slot() else {
            return Box::pin(std::future::ready(Err(Error::Overloaded.into())));
        };
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| body.with_slot(slot))) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slot_is_held_until_the_body_is_dropped() {
        let gauge = IntGauge::new("in_flight", "test").expect("valid");
        let inner = tower::service_fn(|()| async { Ok::<_, Failed>(Response::new(Body::whole("x"))) });
        let mut service = InFlight::new(1, gauge.clone()).layer(inner);
        let first = service.call(()).await.expect("admitted");
        assert!(matches!(service.call(()).await, Err(Failed { error: Error::Overloaded, .. })));
        assert_eq!(gauge.get(), 1);
        drop(first);
        assert_eq!(gauge.get(), 0);
        assert!(service.call(()).await.is_ok());
    }
}
