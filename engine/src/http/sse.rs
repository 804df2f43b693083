//! An answer as server-sent events. Events that are ready together leave in one write.

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde::Serialize;
use wire::{Usage, sse};

use super::answers::Answers;
use super::body::Body;
use super::error::Error;
use crate::stream::Event;

/// How an endpoint words its events.
pub(super) trait Shape: Send + 'static {
    fn event(&mut self, index: u32, event: Event, out: &mut Events);

    /// After the last event: the usage, if it was asked for.
    fn end(&mut self, usage: Usage, out: &mut Events);
}

/// Encoded events that wait to be written.
#[derive(Default)]
pub(super) struct Events(BytesMut);

impl Events {
    pub(super) fn send(&mut self, event: &impl Serialize) {
        match serde_json::to_vec(event) {
            Ok(payload) => self.0.extend_from_slice(&sse::encode(&payload)),
            Err(error) => tracing::error!(%error, "an event could not be written"),
        }
    }

    fn take(&mut self) -> Bytes {
        self.0.split().freeze()
    }
}

pub(super) fn response(answers: Answers, shape: impl Shape) -> Response<Body> {
    let writer = Writer { answers, shape, out: Events::default(), over: false };
    let frames = stream::unfold(writer, |mut writer| async move {
        let bytes = writer.next_write().await?;
        Some((Ok(Frame::data(bytes)), writer))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks nginx and its like not to collect the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Writer<S> {
    answers: Answers,
    shape: S,
    out: Events,
    over: bool,
}

impl<S: Shape> Writer<S> {
    /// Cancel-safe only as a whole: it is polled by the body, which is dropped with it.
    async fn next_write(&mut self) -> Option<Bytes> {
        while !self.over && self.out.0.is_empty() {
            match self.answers.next_event().await {
                Ok(Some((index, event))) => {
                    self.shape.event(index, event, &mut self.out);
                    self.add_ready();
                }
                Ok(None) => {
                    self.over = true;
                    self.shape.end(self.answers.usage(), &mut self.out);
                    self.out.0.extend_from_slice(&sse::encode(sse::DONE.as_bytes()));
                }
                Err(error) => self.fail(&error),
            }
        }
        (!self.out.0.is_empty()).then(|| self.out.take())
    }

    fn add_ready(&mut self) {
        loop {
            match self.answers.ready_event() {
                Ok(Some((index, event))) => self.shape.event(index, event, &mut self.out),
                Ok(None) => return,
                Err(error) => return self.fail(&error),
            }
        }
    }

    /// The client must not take what it has for a whole answer: an error event, and no `[DONE]`.
    fn fail(&mut self, error: &Error) {
        self.over = true;
        self.out.send(&error.body());
    }
}
