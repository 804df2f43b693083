//! The chunks of a made-up answer, one after the other, with the waits between them. No HTTP.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    answers::{self, Asked, CREATED, Endpoint},
    settings::{Ending, Fault, Settings, UsageMode},
};
use crate::clock::monotonic_ns;

/// What a source wants next.
pub enum Next {
    Send(Bytes),
    /// A content chunk: as `Send`, and counted.
    Chunk(Bytes),
    WaitUntil(Instant),
    Wait(Duration),
    Break(Ending),
    End,
}

/// The chunks of a made-up answer.
pub struct Generated {
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
    pub fn new(endpoint: Endpoint, asked: &Asked, settings: Arc<Settings>) -> Self {
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

    pub fn next(&mut self) -> Next {
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
