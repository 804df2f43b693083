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
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use super::{
    answers::{self, Asked, CREATED, Endpoint},
    line::Line,
    record::{Ended, Exchange},
    settings::{Ending, Fault, Settings, Step, UsageMode},
};
use crate::clock::monotonic_ns;

/// What a source wants next.
enum Next {
    Send(Bytes),
    /// A content chunk: as `Send`, and counted.
    Chunk(Bytes),
    WaitUntil(Instant),
    Wait(Duration),
    Break(Ending),
    End,
}

/// The chunks of a made-up answer.
struct Generated {
    settings: Arc<Settings>,
    endpoint: Endpoint,
    /// The JSON of a content chunk up to, and from, its text.
    before: String,
    after: String,
    model: String,
    chunks: u32,
    truncated: bool,
    include_usage: bool,
    began: Instant,
    sent: u32,
    waited: bool,
    tail: Tail,
}

/// What remains after the content.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    Finish,
    Usage,
    Done,
    End,
}

impl Generated {
    fn new(endpoint: Endpoint, asked: &Asked, settings: Arc<Settings>) -> Self {
        let (chunks, truncated) = asked.chunks(&settings);
        let mut generated = Self {
            endpoint,
            before: String::new(),
            after: String::new(),
            model: asked.model().to_owned(),
            chunks,
            truncated,
            include_usage: asked.include_usage(),
            began: Instant::now(),
            sent: 0,
            waited: false,
            tail: Tail::Finish,
            settings,
        };
        (generated.before, generated.after) = generated.halves();
        generated
    }

    /// Splits a content chunk at its text once, so that a chunk costs one copy and not one serialisation.
    fn halves(&self) -> (String, String) {
        const MARK: &str = "\u{1}";
        let choice = match self.endpoint {
            Endpoint::Chat => {
                json!({"index": 0, "delta": {"content": MARK}, "logprobs": null, "finish_reason": null})
            }
            Endpoint::Completions => json!({"index": 0, "text": MARK, "logprobs": null, "finish_reason": null}),
        };
        let event = self.event(json!([choice]), None);
        let (before, after) = event.split_once("\\u0001").unwrap_or((&event, ""));
        (before.to_owned(), after.to_owned())
    }

    fn event(&self, choices: Value, usage: Option<Value>) -> String {
        let mut body = json!({
            "id": self.endpoint.id(),
            "object": self.endpoint.object(true),
            "created": CREATED,
            "model": self.model,
            "system_fingerprint": "fp_mock",
            "choices": choices,
        });
        match usage {
            Some(usage) => body["usage"] = usage,
            None if self.include_usage && self.settings.usage != UsageMode::Missing => body["usage"] = Value::Null,
            None => {}
        }
        format!("data: {body}\n\n")
    }

    fn chunk(&self) -> Bytes {
        let text = if self.settings.stamp {
            format!("@{};", monotonic_ns())
        } else {
            let quoted = Value::from(self.settings.chunk_text.as_str()).to_string();
            quoted[1..quoted.len() - 1].to_owned()
        };
        let mut event = [&self.before, text.as_str(), &self.after].concat();
        if self.sent == 0 && self.endpoint == Endpoint::Chat {
            event = event.replacen("\"delta\":{", "\"delta\":{\"role\":\"assistant\",", 1);
        }
        event.into()
    }

    fn finish(&self) -> Bytes {
        let reason = answers::finish_reason(&self.settings, self.truncated);
        let choice = match self.endpoint {
            Endpoint::Chat => json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason}),
            Endpoint::Completions => json!({"index": 0, "text": "", "logprobs": null, "finish_reason": reason}),
        };
        let on_finish = self.settings.usage == UsageMode::OnFinish && self.include_usage;
        self.event(json!([choice]), on_finish.then(|| answers::usage(&self.settings, self.sent))).into()
    }

    fn usage_is_due(&self) -> bool {
        match self.settings.usage {
            UsageMode::Reported | UsageMode::Zero => self.include_usage,
            UsageMode::Missing | UsageMode::OnFinish => false,
            UsageMode::Unasked => true,
        }
    }

    /// When content chunk `sent` is due.
    fn due(&self) -> Option<Instant> {
        let (ttft, itl) = (self.settings.ttft_ms, self.settings.itl_ms);
        let wait = ttft + itl * u64::from(self.sent);
        (wait > 0 && (self.sent == 0 || itl > 0)).then(|| self.began + Duration::from_millis(wait))
    }

    fn next(&mut self) -> Next {
        if let Some(Fault::Die { after_chunks, ending }) = self.settings.fault
            && self.sent >= after_chunks
        {
            return Next::Break(ending);
        }
        if self.settings.endless || self.sent < self.chunks {
            if !self.waited {
                self.waited = true;
                if let Some(due) = self.due() {
                    return Next::WaitUntil(due);
                }
            }
            let chunk = self.chunk();
            self.sent = self.sent.saturating_add(1);
            self.waited = false;
            return Next::Chunk(chunk);
        }
        let now = self.tail;
        self.tail = match now {
            Tail::Finish if self.usage_is_due() => Tail::Usage,
            Tail::Finish | Tail::Usage => Tail::Done,
            Tail::Done | Tail::End => Tail::End,
        };
        match now {
            Tail::Finish => Next::Send(self.finish()),
            Tail::Usage => Next::Send(self.event(json!([]), Some(answers::usage(&self.settings, self.sent))).into()),
            Tail::Done => Next::Send(wire::sse::encode(wire::sse::DONE.as_bytes())),
            Tail::End => Next::End,
        }
    }
}

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
