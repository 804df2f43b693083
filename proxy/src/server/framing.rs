//! Notices a request that gives the length of its body in two ways, which may be an attempt to smuggle another one past
//! a proxy before us (RFC 9112, 6.1). hyper goes by `Transfer-Encoding` and drops the `Content-Length` before anyone sees
//! it, so the bytes are looked at on their way to it. It alone parses: what is missed here (the second head of two sent
//! at once) is still read one way only, and its connection still closed.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use memchr::memchr;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const LENGTH: &[u8] = b"content-length:";
const CODING: &[u8] = b"transfer-encoding:";

/// Marks a request, in its extensions.
#[derive(Clone, Copy, Debug)]
pub struct Ambiguous;

/// What the last head of a connection said, for those who serve it.
#[derive(Clone, Debug, Default)]
pub struct Framing(Arc<AtomicBool>);

impl Framing {
    pub fn is_ambiguous(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A socket whose reads are looked at.
pub struct Watched<S> {
    socket: S,
    head: Head,
    framing: Framing,
}

/// A head as far as it has come in.
#[derive(Debug, Default)]
struct Head {
    /// The line that has not ended, or as much of it as the longer name.
    line: Vec<u8>,
    begun: bool,
    length: bool,
    coding: bool,
    /// What comes now is a body.
    ended: bool,
}

impl Head {
    /// True if these bytes end it.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        if self.ended {
            return false;
        }
        while let Some(end) = memchr(b'\n', bytes) {
            self.keep(&bytes[..end]);
            self.line_ended();
            if self.ended {
                return true;
            }
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes);
        false
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = CODING.len() - self.line.len();
        self.line.extend_from_slice(&piece[..room.min(piece.len())]);
    }

    fn line_ended(&mut self) {
        let is = |name: &[u8]| self.line.get(..name.len()).is_some_and(|line| line.eq_ignore_ascii_case(name));
        self.length |= is(LENGTH);
        self.coding |= is(CODING);
        let empty = matches!(&self.line[..], b"" | b"\r");
        // Empty lines before a request do not count.
        self.ended = empty && self.begun;
        self.begun |= !empty;
        self.line.clear();
    }

    /// An answer goes out: a client that waits for it sends a new head next.
    fn next(&mut self) {
        let line = std::mem::take(&mut self.line);
        *self = Self { line, ..Self::default() };
        self.line.clear();
    }
}

impl<S> Watched<S> {
    pub fn new(socket: S, framing: Framing) -> Self {
        Self { socket, head: Head::default(), framing }
    }

    pub fn into_inner(self) -> S {
        self.socket
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
        if self.head.read(&buf.filled()[before..]) {
            self.framing.0.store(self.head.length && self.head.coding, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.head.next();
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.head.next();
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known of a head once its end has come, and `None` before; the same for every way to cut it in two.
    fn both(text: &str) -> Option<bool> {
        let verdict = |pieces: &[&[u8]]| {
            let mut head = Head::default();
            pieces.iter().any(|piece| head.read(piece)).then_some(head.length && head.coding)
        };
        let whole = verdict(&[text.as_bytes()]);
        for cut in 0..text.len() {
            let (start, rest) = text.as_bytes().split_at(cut);
            assert_eq!(verdict(&[start, rest]), whole, "{text:?} cut at {cut}");
        }
        whole
    }

    #[test]
    fn both_framings_are_seen_in_any_order_and_spelling() {
        for (head, expect) in [
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n", Some(true)),
            ("\r\nPOST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nCONTENT-LENGTH:5\r\n\r\nbody", Some(true)),
            ("POST / HTTP/1.1\ntransfer-encoding:chunked\ncontent-length:5\n\n", Some(true)),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\ncontent-length: 5\r\n\r\n", Some(false)),
            ("POST / HTTP/1.1\r\ncontent-length: 5\r\nx-transfer-encoding: chunked\r\n\r\n", Some(false)),
            ("POST / HTTP/1.1\r\nte: content-length: 5\r\ntransfer-encoding: x\r\n\r\n", Some(false)),
            ("POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n", None),
        ] {
            assert_eq!(both(head), expect, "{head:?}");
        }
    }

    #[test]
    fn each_answer_begins_a_new_head_and_a_line_takes_no_more_room_than_a_name() {
        let mut head = Head::default();
        assert!(head.read(b"POST / HTTP/1.1\r\ncontent-length: 30\r\n\r\n"));
        assert!(!head.read(b"transfer-encoding: chunked\r\n\r\n"), "that is a body");
        head.next();
        assert!(!head.read(&[b'x'; 100_000]) && head.line.len() == CODING.len());
        assert!(head.read(b"\r\ntransfer-encoding: chunked\r\n\r\n"));
        assert!(head.coding && !head.length);
    }
}
