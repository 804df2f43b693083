//! The accept loop and one connection's life: sockets set up for streams, graceful drain, and a last word that
//! arrives. What a request means is `pipeline`'s part.

pub mod framing;

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use http::{Request, header::TRANSFER_ENCODING};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tower::Service;

use self::framing::{Ambiguous, Framing, Watched};
use crate::Proxy;

/// Idle connections beside those with a call.
const SPARE_CONNECTIONS: usize = 10_000;
/// Bounds the head of a request, and what an answer holds before the socket takes it.
const BUFFER: usize = 64 << 10;
/// Bytes the kernel takes ahead of what the client acknowledges: more would only hide a slow reader from us.
const UNSENT: u32 = 64 << 10;
/// After an answer that left a request unread, its rest is read and dropped this long: closing at once would reset
/// the connection, and the client could lose the answer.
const LINGER: Duration = Duration::from_secs(1);

impl Proxy {
    /// Serves until `shutdown`, then lets running calls end for at most `drain`. True if all did.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
        drain: Duration,
    ) -> bool {
        let mut shutdown = pin!(shutdown);
        let (stop, stopping) = watch::channel(false);
        let slots = Arc::new(Semaphore::new(self.limits.in_flight + SPARE_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let (accepted, slot) = tokio::select! {
                accepted = accept(&listener, &slots) => accepted,
                () = &mut shutdown => break,
            };
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok(socket) => {
                    let connection = connection(self.clone(), socket, stopping.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Out of descriptors, most likely: they come back as connections end.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(listener);
        self.draining();
        stop.send_replace(true);
        let all = tokio::time::timeout(drain, async { while connections.join_next().await.is_some() {} }).await;
        // Streams that outlast the drain are cut here: their drop settles them.
        connections.shutdown().await;
        self.quota.drain(drain.min(Duration::from_secs(5))).await && all.is_ok()
    }
}

/// Waits for a slot first: connections beyond them stay in the kernel's queue. Cancel-safe.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> (io::Result<TcpStream>, OwnedSemaphorePermit) {
    let slot = slots.clone().acquire_owned().await.expect("invariant: the semaphore is never closed");
    (listener.accept().await.map(|(socket, _)| socket), slot)
}

async fn connection(proxy: Arc<Proxy>, socket: TcpStream, mut stopping: watch::Receiver<bool>) {
    if let Err(error) = prepare(&socket, proxy.limits.idle_stream_timeout) {
        tracing::debug!(%error, "socket options");
    }
    let service = proxy.service();
    let framing = Framing::default();
    let watched = Watched::new(socket, framing.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        if framing.is_ambiguous() && request.headers().contains_key(TRANSFER_ENCODING) {
            request.extensions_mut().insert(Ambiguous);
        }
        service.clone().call(request) // always ready: it sheds, it never waits
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(proxy.limits.header_timeout)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(watched), service);
    let ended = tokio::select! {
        ended = std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)) => ended,
        () = stopped(&mut stopping) => {
            std::pin::Pin::new(&mut connection).graceful_shutdown();
            std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
    let socket = connection.into_parts().io.into_inner().into_inner();
    // The peer is gone in most cases, and then this fails or ends at once.
    if let Ok(Err(error)) = tokio::time::timeout(LINGER, linger(socket)).await {
        tracing::trace!(%error, "linger");
    }
}

/// Returns when the server stops. Cancel-safe.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    while !*stopping.borrow_and_update() && stopping.changed().await.is_ok() {}
}

/// `stalled`: a client that takes nothing for so long is cut off by the kernel, and its call settles.
fn prepare(socket: &TcpStream, stalled: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = socket2::SockRef::from(socket);
    socket.set_tcp_user_timeout(Some(stalled))?;
    socket.set_tcp_notsent_lowat(UNSENT)
}

async fn linger(mut socket: TcpStream) -> io::Result<()> {
    socket.shutdown().await?;
    let mut dropped = [0; 4096];
    while socket.read(&mut dropped).await? > 0 {}
    Ok(())
}
