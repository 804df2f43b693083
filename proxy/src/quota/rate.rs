//! What `x-ratelimit-*` says: per unit the limit with the least remaining after this hold.

use std::time::Duration;

use super::account::Kind;
use super::chain::{Calendars, Chain, ChainLimit};
use super::rule::Unit;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateHeaders {
    pub requests: Option<Rate>,
    pub tokens: Option<Rate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The most that `remaining` can reach.
    pub limit: u64,
    pub remaining: u64,
    /// Until empty of use (bucket) or until the window ends (calendar); a lifetime limit never resets.
    pub reset: Option<Duration>,
}

impl RateHeaders {
    /// From the levels of all limits of the chain at `now_us`. Money, concurrency and shadow limits never show here.
    pub(super) fn of(chain: &Chain, calendars: &Calendars, levels: &[f64], now_us: f64) -> Self {
        let mut headers = Self::default();
        let mut windows = calendars.windows.iter();
        for (entry, &level) in chain.limits.iter().zip(levels) {
            let window = if entry.terms.kind == Kind::Calendar { windows.next() } else { None };
            if entry.terms.shadow {
                continue;
            }
            let slot = match entry.terms.unit {
                Unit::Requests => &mut headers.requests,
                Unit::Tokens | Unit::InputTokens | Unit::OutputTokens => &mut headers.tokens,
                Unit::NanoUsd | Unit::Concurrency => continue,
            };
            let end = window.and_then(|w| w.end(w.start(now_us)?));
            let rate = Rate::of(entry, level, end.map(|end| end - now_us));
            if slot.is_none_or(|known| rate.binds_before(&known)) {
                *slot = Some(rate);
            }
        }
        headers
    }
}

impl Rate {
    fn of(entry: &ChainLimit, level: f64, window_left_us: Option<f64>) -> Self {
        let terms = &entry.terms;
        let reset_us = match terms.kind {
            Kind::Bucket => (terms.rate > 0.0).then(|| level / terms.rate),
            Kind::Calendar => window_left_us,
            Kind::Lifetime | Kind::Held => None,
        };
        Self {
            limit: terms.most() as u64,
            remaining: left(terms.most(), level),
            reset: reset_us.map(|us| Duration::from_micros(us.ceil() as u64)),
        }
    }

    /// Least remaining first, ties to the longest reset, where never is the longest.
    fn binds_before(&self, other: &Self) -> bool {
        let reset = |rate: &Self| rate.reset.unwrap_or(Duration::MAX);
        (self.remaining, std::cmp::Reverse(reset(self))) < (other.remaining, std::cmp::Reverse(reset(other)))
    }
}

/// Whole units left; debt shows as nothing left. A refill that rounding left a hair short of a unit counts as that unit.
pub(super) fn left(cap: f64, level: f64) -> u64 {
    (cap - level + 1e-6).floor().max(0.0) as u64
}
