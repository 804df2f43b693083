//! The body of a request to an upstream: whole bytes, and word of the moment at which they begin to leave.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::charge::Written;

pub(super) struct Outgoing {
    bytes: Bytes,
    written: Written,
}

impl Outgoing {
    pub fn new(bytes: Bytes, written: Written) -> Self {
        Self { bytes, written }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    /// The connection asks for a body when it is open and has taken the head.
    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.bytes.is_empty() {
            return Poll::Ready(None);
        }
        self.written.now();
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
