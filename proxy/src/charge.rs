//! One admitted call from its reservation to its one end: what is charged, what is logged, what is counted. However
//! the call ends, exactly one of the methods that take `self`, or the drop, settles it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use wire::{
    Metered, Usage,
    access::{Binding, Decision, Entry, Outcome},
    slo,
};

use crate::{
    access_log::AccessLog,
    catalogue::{Model, Upstream},
    events::Events,
    quota::{self, Bind, Holding, RateHeaders, Refused, Reservation, topup::TopUp},
    trace::Arrival,
};

mod terms;

pub use self::terms::{Terms, Written};

/// Status of a call whose client left before an answer: never sent, only logged and counted.
pub const CLIENT_CLOSED: u16 = 499;

pub struct Charge {
    /// Taken by the end.
    open: Option<Open>,
    pub model: Arc<Model>,
    books: Books,
    arrival: Arrival,
    upstream: Option<Arc<Upstream>>,
    /// When the first attempt began: up to then the time was ours.
    dispatched: Option<Instant>,
    /// Of the attempt that runs.
    written: Written,
    first: Option<Instant>,
    last: Option<Instant>,
}

struct Open {
    reservation: Reservation,
    entry: Option<Box<Entry>>,
    terms: Terms,
    /// The limit that ended the stream.
    bound: Option<Binding>,
}

/// Where ends are written down.
pub struct Books {
    pub events: Arc<Events>,
    pub log: Arc<AccessLog>,
}

impl Charge {
    pub fn new(
        reservation: Reservation,
        terms: Terms,
        model: Arc<Model>,
        entry: Option<Box<Entry>>,
        arrival: Arrival,
        books: Books,
    ) -> Self {
        let open = Some(Open { reservation, entry, terms, bound: None });
        let written = Written::default();
        Self { open, model, books, arrival, upstream: None, dispatched: None, written, first: None, last: None }
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.upstream.as_ref()
    }

    pub fn rate(&self) -> RateHeaders {
        self.open.as_ref().map(|open| *open.reservation.rate()).unwrap_or_default()
    }

    /// The call is about to leave for `upstream`. The attempt's request says in what is returned when it does leave.
    pub fn dispatched(&mut self, upstream: &Arc<Upstream>) -> Written {
        self.upstream = Some(upstream.clone());
        self.written = Written::default();
        if let Some(open) = &mut self.open
            && self.dispatched.is_none()
        {
            let now = Instant::now();
            self.dispatched = Some(now);
            self.model.events.dispatched((now - self.arrival.at).saturating_sub(open.reservation.queued()));
            open.reservation.dispatched();
        }
        self.written.clone()
    }

    /// Bytes came from the upstream; `output_tokens` so far, as well as is known without work.
    pub fn streamed(&mut self, now: Instant, output_tokens: u64) {
        self.first.get_or_insert(now);
        self.last = Some(now);
        if let Some(open) = &self.open {
            open.reservation.streamed(output_tokens);
        }
    }

    /// No byte of the answer has come.
    pub fn saw_nothing(&self) -> bool {
        self.first.is_none()
    }

    /// What the prompt was counted at.
    pub fn prompt(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.reservation.demand().input)
    }

    /// Output tokens held for it.
    pub fn held(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.reservation.demand().output)
    }

    /// How long a checkpoint may lag behind what was streamed.
    pub fn checkpoint_every(&self) -> Duration {
        self.open.as_ref().map_or(Duration::from_secs(60), |open| open.reservation.checkpoint_every())
    }

    /// How it gets more output than it holds. `None`: it goes on whatever it uses.
    pub fn top_up(&self) -> Option<TopUp> {
        let Open { reservation, terms, .. } = self.open.as_ref()?;
        let holding = reservation.holding();
        let held = reservation.demand().output;
        (holding != Holding::default()).then(|| TopUp::new(held, terms.worst, holding))
    }

    /// Asks for more output than is held; nothing if the call has ended.
    pub fn extend(&mut self, output: u64, bind: Bind) -> Option<BoxFuture<'static, Result<(), Refused>>> {
        self.open.as_mut().map(|open| open.reservation.extend(output, bind))
    }

    /// Output that may have been produced without being seen.
    fn unseen(&self) -> u64 {
        self.written.at().map_or(0, |sent| self.model.pace.unseen(sent.elapsed(), self.held()))
    }

    /// The answer is complete.
    pub fn finished(&mut self, status: u16, metered: Metered) {
        self.teach(metered.usage().completion);
        self.end(status, Outcome::Finished, self.used(metered));
    }

    /// Only a stream shows when its first token came: bytes that all came at once are a whole answer.
    fn teach(&self, tokens: u64) {
        let Some(sent) = self.written.at() else { return };
        match self.first.zip(self.last) {
            Some((first, last)) if last > first => self.model.pace.learn(first - sent, last - sent, tokens),
            _ => self.model.pace.learn_whole(sent.elapsed(), tokens),
        }
    }

    /// The upstream refused the call itself, as the caller's mistake: the tokens come back, the call counts.
    pub fn rejected(&mut self, status: u16) {
        self.end(status, Outcome::Invalid, quota::Outcome::Rejected);
    }

    /// No upstream answered: everything comes back.
    pub fn failed(&mut self, status: u16) {
        self.end(status, Outcome::UpstreamFailed, quota::Outcome::Refund);
    }

    /// The request went out and the answer did not come in time: it was probably being written.
    pub fn timed_out(&mut self, status: u16) {
        self.end(status, Outcome::UpstreamFailed, self.unseen_used());
    }

    /// A budget is spent, and the stream was ended for it.
    pub fn stopped(&mut self, metered: Metered, by: &Refused) {
        self.teach(metered.usage().completion);
        if let (Some(open), Refused::Limit(limit)) = (&mut self.open, by) {
            open.bound = Some(Binding { level: limit.level.as_str().to_owned(), limit: limit.limit.clone() });
        }
        self.end(200, Outcome::Stopped, self.used(metered));
    }

    /// The upstream stopped in the middle of a stream.
    pub fn died(&mut self, metered: Metered) {
        self.end(200, Outcome::UpstreamDied, self.used(metered));
    }

    /// The client stopped reading a stream.
    pub fn client_left(&mut self, metered: Metered) {
        self.end(200, Outcome::ClientDisconnected, self.used(metered));
    }

    /// The client left a stream that had not begun.
    pub fn client_left_unseen(&mut self) {
        self.end(200, Outcome::ClientDisconnected, self.unseen_used());
    }

    /// What a request that left is charged when nothing of its answer was seen. One that never left costs nothing.
    fn unseen_used(&self) -> quota::Outcome {
        if self.written.at().is_none() {
            return quota::Outcome::Refund;
        }
        self.used(Metered::Estimated(Usage { prompt: self.prompt(), completion: self.unseen(), cached: 0 }))
    }

    fn used(&self, metered: Metered) -> quota::Outcome {
        let usage = metered.usage();
        quota::Outcome::Used { metered, nano_usd: self.model.price.cost(usage.prompt, usage.completion) }
    }

    fn end(&mut self, status: u16, outcome: Outcome, settle: quota::Outcome) {
        let Some(Open { reservation, entry, terms, bound }) = self.open.take() else { return };
        let (demand, queued) = (reservation.demand(), reservation.queued());
        let shadow = reservation.shadowed().iter();
        let shadow = shadow.map(|by| Binding { level: by.level.as_str().to_owned(), limit: by.limit.clone() });
        let (level, limit) = bound.map(|by| (by.level, by.limit)).unzip();
        let decision = Decision { level, limit, shadow: shadow.collect(), ..Decision::new(outcome) };
        reservation.settle(settle);
        let metered = match settle {
            quota::Outcome::Used { metered, .. } => Some(metered),
            quota::Outcome::Refund | quota::Outcome::Rejected => None,
        };
        if let Some(metered) = &metered {
            self.model.events.charged(&demand, metered);
            terms.learn(outcome, metered);
        }
        let timing = self.timing(metered.map_or(0, |metered| metered.usage().completion));
        self.judge(outcome, &timing);
        self.books.events.answered(Some(&self.model.name), status);
        if let Some(mut entry) = entry {
            entry.served_model = Some(self.model.name.clone());
            entry.upstream = self.upstream.as_ref().map(|upstream| upstream.name.clone());
            entry.status = status;
            entry.decision = decision;
            entry.usage = metered.map(|metered| metered.usage());
            entry.estimated = metered.is_some_and(|metered| metered.is_estimated());
            entry.timing = spelled(&timing, self.dispatched.map(|at| at - self.arrival.at), queued);
            self.books.log.send(entry);
        }
    }

    fn timing(&self, tokens: u64) -> slo::Timing {
        let ttft = self.first.map(|first| first - self.arrival.at);
        let writing = self.first.zip(self.last).map(|(first, last)| last - first);
        let tpot = writing.filter(|_| tokens > 1).map(|writing| writing.div_f64((tokens - 1) as f64));
        slo::Timing { ttft, tpot, e2e: self.arrival.at.elapsed() }
    }

    /// Failures miss the objective; a client that left, a call that was refused and an answer that came whole, whose
    /// first token nobody saw, say nothing about it.
    fn judge(&self, outcome: Outcome, timing: &slo::Timing) {
        let met = match outcome {
            Outcome::Finished => {
                self.model.events.finished(timing);
                self.model.slo.filter(|_| timing.ttft.is_some()).map(|slo| slo.met(timing))
            }
            Outcome::UpstreamFailed | Outcome::UpstreamDied => self.model.slo.map(|_| false),
            _ => None,
        };
        if let Some(met) = met {
            self.model.events.judged(met);
        }
    }
}

fn spelled(timing: &slo::Timing, to_dispatch: Option<Duration>, queued: Duration) -> wire::access::Timing {
    let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
    wire::access::Timing {
        ttft_ms: timing.ttft.map(ms),
        tpot_ms: timing.tpot.map(ms),
        e2e_ms: ms(timing.e2e),
        overhead_ms: ms(to_dispatch.unwrap_or(timing.e2e).saturating_sub(queued)),
        queued_ms: ms(queued),
    }
}

impl Drop for Charge {
    /// The client left before an answer: what was sent is charged blind, what was not comes back.
    fn drop(&mut self) {
        if self.open.is_none() {
            return;
        }
        self.end(CLIENT_CLOSED, Outcome::ClientDisconnected, self.unseen_used());
    }
}
