//! The body of one streamed answer: a source that says what comes next, and the frames and waits made of it.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::Sleep;

use super::{
    answers::{Asked, Endpoint},
    generated::{Generated, Next},
    line::Line,
    record::{Ended, Exchange},
    settings::{Ending, Settings, Step},
};

enum Source {
    Generated(Box<Generated>),
    Scripted(VecDeque<Step>),
}

impl Source {
    fn next(&mut self) -> Next {
        match self {
            Self::Generated(generated) => generated.next(),
            Self::Scripted(steps) => match steps.pop_front() {
                Some(Step::Send(text)) => Next::Send(text.into()),
                Some(Step::WaitMs(ms)) => Next::Wait(Duration::from_millis(ms)),
                Some(Step::End(ending)) => Next::Break(ending),
                None => Next::End,
            },
        }
    }
}

/// Polled by the connection. Frames leave one by one, as real upstreams send them.
pub struct StreamBody {
    source: Source,
    pieces: Option<usize>,
    /// What is left of a frame that is being cut.
    cutting: Bytes,
    /// A piece has just left: the connection flushes it when the next poll is pending, and joins it otherwise.
    flush: bool,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Set once the stream is about to break: the frames before it must be on their way first.
    breaking: Option<Ending>,
    exchange: Exchange,
    line: Arc<Line>,
}

/// What is on its way to the client has this long before the connection breaks.
const LAST_FLUSH: Duration = Duration::from_millis(20);

impl StreamBody {
    pub fn new(
        endpoint: Endpoint,
        asked: &Asked,
        settings: Arc<Settings>,
        exchange: Exchange,
        line: Arc<Line>,
    ) -> Self {
        let pieces = settings.pieces.filter(|bytes| *bytes > 0);
        let source = if settings.script.is_empty() {
            Source::Generated(Box::new(Generated::new(endpoint, asked, settings)))
        } else {
            Source::Scripted(settings.script.iter().cloned().collect())
        };
        Self { source, pieces, cutting: Bytes::new(), flush: false, sleep: None, breaking: None, exchange, line }
    }

    /// The frame itself, or its first piece; the rest waits for the next poll.
    fn frame(&mut self, bytes: Bytes) -> Bytes {
        self.cutting = bytes;
        self.flush = self.pieces.is_some();
        let most = self.pieces.unwrap_or(usize::MAX).min(self.cutting.len());
        self.cutting.split_to(most)
    }

    fn break_now(&mut self, ending: Ending) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match ending {
            // It ends when the client has had enough.
            Ending::Hang => Poll::Pending,
            Ending::Fin | Ending::Reset => {
                self.exchange.end(Ended::Died);
                self.line.cut(0, ending);
                Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into())))
            }
        }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        if std::mem::take(&mut this.flush) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Some(sleep) = this.sleep.as_mut() {
                ready!(sleep.as_mut().poll(cx));
                this.sleep = None;
            }
            if let Some(ending) = this.breaking {
                return this.break_now(ending);
            }
            if !this.cutting.is_empty() {
                let rest = std::mem::take(&mut this.cutting);
                let piece = this.frame(rest);
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            match this.source.next() {
                Next::Chunk(bytes) => {
                    this.exchange.chunk();
                    let frame = this.frame(bytes);
                    return Poll::Ready(Some(Ok(Frame::data(frame))));
                }
                Next::Send(bytes) => {
                    let frame = this.frame(bytes);
                    return Poll::Ready(Some(Ok(Frame::data(frame))));
                }
                Next::WaitUntil(due) => this.sleep = Some(Box::pin(tokio::time::sleep_until(due))),
                Next::Wait(time) => this.sleep = Some(Box::pin(tokio::time::sleep(time))),
                Next::Break(ending) => {
                    this.breaking = Some(ending);
                    this.sleep = Some(Box::pin(tokio::time::sleep(LAST_FLUSH)));
                }
                Next::End => {
                    this.exchange.end(Ended::Finished);
                    return Poll::Ready(None);
                }
            }
        }
    }
}
