//! A connection that can be told to break: it passes bytes through, counts them, and ends as ordered after so many.
//! It knows nothing of HTTP.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::settings::Ending;

/// The orders to one connection, and its count. Shared by the connection and the handler of its requests.
#[derive(Debug)]
pub struct Line {
    /// Bytes it may still write; `u64::MAX` without a fault.
    allowed: AtomicU64,
    /// An [`Ending`] by number, read once `allowed` is used up.
    ending: AtomicU8,
    written: AtomicU64,
}

impl Line {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            allowed: AtomicU64::new(u64::MAX),
            ending: AtomicU8::new(Ending::Fin as u8),
            written: AtomicU64::new(0),
        })
    }

    /// From now on: `bytes` more, then `ending`.
    pub fn cut(&self, bytes: u64, ending: Ending) {
        self.ending.store(ending as u8, Relaxed);
        self.allowed.store(bytes, Relaxed);
    }

    /// Bytes the kernel has taken so far.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    fn ending(&self) -> Ending {
        match self.ending.load(Relaxed) {
            n if n == Ending::Reset as u8 => Ending::Reset,
            n if n == Ending::Hang as u8 => Ending::Hang,
            _ => Ending::Fin,
        }
    }

    fn count(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
        if self.allowed.load(Relaxed) != u64::MAX {
            self.allowed.fetch_sub(bytes as u64, Relaxed);
        }
    }
}

pub struct BreakableStream {
    stream: TcpStream,
    line: Arc<Line>,
}

impl BreakableStream {
    pub fn new(stream: TcpStream, line: Arc<Line>) -> Self {
        Self { stream, line }
    }

    /// The connection's end, once it may not write another byte.
    fn broken(&self) -> Poll<io::Result<usize>> {
        match self.line.ending() {
            // Nobody wakes this up: the task goes when the client closes, or with the mock.
            Ending::Hang => Poll::Pending,
            Ending::Fin | Ending::Reset => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn must_reset(&self) -> bool {
        self.line.allowed.load(Relaxed) == 0 && self.line.ending() == Ending::Reset
    }
}

impl Drop for BreakableStream {
    fn drop(&mut self) {
        if self.must_reset() {
            // With a zero linger the close is a reset. A socket that refuses the option is closed already.
            drop(self.stream.set_zero_linger());
        }
    }
}

impl AsyncRead for BreakableStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for BreakableStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let allowed = self.line.allowed.load(Relaxed);
        if allowed == 0 {
            return self.broken();
        }
        let most = usize::try_from(allowed).unwrap_or(usize::MAX).min(buf.len());
        let polled = Pin::new(&mut self.stream).poll_write(cx, &buf[..most]);
        if let Poll::Ready(Ok(bytes)) = polled {
            self.line.count(bytes);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.line.allowed.load(Relaxed) != u64::MAX {
            let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
            return self.poll_write(cx, first);
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(bytes)) = polled {
            self.line.count(bytes);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A reset must not be announced by a FIN.
        if self.must_reset() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
