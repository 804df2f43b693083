//! Connections: accept, serve, drain. Knows HTTP framing but no endpoint.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::App;

const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// More wait in the listener's backlog.
const MAX_CONNECTIONS: usize = 4096;
/// After a failed accept (out of file descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// After an answer that left a request unread, such as a 413, its rest is read and dropped this long: closing at once
/// would reset the connection, and the client could lose the answer.
const LINGER: Duration = Duration::from_secs(1);

/// Where requests come from.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Tokens are small writes; each must leave at once.
                stream.set_nodelay(true)?;
                Ok(Connection::Tcp(stream))
            }
            Self::Unix(listener) => Ok(Connection::Unix(listener.accept().await?.0)),
        }
    }
}

/// Until `draining` turns true and all connections have ended, or `drain_timeout` after that.
pub(super) async fn serve(app: Arc<App>, listener: Listener, draining: watch::Receiver<bool>, drain_timeout: Duration) {
    let mut connections = JoinSet::new();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut drain = draining.clone();
    loop {
        tokio::select! {
            accepted = accept(&listener, &slots) => match accepted {
                Ok((connection, slot)) => {
                    let served = serve_one(Arc::clone(&app), connection, draining.clone());
                    connections.spawn(async move {
                        served.await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = begins(&mut drain) => break,
        }
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(drain_timeout, all_ended).await.is_err() {
        tracing::warn!(connections = connections.len(), "the drain took too long; closing what is left");
    }
}

/// Waits for the drain. Cancel-safe. A server that is gone drains too.
async fn begins(draining: &mut watch::Receiver<bool>) {
    if let Err(gone) = draining.wait_for(|draining| *draining).await {
        tracing::debug!(%gone, "the server was dropped");
    }
}

/// Cancel-safe: a connection is accepted only when a slot is held, and both are returned together.
async fn accept(
    listener: &Listener,
    slots: &Arc<Semaphore>,
) -> io::Result<(Connection, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
    Ok((listener.accept().await?, slot))
}

async fn serve_one(app: Arc<App>, connection: Connection, draining: watch::Receiver<bool>) {
    match connection {
        Connection::Tcp(stream) => serve_stream(app, stream, draining).await,
        Connection::Unix(stream) => serve_stream(app, stream, draining).await,
    }
}

/// When the client leaves, hyper drops the running service and its body, which cancels the request.
async fn serve_stream(
    app: Arc<App>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    mut draining: watch::Receiver<bool>,
) {
    let service = service_fn(move |request| Box::pin(Arc::clone(&app).answer(request)));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => ended,
        () = begins(&mut draining) => {
            std::pin::Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
    // The peer is gone in most cases, and then this fails or ends at once.
    if let Ok(Err(error)) = tokio::time::timeout(LINGER, linger(connection.into_parts().io.into_inner())).await {
        tracing::trace!(%error, "linger");
    }
}

async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.shutdown().await?;
    let mut dropped = [0; 4096];
    while stream.read(&mut dropped).await? > 0 {}
    Ok(())
}
