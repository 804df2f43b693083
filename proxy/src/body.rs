//! The one body type of all answers: whole bytes, or a stream that is relayed. It carries the in-flight slot, so
//! that a call counts until its last byte is written.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::{in_flight::Slot, relay::Relay};

pub struct Body {
    kind: Kind,
    /// Held to the end of the body, not read.
    _slot: Option<Slot>,
}

enum Kind {
    Whole(Bytes),
    Relay(Box<Relay>),
}

impl Body {
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { kind: Kind::Whole(bytes.into()), _slot: None }
    }

    pub fn relay(relay: Relay) -> Self {
        Self { kind: Kind::Relay(Box::new(relay)), _slot: None }
    }

    pub fn with_slot(self, slot: Slot) -> Self {
        Self { _slot: Some(slot), ..self }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.kind {
            Kind::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Relay(relay) => relay.poll(cx).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.kind, Kind::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Relay(_) => SizeHint::default(),
        }
    }
}
