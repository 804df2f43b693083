//! Why a call was not admitted, and when it would be. One implementation for both stores: they answer with the levels
//! of all limits in one atomic snapshot, and this works out what binds.

use std::fmt;
use std::time::Duration;

use super::account::{Amounts, Kind, Terms};
use super::calendar::{self, CalendarPeriod};
use super::chain::{Chain, ChainLimit};
use super::rate::{self, RateHeaders};
use super::rule::{Demand, Level, Unit, Window};
use super::store::{Answer, StoreError};

/// A running call ends at an unknown time: a guess, marked as one.
const CONCURRENCY_RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub enum Refused {
    /// 429.
    Limit(Box<Refusal>),
    /// 503: the store does not answer, and the policy is `closed`.
    Store(StoreError),
    /// 503: too many calls have yet to be settled.
    Overloaded,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub level: Level,
    /// The subject's path at that level.
    pub subject: String,
    /// For example `tokens/minute`.
    pub limit: String,
    pub unit: Unit,
    pub needed: u64,
    pub left: u64,
    /// A retry after this fits, if nobody else spends and no hold is refunded. `None`: no time is known.
    pub retry_after: Option<Duration>,
    /// `retry_after` is a guess.
    pub estimate: bool,
    /// More than the limit can ever hold at once.
    pub never_fits: bool,
    /// Only limits of this model refuse: another model may fit.
    pub model_bound: bool,
    /// Waiting does not help before the window ends: `insufficient_quota`.
    pub insufficient: bool,
    /// It would have waited, or has.
    pub shed: Option<Shed>,
    pub rate: RateHeaders,
}

/// Of a call that might have waited for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed {
    pub why: Why,
    /// How long it did wait.
    pub queued: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Crowded,
    TooLong,
    TimedOut,
    NoRoom,
}

impl Why {
    fn as_str(self) -> &'static str {
        match self {
            Self::Crowded => "its queue is full",
            Self::TooLong => "its turn would not come within the time that it may wait",
            Self::TimedOut => "its turn did not come within the time that it may wait",
            Self::NoRoom => "this gateway holds as many waiting calls as it may",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, subject, limit) = (self.level.as_str(), &self.subject, &self.limit);
        let (needed, left) = (self.amount(self.needed), self.amount(self.left));
        let most = if self.never_fits { " at the most" } else { "" };
        write!(f, "quota {limit} of {level} {subject}: needed {needed}, left {left}{most}")?;
        if let Some(shed) = &self.shed {
            write!(f, "; {}", shed.why.as_str())?;
        }
        match self.retry_after {
            _ if self.never_fits => write!(f, "; this request can never fit"),
            Some(after) if self.estimate => write!(f, "; try again in about {:.1} s", after.as_secs_f64()),
            Some(after) => write!(f, "; fits in {:.3} s if nothing else is used", after.as_secs_f64()),
            None => write!(f, "; this limit does not refill"),
        }
    }
}

impl Refusal {
    fn amount(&self, count: u64) -> String {
        match self.unit {
            Unit::NanoUsd => format!("${:.6}", count as f64 / 1e9),
            _ => count.to_string(),
        }
    }
}

/// When one limit that does not fit now will.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wait {
    Never,
    /// A lifetime limit: only a refund or an edit helps.
    Unknown,
    Estimate(Duration),
    True(Duration),
}

/// Before the store is asked: ceilings, and needs that no balance can ever meet.
pub(super) fn before_store(chain: &Chain, demand: &Demand) -> Option<Refusal> {
    over_ceiling(chain, demand).or_else(|| never(chain, demand))
}

pub(super) fn over_ceiling(chain: &Chain, demand: &Demand) -> Option<Refusal> {
    for ceiling in chain.ceilings.iter().filter(|ceiling| !ceiling.shadow) {
        let over = |limit: Option<u64>, asked: u64| limit.filter(|limit| asked > *limit).map(|limit| (limit, asked));
        let tokens = over(ceiling.ceilings.tokens, demand.tokens()).map(|(limit, asked)| (Unit::Tokens, limit, asked));
        let usd =
            over(ceiling.ceilings.nano_usd, demand.nano_usd()).map(|(limit, asked)| (Unit::NanoUsd, limit, asked));
        if let Some((unit, limit, asked)) = tokens.or(usd) {
            return Some(Refusal {
                level: ceiling.level,
                subject: ceiling.path.clone(),
                limit: format!("max_request/{}", unit.as_str()),
                unit,
                needed: asked,
                left: limit,
                retry_after: None,
                estimate: false,
                never_fits: true,
                model_bound: ceiling.model_bound,
                insufficient: false,
                shed: None,
                rate: chain.rate(),
            });
        }
    }
    None
}

fn never(chain: &Chain, demand: &Demand) -> Option<Refusal> {
    // Asked in whole numbers: a demand beyond what a double counts exactly is still too large for every limit.
    let mut limits = chain.limits.iter().filter(|entry| !entry.terms.shadow);
    let entry = limits.find(|entry| demand.of(entry.terms.unit) as f64 > entry.terms.most())?;
    let account = &chain.accounts[entry.account];
    Some(Refusal {
        level: account.level,
        subject: account.path.clone(),
        limit: entry.label.clone(),
        unit: entry.terms.unit,
        needed: demand.of(entry.terms.unit),
        // What an unused account would have.
        left: rate::left(entry.terms.most(), 0.0),
        retry_after: None,
        estimate: false,
        never_fits: true,
        model_bound: entry.model_bound,
        insufficient: is_budget(entry),
        shed: None,
        rate: chain.rate(),
    })
}

/// From one snapshot of the levels: the refusal by the limit that binds longest, or `None` if everything fits.
pub(super) fn judge(chain: &Chain, need: &Amounts, levels: &[f64], now_us: f64, rate: RateHeaders) -> Option<Refusal> {
    let blocking: Vec<(&ChainLimit, f64, Wait)> = chain
        .limits
        .iter()
        .zip(levels)
        .filter_map(|(entry, &level)| Some((entry, level, wait(entry, level, need.of(entry.terms.unit), now_us)?)))
        .collect();
    let (entry, level, worst) = blocking.iter().copied().reduce(|a, b| if rank(b.2) > rank(a.2) { b } else { a })?;
    let (retry_after, estimate) = match worst {
        Wait::Never | Wait::Unknown => (None, false),
        Wait::True(after) => {
            let guess = blocking.iter().any(|(_, _, wait)| matches!(wait, Wait::Estimate(_)));
            (Some(if guess { after.max(CONCURRENCY_RETRY) } else { after }), guess)
        }
        Wait::Estimate(after) => (Some(after), true),
    };
    Some(Refusal {
        retry_after,
        estimate,
        never_fits: worst == Wait::Never,
        model_bound: blocking.iter().all(|(entry, _, _)| entry.model_bound),
        ..refused_by(chain, entry, level, need, rate)
    })
}

/// Of a call that does not wait any longer, or not at all; `wait` is when its turn is expected. `None` if nothing waits.
pub(super) fn shed(
    chain: &Chain,
    queue: usize,
    need: &Amounts,
    answer: &Answer,
    rate: RateHeaders,
    wait: Option<Duration>,
    shed: Shed,
) -> Option<Refusal> {
    let refusal = judge(chain, need, &answer.levels, answer.now_us, rate).or_else(|| {
        // It would fit, and others are before it: what they wait for is named.
        let account = chain.queues[queue].account;
        let mut limits = chain.limits.iter().zip(&answer.levels);
        let (entry, level) = limits.find(|(entry, _)| entry.account == account && entry.wait.is_some())?;
        Some(refused_by(chain, entry, *level, need, rate))
    })?;
    // A guess, and the calls before it may take longer.
    let retry_after = wait.map(|wait| wait.max(CONCURRENCY_RETRY));
    Some(Refusal { retry_after, estimate: retry_after.is_some(), shed: Some(shed), ..refusal })
}

fn refused_by(chain: &Chain, entry: &ChainLimit, level: f64, need: &Amounts, rate: RateHeaders) -> Refusal {
    let account = &chain.accounts[entry.account];
    Refusal {
        level: account.level,
        subject: account.path.clone(),
        limit: entry.label.clone(),
        unit: entry.terms.unit,
        needed: need.of(entry.terms.unit) as u64,
        left: rate::left(entry.terms.most(), level),
        retry_after: None,
        estimate: false,
        never_fits: false,
        model_bound: entry.model_bound,
        insufficient: is_budget(entry),
        shed: None,
        rate,
    }
}

/// Until this limit lets `need` pass if nobody else spends; `None`: nothing is known. What ends at unknown times adds nothing.
pub(super) fn refill_time(entry: &ChainLimit, level: f64, need: f64, now_us: f64) -> Option<Duration> {
    match wait(entry, level, need, now_us) {
        None | Some(Wait::Estimate(_)) => Some(Duration::ZERO),
        Some(Wait::True(after)) => Some(after),
        Some(Wait::Never | Wait::Unknown) => None,
    }
}

/// A budget, as opposed to a rate: money, or what a new day gives back at the earliest. Clients that are told so give up,
/// which would be wrong for an hour's window: its end is a time to come back at.
fn is_budget(entry: &ChainLimit) -> bool {
    let slow = match &entry.limit.window {
        Window::Lifetime => true,
        Window::Calendar { period, .. } => matches!(period, CalendarPeriod::Day | CalendarPeriod::Month),
        Window::Bucket { .. } | Window::Held => false,
    };
    slow || entry.terms.unit == Unit::NanoUsd
}

fn never_fits(terms: &Terms, need: f64) -> bool {
    need > terms.most()
}

fn rank(wait: Wait) -> (u8, Duration) {
    match wait {
        Wait::Estimate(after) => (0, after),
        Wait::True(after) => (1, after),
        Wait::Unknown => (2, Duration::ZERO),
        Wait::Never => (3, Duration::ZERO),
    }
}

fn wait(entry: &ChainLimit, level: f64, need: f64, now_us: f64) -> Option<Wait> {
    let terms = &entry.terms;
    let slot = super::account::Slot { level, at: now_us };
    if slot.fits(terms, need) {
        return None;
    }
    if never_fits(terms, need) {
        return Some(Wait::Never);
    }
    Some(match (&entry.limit.window, terms.kind) {
        (_, Kind::Bucket) if terms.rate > 0.0 => Wait::True(refill(terms, level, need)),
        (Window::Calendar { period, zone }, Kind::Calendar) => {
            let windows = ((level + need - terms.most()) / terms.cap).ceil().max(1.0) as u64;
            let start = calendar::start_after(*period, zone, now_us, windows);
            Wait::True(Duration::from_millis(((start - now_us) / 1000.0).ceil() as u64))
        }
        (_, Kind::Held) => Wait::Estimate(CONCURRENCY_RETRY),
        _ => Wait::Unknown,
    })
}

/// Whole milliseconds until the bucket fits `need`, by the very operations that the store will then perform.
fn refill(terms: &Terms, level: f64, need: f64) -> Duration {
    let mut ms = ((level + need - terms.most()) / terms.rate / 1000.0).ceil().max(0.0);
    if (level - ms * 1000.0 * terms.rate).max(0.0) + need > terms.most() {
        ms += 1.0;
    }
    Duration::from_millis(ms as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::holding::Holding;
    use crate::quota::rule::{Ceilings, Limit, OnLimit, OnStoreFailure, Pattern, Rule, Subject};

    fn refused(limit: Limit) -> Refusal {
        let matcher = Pattern::any();
        let rule = Rule {
            level: Level::Global,
            matcher,
            models: vec![],
            name: None,
            limits: vec![limit],
            ceilings: Ceilings::default(),
            on_limit: OnLimit::Reject,
            on_store_failure: OnStoreFailure::Closed,
            holding: Holding::default(),
            shadow: false,
        };
        let chain = Chain::resolve(&[rule], &Subject::default(), &["m"]);
        let noon = 1_780_315_200e6;
        let need = Amounts::held(5, 5, 10);
        judge(&chain, &need, &[100.0], noon, RateHeaders::default()).expect("nothing is left")
    }

    #[test]
    fn a_budget_is_money_or_comes_back_with_a_new_day() {
        use CalendarPeriod::{Day, Hour, Minute, Month, Second};
        let calendar = |period| Window::Calendar { period, zone: jiff::tz::TimeZone::UTC };
        let bucket = |seconds| Window::Bucket { period: Duration::from_secs(seconds), burst: 100 };
        for (unit, window, budget, wait) in [
            (Unit::Tokens, calendar(Second), false, Some(1.0)),
            (Unit::Tokens, calendar(Minute), false, Some(60.0)),
            (Unit::Requests, calendar(Hour), false, Some(3600.0)),
            (Unit::Tokens, calendar(Day), true, Some(12.0 * 3600.0)),
            (Unit::OutputTokens, calendar(Month), true, Some(29.5 * 86400.0)),
            (Unit::Tokens, Window::Lifetime, true, None),
            (Unit::NanoUsd, bucket(60), true, Some(6.0)),
            (Unit::NanoUsd, calendar(Minute), true, Some(60.0)),
            (Unit::Tokens, bucket(86400), false, Some(8640.0)),
            (Unit::Concurrency, Window::Held, false, Some(1.0)),
        ] {
            let refusal = refused(Limit { unit, amount: 100, window: window.clone() });
            // To the hundredth: the refill of a bucket is rounded up to a millisecond.
            let hundredths = |seconds: f64| (seconds * 100.0) as u64;
            let found = refusal.retry_after.map(|after| hundredths(after.as_secs_f64()));
            assert_eq!((refusal.insufficient, found), (budget, wait.map(hundredths)), "{unit:?} {window:?}");
        }
    }
}
