//! Streams of a trace, whose lengths are known, through one limit: what each way of holding lets in, and how far
//! it goes beyond. Holds, top-ups and what is learned are those of the gateway.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::super::account::Amounts;
use super::super::chain::Chain;
use super::super::holding::{Bind, Holding};
use super::super::lease::LeaseId;
use super::super::ledger::Ledger;
use super::super::lengths::Length;
use super::super::rule::{Ceilings, Level, Limit, OnLimit, OnStoreFailure, Pattern, Rule, Subject, Unit, Window};
use super::super::store::{Ask, Extension, Status};
use super::super::topup::TopUp;

#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Arrival, microseconds from the start of the trace.
    pub at_us: u64,
    pub input: u64,
    pub output: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// What the limit counts, and how much of it in a minute.
    pub unit: Unit,
    pub per_minute: u64,
    pub burst: u64,
    /// What every call names as its cap.
    pub max_tokens: u64,
    pub ttft: Duration,
    pub tpot: Duration,
}

/// What a call holds of its output.
#[derive(Clone, Copy, Debug)]
pub enum Policy {
    WorstCase,
    Calibrated(Holding),
    /// As if lengths were known beforehand: no policy can do better.
    Foreseen,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub admitted: u64,
    pub refused: u64,
    /// Ended before their time because a budget was spent.
    pub cut: u64,
    /// Asked for more than they held first.
    pub topped_up: u64,
    pub served_tokens: u64,
    /// The most by which holds and use went beyond the limit, tokens.
    pub overshoot: u64,
    /// Calls at the same time, over the time of the trace.
    pub mean_running: f64,
}

struct Running {
    top: TopUp,
    input: u64,
    output: u64,
    began_us: u64,
    used: u64,
}

struct Play {
    conditions: Conditions,
    chain: Arc<Chain>,
    ledger: Ledger,
    length: Length,
    running: HashMap<LeaseId, Running>,
    /// When each running call has written so many tokens that something is to be done.
    due: BinaryHeap<Reverse<(u64, LeaseId)>>,
    busy_us: f64,
    outcome: Outcome,
}

/// Streams come in the order of their times.
pub fn play(streams: &[Stream], conditions: Conditions, policy: Policy) -> Outcome {
    let holding = match policy {
        Policy::Calibrated(holding) => holding,
        Policy::WorstCase | Policy::Foreseen => Holding::default(),
    };
    let mut play = Play::new(conditions, holding);
    for (at, stream) in streams.iter().enumerate() {
        play.until(stream.at_us);
        play.arrives(LeaseId(at as u128), stream, policy, holding);
    }
    play.until(u64::MAX);
    let span =
        streams.last().map_or(0, |last| last.at_us).saturating_sub(streams.first().map_or(0, |first| first.at_us));
    play.outcome.mean_running = play.busy_us / span.max(1) as f64;
    play.outcome
}

impl Play {
    fn new(conditions: Conditions, holding: Holding) -> Self {
        let window = Window::Bucket { period: Duration::from_secs(60), burst: conditions.burst };
        let rule = Rule {
            level: Level::Org,
            matcher: Pattern::any(),
            models: Vec::new(),
            name: None,
            limits: vec![Limit { unit: conditions.unit, amount: conditions.per_minute, window }],
            ceilings: Ceilings::default(),
            on_store_failure: OnStoreFailure::Closed,
            holding,
            on_limit: OnLimit::Reject,
            shadow: false,
        };
        let subject = Subject { org: Some("trace".to_owned()), ..Subject::default() };
        Self {
            conditions,
            chain: Arc::new(Chain::resolve(&[rule], &subject, &[])),
            ledger: Ledger::default(),
            length: Length::default(),
            running: HashMap::new(),
            due: BinaryHeap::new(),
            busy_us: 0.0,
            outcome: Outcome::default(),
        }
    }

    fn arrives(&mut self, id: LeaseId, stream: &Stream, policy: Policy, holding: Holding) {
        let worst = self.conditions.max_tokens;
        let output = stream.output.clamp(1, worst);
        let held = match policy {
            Policy::WorstCase => worst,
            Policy::Calibrated(_) => self.length.known().map_or(worst, |known| known.min(worst)),
            Policy::Foreseen => output,
        };
        let ask = Ask { id, need: Amounts::held(stream.input, held, 0), hold: Duration::MAX };
        let answer = self.ledger.reserve(&self.chain, &ask, clock(stream.at_us));
        if answer.status != Status::Done {
            self.outcome.refused += 1;
            return;
        }
        self.saw(&answer.levels);
        self.outcome.admitted += 1;
        let top = TopUp::new(held, worst, holding);
        self.running.insert(id, Running { top, input: stream.input, output, began_us: stream.at_us, used: 0 });
        self.schedule(id);
    }

    /// The next moment at which this call needs something: more, or its end.
    fn schedule(&mut self, id: LeaseId) {
        let Some(call) = self.running.get_mut(&id) else { return };
        call.used = (call.top.line() + 1).max(call.used + 1).min(call.output);
        let written = self.conditions.tpot.as_micros() as u64 * (call.used - 1);
        let at = call.began_us + self.conditions.ttft.as_micros() as u64 + written;
        self.due.push(Reverse((at, id)));
    }

    fn until(&mut self, now_us: u64) {
        while let Some(Reverse((at, id))) = self.due.peek().copied().filter(|Reverse((at, _))| *at <= now_us) {
            self.due.pop();
            let Some(call) = self.running.get(&id) else { continue };
            let (used, whole) = (call.used, call.used == call.output);
            if !whole && self.tops_up(id, used, at) {
                self.schedule(id);
            } else {
                self.ends(id, at, !whole);
            }
        }
    }

    /// Whether the call may go on.
    fn tops_up(&mut self, id: LeaseId, used: u64, now_us: u64) -> bool {
        let Some(mut call) = self.running.remove(&id) else { return false };
        let mut goes_on = true;
        while let Some(more) = call.top.wants(used).filter(|_| goes_on) {
            let amounts = Amounts { output: more.output as f64, ..Amounts::default() };
            let extension = Extension { id, more: amounts, ttl: Duration::MAX, bind: more.bind };
            let answer = self.ledger.extend(&extension, clock(now_us));
            self.outcome.topped_up += u64::from(more.bind == Bind::All && answer.status == Status::Done);
            if answer.status == Status::Done {
                call.top.granted(more);
            } else {
                goes_on = call.top.refused(more, used, false);
            }
            self.saw(&answer.levels);
        }
        self.running.insert(id, call);
        goes_on
    }

    fn ends(&mut self, id: LeaseId, now_us: u64, cut: bool) {
        let Some(call) = self.running.remove(&id) else { return };
        self.ledger.settle(id, &Amounts::used(1, call.input, call.used, 0), clock(now_us));
        self.length.learn(call.used, 1);
        self.outcome.cut += u64::from(cut);
        self.outcome.served_tokens += call.input + call.used;
        self.busy_us += (now_us - call.began_us) as f64;
    }

    fn saw(&mut self, levels: &[f64]) {
        let over = levels.first().map_or(0.0, |level| level - self.conditions.burst as f64);
        self.outcome.overshoot = self.outcome.overshoot.max(over.max(0.0) as u64);
    }
}

/// The ledger takes a time of 0 for none.
fn clock(us: u64) -> f64 {
    us as f64 + 1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::holding::Overrun;

    const CALIBRATED: Policy = Policy::Calibrated(Holding { calibrated: Some(2.0), overrun: Overrun::Charge });
    const STOP: Policy = Policy::Calibrated(Holding { calibrated: Some(2.0), overrun: Overrun::Stop });

    /// Two calls a second; nearly all answers are short.
    fn trace() -> Vec<Stream> {
        let output = |at: u64| if at % 150 == 149 { 1500 } else { 80 + at % 40 };
        (0..4000).map(|at| Stream { at_us: at * 500_000, input: 100, output: output(at) }).collect()
    }

    fn conditions() -> Conditions {
        let (ttft, tpot) = (Duration::from_millis(400), Duration::from_millis(30));
        Conditions { unit: Unit::Tokens, per_minute: 32_000, burst: 6_000, max_tokens: 4000, ttft, tpot }
    }

    #[test]
    fn worst_case_holds_let_few_in_and_never_overshoot() {
        let (worst, foreseen) =
            (play(&trace(), conditions(), Policy::WorstCase), play(&trace(), conditions(), Policy::Foreseen));
        assert_eq!((worst.overshoot, worst.cut, foreseen.overshoot), (0, 0, 0));
        assert_eq!(worst.admitted + worst.refused, 4000);
        assert!(worst.admitted < 3 * foreseen.admitted / 4, "{worst:?} {foreseen:?}");
    }

    #[test]
    fn calibrated_holds_let_nearly_all_in_once_enough_have_ended() {
        // Until then the worst case is held: one call at a time.
        let worst = play(&trace(), conditions(), Policy::WorstCase);
        let learning = worst.refused * crate::quota::lengths::ENOUGH / worst.admitted;
        for policy in [CALIBRATED, STOP] {
            let calibrated = play(&trace(), conditions(), policy);
            assert!(calibrated.refused < learning + 100 && calibrated.topped_up > 0, "{calibrated:?} of {learning}");
            assert!(calibrated.overshoot <= calibrated.cut, "{calibrated:?}");
        }
    }

    #[test]
    fn what_goes_beyond_the_limit_is_measured_and_within_the_stated_bound() {
        let short = (0..250).map(|at| Stream { at_us: at * 600_000_000, input: 10, output: 20 });
        let long = (0..30).map(|_| Stream { at_us: 250 * 600_000_000, input: 10, output: 400 });
        let streams: Vec<Stream> = short.chain(long).collect();
        let conditions =
            Conditions { unit: Unit::OutputTokens, per_minute: 100, burst: 400, max_tokens: 400, ..conditions() };
        let calibrated = play(&streams, conditions, CALIBRATED);
        // 19 holds of 21 fit; all of them go on to twice that, and stop with the token after.
        assert_eq!((calibrated.admitted, calibrated.refused, calibrated.cut), (269, 11, 19));
        assert!((300..=19 * 22).contains(&calibrated.overshoot), "{calibrated:?}");
        let stop = play(&streams, conditions, STOP);
        assert_eq!((stop.admitted, stop.cut), (269, 19));
        assert!(stop.overshoot <= 19, "a token of each: {stop:?}");
    }
}
