//! Connections to upstreams: TCP, TLS and Unix sockets, each with a deadline.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use tokio::net::{TcpStream, UnixStream};
use tower::Service;

use crate::config::socket_path;

/// Keeps the connections of long silent streams alive behind NAT.
const KEEPALIVE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct Connector {
    https: HttpsConnector<HttpConnector>,
    timeout: Duration,
}

impl Connector {
    pub fn new(timeout: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.set_keepalive(Some(KEEPALIVE));
        http.set_connect_timeout(Some(timeout));
        http.enforce_http(false);
        let https = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(rustls::crypto::ring::default_provider())
            .expect("invariant: ring has the default protocol versions")
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Self { https, timeout }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Stream, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.https.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let timeout = self.timeout;
        if uri.scheme_str() == Some("unix") {
            return Box::pin(async move {
                let path = uri.authority().and_then(|authority| socket_path(authority.as_str()));
                let path = path.ok_or("the address names no socket")?;
                let stream = tokio::time::timeout(timeout, UnixStream::connect(path)).await??;
                Ok(Stream::Unix(TokioIo::new(stream)))
            });
        }
        let connecting = self.https.call(uri);
        // The connector's own deadline covers TCP; this one also the handshake.
        Box::pin(async move { Ok(Stream::Tcp(Box::new(tokio::time::timeout(timeout, connecting).await??))) })
    }
}

pub(super) enum Stream {
    /// Boxed: TLS state is a kilobyte that plain connections need not move about.
    Tcp(Box<MaybeHttpsStream<TokioIo<TcpStream>>>),
    Unix(TokioIo<UnixStream>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Tcp(stream) => stream.connected(),
            Self::Unix(_) => Connected::new(),
        }
    }
}

impl Read for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }
}
