//! One stream between an upstream and a client: events in, events out, keep-alives in silence, an honest end. What
//! it costs is followed by `meter`; how the answer starts is in the parent.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use prometheus::IntCounter;
use tokio::time::Sleep;
use wire::{Metered, openai::ErrorBody, sse};

use super::{
    ending::Envelope,
    gate::Gate,
    meter::{self, Meter},
};
use crate::{call::Call, charge::Charge, config::Limits, paths::Endpoint, quota::Refused, upstreams::Reply};

/// The longest event that is held until it is whole.
const LONGEST_EVENT: usize = 4 << 20;
/// Pieces that have arrived are joined into one write up to this size.
const JOIN: usize = 32 << 10;
/// A comment line: one line end, since some clients take a blank line for an empty event.
const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n");

/// A stream between an upstream and a client. It is only polled while the client takes bytes, so a slow client slows
/// the upstream; it holds at most one incomplete event and [`JOIN`] bytes that are ready.
pub struct Relay {
    /// Gone when the stream has ended, which closes the upstream's connection unless it is at its end.
    upstream: Option<Reply>,
    received: IntCounter,
    decoder: sse::Decoder,
    out: BytesMut,
    wishes: Wishes,
    meter: Meter,
    /// Only where a budget may end the stream.
    gate: Option<Box<Gate>>,
    /// Of the first chunk, for an end of our own.
    envelope: Option<Envelope>,
    charge: Charge,
    limits: Limits,
    /// When all is to be counted for a checkpoint.
    recount: Instant,
    /// When the upstream last sent, and when we last wrote.
    heard: Instant,
    wrote: Instant,
    /// Set lazily: it fires at the earliest time at which something might be due, not at each byte.
    alarm: Pin<Box<Sleep>>,
}

/// What the client asked for.
#[derive(Clone, Copy)]
pub struct Wishes {
    endpoint: Endpoint,
    choices: u64,
    usage: bool,
}

impl Wishes {
    pub fn of(call: &Call) -> Self {
        Self { endpoint: call.endpoint, choices: call.choices, usage: call.wants_usage }
    }
}

impl Relay {
    pub(super) fn new(upstream: Reply, wishes: Wishes, charge: Charge, limits: &Limits, received: IntCounter) -> Self {
        let now = Instant::now();
        let recount = now + charge.checkpoint_every();
        Self {
            upstream: Some(upstream),
            received,
            decoder: sse::Decoder::new(LONGEST_EVENT),
            out: BytesMut::new(),
            wishes,
            meter: Meter::default(),
            gate: Gate::of(&charge).map(Box::new),
            envelope: None,
            charge,
            limits: *limits,
            recount,
            heard: now,
            wrote: now,
            alarm: Box::pin(tokio::time::sleep(limits.keepalive_interval.min(limits.idle_stream_timeout))),
        }
    }

    /// The next bytes for the client; `None` at the end. Cancel-safe: dropping it is the client leaving.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.gather(cx);
        if !self.out.is_empty() {
            self.wrote = Instant::now();
            return Poll::Ready(Some(self.out.split().freeze()));
        }
        if self.upstream.is_none() {
            return Poll::Ready(None);
        }
        self.silence(cx)
    }

    /// Takes all that has arrived, up to [`JOIN`].
    fn gather(&mut self, cx: &mut Context<'_>) {
        while self.out.len() < JOIN && self.upstream.is_some() {
            if let Some(gate) = &mut self.gate {
                match gate.poll(cx, &mut self.charge) {
                    Poll::Ready(Ok(())) => self.events(),
                    Poll::Ready(Err(refused)) => return self.stop(&refused),
                    Poll::Pending => return,
                }
            }
            // What was kept may have used up what is held, or filled what goes out.
            if self.gate.as_ref().is_some_and(|gate| gate.is_over()) || self.out.len() >= JOIN {
                continue;
            }
            let Some(upstream) = &mut self.upstream else { return };
            match upstream.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => self.take(&data),
                Poll::Ready(Some(Err(error))) => self.broke(&error.to_string()),
                Poll::Ready(None) => self.ended(),
                Poll::Pending => return,
            }
        }
    }

    /// Bytes from the upstream: whole events go out, a rest is held.
    pub(super) fn take(&mut self, data: &Bytes) {
        if data.is_empty() {
            return;
        }
        self.heard = Instant::now();
        self.received.inc_by(data.len() as u64);
        self.decoder.push(data);
        self.events();
        if self.heard >= self.recount {
            // The crash of this gateway is charged by what the next renewal carries.
            self.meter.counted(self.charge.model.counter.tokenizer());
            self.recount = self.heard + self.charge.checkpoint_every();
        }
        self.charge.streamed(self.heard, self.meter.so_far());
    }

    /// Whole events that have come, as far as they may pass.
    fn events(&mut self) {
        while !self.gate.as_ref().is_some_and(|gate| gate.is_over()) {
            match self.decoder.next_event() {
                Ok(Some(event)) => self.event(&event),
                Ok(None) => break,
                Err(sse::TooLong { limit }) => {
                    self.broke(&format!("an event of more than {limit} bytes"));
                    break;
                }
            }
        }
    }

    fn event(&mut self, event: &sse::Event) {
        let Some(payload) = event.data() else {
            self.out.extend_from_slice(&event.raw);
            return;
        };
        if payload.as_ref() == sse::DONE.as_bytes() {
            self.out.extend_from_slice(&event.raw);
            self.meter.done();
            // Settled before the client can know that it is over: its next call finds the rest refunded.
            self.gate = None;
            let metered = self.metered();
            self.charge.finished(200, metered);
            return;
        }
        let tokenizer = self.charge.model.counter.tokenizer();
        match self.meter.event(&payload, !self.wishes.usage, tokenizer) {
            meter::Pass::AsIs => self.out.extend_from_slice(&event.raw),
            meter::Pass::Instead(payload) => self.out.extend_from_slice(&sse::encode(&payload)),
            meter::Pass::Nothing => {}
        }
        if let Some(gate) = &mut self.gate {
            gate.look(&mut self.meter, tokenizer);
            self.envelope = self.envelope.take().or_else(|| Envelope::of(&payload));
        }
    }

    /// What was used: as reported, else as counted by us.
    fn metered(&mut self) -> Metered {
        let prompt = self.charge.prompt();
        self.meter.metered(prompt, self.charge.model.counter.tokenizer())
    }

    /// The body ended as a body should. A stream without `[DONE]` is complete if it said why it stopped.
    fn ended(&mut self) {
        self.upstream = None;
        let rest = Bytes::copy_from_slice(self.decoder.pending());
        if !rest.is_empty() {
            // The last event came without its blank line.
            self.decoder = sse::Decoder::new(LONGEST_EVENT);
            self.decoder.push(&rest);
            self.decoder.push(b"\n\n");
            while let Ok(Some(event)) = self.decoder.next_event() {
                self.event(&event);
            }
        }
        let metered = self.metered();
        if self.meter.is_complete() {
            self.charge.finished(200, metered);
        } else {
            self.died("the upstream ended the stream before the answer was complete", metered);
        }
    }

    /// A budget is spent: the upstream is told to stop by its closed connection, the client by an end of our own.
    fn stop(&mut self, refused: &Refused) {
        self.upstream = None;
        let metered = self.metered();
        let open = self.meter.open_choices(self.wishes.choices);
        let usage = self.wishes.usage.then(|| metered.usage());
        let envelope = self.envelope.take().unwrap_or_default();
        envelope.end(self.wishes.endpoint, &open, usage, &mut self.out);
        self.charge.stopped(metered, refused);
    }

    fn broke(&mut self, why: &str) {
        self.upstream = None;
        let metered = self.metered();
        self.died(&format!("the upstream broke off the answer: {why}"), metered);
    }

    /// Tells the client by an error event: a made-up `stop` or `[DONE]` would pass a half answer off as a whole one.
    fn died(&mut self, message: &str, metered: Metered) {
        let finished = self.meter.is_done();
        match self.charge.saw_nothing() {
            // The head was all that came: as if the upstream had failed before it.
            true => self.charge.failed(200),
            false => self.charge.died(metered),
        }
        if !finished && !self.meter.said_error() {
            let body = ErrorBody::new("upstream_error", Some("upstream_died"), None, message);
            self.out.extend_from_slice(&sse::encode(&body.to_json()));
        }
    }

    /// Nothing to send: a comment when one is due, an error when the upstream has been silent too long.
    fn silence(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let now = Instant::now();
            if now >= self.heard + self.limits.idle_stream_timeout {
                if self.charge.saw_nothing() {
                    self.charge.timed_out(200);
                }
                self.broke(&format!("silent for {:?}", self.limits.idle_stream_timeout));
                return Poll::Ready((!self.out.is_empty()).then(|| self.out.split().freeze()));
            }
            let due = self.wrote + self.limits.keepalive_interval;
            let wake = due.min(self.heard + self.limits.idle_stream_timeout);
            if now >= due {
                self.wrote = now;
                self.alarm.as_mut().reset((now + self.limits.keepalive_interval).into());
                return Poll::Ready(Some(KEEP_ALIVE));
            }
            self.alarm.as_mut().reset(wake.into());
        }
    }
}

impl Drop for Relay {
    /// A client that left: the upstream's connection closes with `upstream`, and what it produced is charged.
    fn drop(&mut self) {
        if self.charge.is_open() && self.charge.saw_nothing() {
            self.charge.client_left_unseen();
        } else if self.charge.is_open() {
            let metered = self.metered();
            self.charge.client_left(metered);
        }
    }
}
