//! A call that waits for its turn: it asks the store again when it may have come, until it is held, refused, or out of
//! patience. Whose turn it is only the store knows (`quota/turns.rs`); who asks when is `waiting/lines.rs`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::account::Amounts;
use super::chain::Chain;
use super::refusal::{self, Refusal, Shed, Why};
use super::rule::Unit;
use super::stats::Operation;
use super::store::{Answer, Ask, Spot, Status, StoreError, Turn};
use super::turns::Ahead;
use super::{Shared, reclaim, unexplained};

mod lines;

pub(super) use lines::Lines;

/// One of a gateway's calls asks so often in every queue for those who are not told: of what other gateways do.
const SCOUT: Duration = Duration::from_millis(50);
/// The others are told by it; this is their net.
const NET: Duration = Duration::from_secs(5);
/// A place outlasts its call's patience by this, for the answers that are on their way.
const GRACE: Duration = Duration::from_secs(2);

/// What a call that may have to wait says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// It waits no longer than this, whatever the rules allow.
    pub most: Option<Duration>,
    /// What its body takes meanwhile.
    pub bytes: usize,
}

/// A turn that a call had: what it held there is put right when it ends.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub chain: Arc<Chain>,
    pub queue: usize,
    pub cost: f64,
}

#[derive(Debug)]
pub(super) struct Waited {
    pub answer: Answer,
    pub queued: Duration,
    pub served: Option<Served>,
}

impl Waited {
    pub fn not(answer: Answer) -> Self {
        Self { answer, queued: Duration::ZERO, served: None }
    }
}

/// Why a call does not wait any longer.
#[derive(Debug)]
pub(super) enum Stopped {
    Store(StoreError),
    Shed(Box<Refusal>),
}

/// The call has a place in the store, or may have one, that nobody else gives up.
type Placed = bool;

impl Shared {
    /// As `Shared::ask`, of a chain with queues. Dropped half way it leaves its place to whoever dropped it.
    pub(super) async fn turn(
        &self,
        chain: &Arc<Chain>,
        ask: &Ask,
        patience: &Patience,
    ) -> Result<Waited, (Placed, Stopped)> {
        let begin = Instant::now();
        let mut silence = reclaim::introduce(self, chain).await;
        let most = chain.most_wait();
        let end = begin + patience.most.map_or(most, |own| own.min(most));
        let (mut standing, mut since) = (None::<lines::Standing<'_>>, 0.0);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let turn = Turn { gateway: self.lines.gateway, since, wait_us: (left + GRACE).as_micros() as f64 };
            let turned = self.stats.timed(Operation::Reserve, self.store.turn(chain, ask, &turn)).await;
            let turned = match turned {
                Ok(turned) => turned,
                Err(error) => {
                    let error = reclaim::first_cause(silence.take(), error);
                    // It holds nothing and has time left: most outages are shorter than that.
                    if let Some(standing) = standing.as_mut().filter(|_| error.is_silence() && !left.is_zero()) {
                        standing.news_within(SCOUT.min(left)).await;
                        continue;
                    }
                    let placed = standing.is_some() || !error.is_unsent();
                    return Err((placed, Stopped::Store(error)));
                }
            };
            let queued = if standing.is_some() { begin.elapsed() } else { Duration::ZERO };
            let (answer, spot) = (turned.answer, turned.spot);
            let Some(spot) = spot.filter(|_| matches!(answer.status, Status::Queued | Status::Crowded)) else {
                if let Some(standing) = standing.take() {
                    standing.had_turn(spot.and_then(|spot| spot.next));
                }
                let served = spot.filter(|_| answer.status == Status::Done);
                let cost = ask.need.tokens();
                let served = served.map(|spot| Served { chain: chain.clone(), queue: spot.queue, cost });
                return Ok(Waited { answer, queued, served });
            };
            since = spot.since;
            let shed = |why| {
                let queued = if why == Why::TimedOut { begin.elapsed() } else { Duration::ZERO };
                self.shed(chain, ask, &answer, &spot, Shed { why, queued })
            };
            if answer.status == Status::Crowded {
                return Err((false, shed(Why::Crowded)));
            }
            if standing.is_none() {
                if expected(chain, ask, &answer, &spot).is_none_or(|wait| wait > left) {
                    return Err((true, shed(Why::TooLong)));
                }
                let bounds = (self.options.waiting_calls, self.options.waiting_bytes);
                standing = self.lines.stand(chain, spot.queue, ask.id, patience.bytes, bounds);
            }
            let Some(standing) = &mut standing else { return Err((true, shed(Why::NoRoom))) };
            let mine = standing.heard(chain, &spot);
            // A dead gateway's holds may be all that is in the way.
            let patience = self.store.patience();
            if mine && answer.due && tokio::time::timeout(patience, reclaim::now(self, &chain.tag)).await == Ok(true) {
                continue;
            }
            let pause = if mine { fits_in(chain, ask, &answer).min(SCOUT) } else { standing.pause() };
            if !standing.news_within(pause.min(end.saturating_duration_since(Instant::now()))).await
                && Instant::now() >= end
            {
                return Err((true, shed(Why::TimedOut)));
            }
        }
    }

    fn shed(&self, chain: &Chain, ask: &Ask, answer: &Answer, spot: &Spot, shed: Shed) -> Stopped {
        let (rate, wait) = (self.told(chain, answer), expected(chain, ask, answer, spot));
        match refusal::shed(chain, spot.queue, &ask.need, answer, rate, wait, shed) {
            Some(refusal) => Stopped::Shed(Box::new(refusal)),
            None => Stopped::Store(unexplained()),
        }
    }
}

/// How long until everything ahead of the call and the call itself fit, if all of it uses what it holds; `None`: no time
/// is known. Running calls end at unknown times, so concurrency adds nothing.
fn expected(chain: &Chain, ask: &Ask, answer: &Answer, spot: &Spot) -> Option<Duration> {
    let Spot { queue, ahead, .. } = spot;
    let account = chain.queues[*queue].account;
    let limits = chain.limits.iter().zip(&answer.levels).filter(|(entry, _)| entry.account == account);
    let waits = limits.map(|(entry, level)| {
        let need = ask.need.of(entry.terms.unit);
        let before = ahead_in(&ask.need, ahead, entry.terms.unit);
        refusal::refill_time(entry, level + before, need, answer.now_us)
    });
    waits.reduce(|one, other| Some(one?.max(other?)))?
}

/// Others are taken to need of other units what this call does.
fn ahead_in(need: &Amounts, ahead: &Ahead, unit: Unit) -> f64 {
    match unit {
        Unit::Tokens => ahead.tokens,
        other => ahead.calls * need.of(other),
    }
}

/// Until the call fits if nobody else spends; what ends at unknown times is asked after now and then.
fn fits_in(chain: &Chain, ask: &Ask, answer: &Answer) -> Duration {
    let limits = chain.limits.iter().zip(&answer.levels);
    let waits = limits.map(|(entry, level)| {
        refusal::refill_time(entry, *level, ask.need.of(entry.terms.unit), answer.now_us).unwrap_or(SCOUT)
    });
    let longest = waits.max().unwrap_or_default();
    if longest.is_zero() { SCOUT } else { longest }
}
