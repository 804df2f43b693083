//! The operator's port: metrics, liveness, readiness. No key is asked for: bind it where only operators reach it.

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::{Proxy, quota::Readiness};

/// A scrape or a probe takes no longer; more of them at once are not served.
const LONGEST: Duration = Duration::from_secs(30);
const CONNECTIONS: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown`.
pub async fn serve(proxy: Arc<Proxy>, listener: TcpListener, shutdown: impl Future<Output = ()>) {
    let mut shutdown = std::pin::pin!(shutdown);
    let slots = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => return,
        };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, "an admin connection could not be accepted");
                // Out of descriptors, most likely: they come back as connections end.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else { continue };
        let proxy = proxy.clone();
        tokio::spawn(async move {
            let _slot = slot;
            let service = service_fn(move |request| {
                let answer = answer(&proxy, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection =
                http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(socket), service);
            if let Ok(Err(error)) = tokio::time::timeout(LONGEST, connection).await {
                tracing::debug!(%error, "admin connection");
            }
        });
    }
}

fn answer(proxy: &Proxy, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
    }
    match request.uri().path() {
        "/metrics" => text(StatusCode::OK, proxy.events.render(&proxy.quota.stats())),
        // Alive as long as it answers at all: a dead store is no reason to restart.
        "/healthz" | "/livez" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match proxy.ready() {
            Ok(Readiness::Whole) => text(StatusCode::OK, "ready\n"),
            Ok(Readiness::Degraded(why)) => text(StatusCode::OK, format!("ready, degraded: {why}\n")),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        _ => text(StatusCode::NOT_FOUND, "only /metrics, /healthz, /livez and /readyz are here\n"),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
