//! The arithmetic of one account: pure, time is an argument. The Lua scripts perform the same operations in the
//! same order on the same doubles, so both stores agree bit for bit.
//!
//! State is free of limits: a bucket stores what is `drained`, never what is left, so an edited limit is in force at once.

use super::rule::{Demand, MAX_AMOUNT, Unit};

/// Tokens of either kind saturate here: their sum is still an exact double.
const MAX_TOKENS: f64 = (1u64 << 52) as f64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bucket,
    Calendar,
    Lifetime,
    Held,
}

/// Identity of one limit inside the account of its subject; see `chain::limit_id`.
pub type LimitId = [u8; 8];

/// One limit as the arithmetic sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    pub id: LimitId,
    pub kind: Kind,
    pub unit: Unit,
    /// The most that can be used at once: the burst of a bucket, else the amount.
    pub cap: f64,
    /// The part of `cap` that is kept for callers of higher tiers.
    pub kept: f64,
    /// A bucket's refill in units per microsecond; the nominal length in microseconds of a calendar window; else 0.
    pub rate: f64,
    /// Counted only.
    pub shadow: bool,
}

impl Terms {
    /// What a level may reach, as the stores see it: they only count a shadow limit.
    pub fn ceiling(&self) -> f64 {
        if self.shadow { f64::INFINITY } else { self.written() }
    }

    /// What a calendar window that has passed forgives of a debt. A shadow limit has none: nobody was kept from using more.
    pub fn forgiven(&self) -> f64 {
        if self.shadow { f64::INFINITY } else { self.cap }
    }

    /// The most that a caller of this tier can use at once.
    pub fn most(&self) -> f64 {
        self.cap - self.kept
    }

    /// What the limit itself lets a level reach. A bucket refills in fractions, whose rounding must not refuse what a promised
    /// `retry-after` lets in; the slack is far below one unit and does not add up. Everything else counts whole units.
    pub fn written(&self) -> f64 {
        match self.kind {
            Kind::Bucket => self.most() + (self.cap * 1e-12 + 1e-6),
            Kind::Calendar | Kind::Lifetime | Kind::Held => self.most(),
        }
    }
}

/// What one call holds or used, per unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amounts {
    pub requests: f64,
    pub input: f64,
    pub output: f64,
    pub nano_usd: f64,
    pub concurrency: f64,
}

impl Amounts {
    /// What a call holds before it is known what it uses.
    pub fn of_demand(demand: &Demand) -> Self {
        Self::held(demand.input, demand.output, demand.nano_usd())
    }

    /// A call in flight. Absurd counts saturate where doubles stay exact; `refusal` turns them away where they matter.
    pub fn held(input: u64, output: u64, nano_usd: u64) -> Self {
        Self { concurrency: 1.0, ..Self::used(1, input, output, nano_usd) }
    }

    /// A call that has ended: whatever it used, it no longer runs.
    pub fn used(requests: u64, input: u64, output: u64, nano_usd: u64) -> Self {
        let at_most = |count: u64, most: f64| (count as f64).min(most);
        Self {
            requests: at_most(requests, MAX_AMOUNT as f64),
            input: at_most(input, MAX_TOKENS),
            output: at_most(output, MAX_TOKENS),
            nano_usd: at_most(nano_usd, MAX_AMOUNT as f64),
            concurrency: 0.0,
        }
    }

    pub fn tokens(&self) -> f64 {
        self.input + self.output
    }

    pub fn of(&self, unit: Unit) -> f64 {
        match unit {
            Unit::Requests => self.requests,
            Unit::Tokens => self.tokens(),
            Unit::InputTokens => self.input,
            Unit::OutputTokens => self.output,
            Unit::NanoUsd => self.nano_usd,
            Unit::Concurrency => self.concurrency,
        }
    }
}

/// The state of one limit. `level` is what is drained (bucket), used in the window (calendar), used (lifetime) or in
/// flight (concurrency); `at` is when a bucket was last brought forward, or the start of the calendar window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slot {
    pub level: f64,
    pub at: f64,
}

impl Slot {
    /// Brings the slot forward to `now`; `start` is the start of the calendar window that holds `now`.
    /// A clock that went backwards changes nothing: neither refill nor roll-over is ever repeated.
    pub fn advanced(self, terms: &Terms, now: f64, start: f64) -> Self {
        match terms.kind {
            Kind::Bucket if self.at == 0.0 => Self { level: self.level, at: now },
            Kind::Bucket if now > self.at => {
                Self { level: (self.level - (now - self.at) * terms.rate).max(0.0), at: now }
            }
            Kind::Calendar if self.at == 0.0 => Self { level: self.level, at: start },
            Kind::Calendar if start > self.at => {
                // Debt carries: each window that passed forgives one limit's worth, no more.
                let passed = ((start - self.at) / terms.rate + 0.5).floor().max(1.0);
                Self { level: (self.level - passed * terms.forgiven()).max(0.0), at: start }
            }
            _ => self,
        }
    }

    /// Nothing needed always fits: a free model is not stopped by a money limit in debt.
    pub fn fits(self, terms: &Terms, need: f64) -> bool {
        need == 0.0 || self.level + need <= terms.ceiling()
    }

    /// Replaces `held` by `actual`. Less: the rest comes back, into the window that admitted it (`epoch`) or nowhere.
    /// More: charged at `now`, whatever the limit; that is debt.
    pub fn resolved(self, terms: &Terms, held: f64, actual: f64, epoch: f64, now: f64, start: f64) -> Self {
        let change = actual - held;
        if change > 0.0 {
            let here = self.advanced(terms, now, start);
            return Self { level: here.level + change, ..here };
        }
        if change < 0.0 && (terms.kind != Kind::Calendar || epoch == self.at) {
            // A refund that the floor cuts is capacity that has refilled already.
            return Self { level: (self.level + change).max(0.0), ..self };
        }
        self
    }
}

/// Cumulative tokens of one account. At any moment: reserved = settled + refunded + expired + held by live leases.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    pub reserved: f64,
    pub settled: f64,
    pub refunded: f64,
    /// Charged because nobody settled in time.
    pub expired: f64,
}

/// How a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Settle,
    Expire,
    /// A settle after expiry: corrects the charge that expiry made.
    Late,
}

impl Totals {
    pub fn reserve(&mut self, tokens: f64) {
        self.reserved += tokens;
    }

    /// An overrun counts as reserved in the instant it is charged, which keeps the invariant and every total monotone.
    pub fn resolve(&mut self, ending: Ending, held: f64, actual: f64) {
        let change = actual - held;
        if change > 0.0 {
            self.reserved += change;
        } else {
            self.refunded -= change;
        }
        match ending {
            Ending::Settle => self.settled += actual,
            Ending::Expire => self.expired += actual,
            // The part already charged stays where expiry booked it.
            Ending::Late if change > 0.0 => self.settled += change,
            Ending::Late => self.reserved -= change,
        }
    }

    /// What live leases must hold for the books to balance.
    pub fn held(&self) -> f64 {
        self.reserved - self.settled - self.refunded - self.expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(cap: f64, rate: f64) -> Terms {
        Terms { id: [0; 8], kind: Kind::Bucket, unit: Unit::Tokens, cap, kept: 0.0, rate, shadow: false }
    }

    fn calendar(cap: f64, length: f64) -> Terms {
        Terms { id: [0; 8], kind: Kind::Calendar, unit: Unit::Tokens, cap, kept: 0.0, rate: length, shadow: false }
    }

    #[test]
    fn a_bucket_refills_with_time_and_never_with_a_clock_that_goes_back() {
        let terms = bucket(100.0, 0.5);
        let slot = Slot { level: 80.0, at: 1000.0 };
        assert_eq!(slot.advanced(&terms, 1100.0, 0.0), Slot { level: 30.0, at: 1100.0 });
        assert_eq!(slot.advanced(&terms, 5000.0, 0.0), Slot { level: 0.0, at: 5000.0 });
        assert_eq!(slot.advanced(&terms, 10.0, 0.0), slot);
    }

    #[test]
    fn calendar_debt_carries_over_each_skipped_window() {
        let terms = calendar(100.0, 10.0);
        let slot = Slot { level: 350.0, at: 1000.0 };
        assert_eq!(slot.advanced(&terms, 1011.0, 1010.0).level, 250.0);
        assert_eq!(slot.advanced(&terms, 1021.0, 1020.0).level, 150.0);
        assert_eq!(slot.advanced(&terms, 1099.0, 1090.0).level, 0.0);
        assert_eq!(slot.advanced(&terms, 900.0, 900.0), slot, "an older window never comes back");
    }

    #[test]
    fn a_refund_lands_in_the_admitting_window_only_and_an_overrun_in_the_current_one() {
        let terms = calendar(100.0, 10.0);
        let rolled = Slot { level: 40.0, at: 1010.0 };
        assert_eq!(rolled.resolved(&terms, 30.0, 10.0, 1000.0, 1012.0, 1010.0), rolled);
        assert_eq!(rolled.resolved(&terms, 30.0, 10.0, 1010.0, 1012.0, 1010.0).level, 20.0);
        let late = rolled.resolved(&terms, 10.0, 9000.0, 1000.0, 1022.0, 1020.0);
        assert_eq!(late, Slot { level: 8990.0, at: 1020.0 }, "9,000 used after roll-over are not free");
    }

    #[test]
    fn totals_balance_for_every_ending() {
        for (ending, held, actual) in [
            (Ending::Settle, 3000.0, 2200.0),
            (Ending::Settle, 10.0, 9000.0),
            (Ending::Expire, 3000.0, 2000.0),
            (Ending::Expire, 30.0, 40.0),
        ] {
            let mut totals = Totals::default();
            totals.reserve(held);
            assert_eq!(totals.held(), held);
            totals.resolve(ending, held, actual);
            assert_eq!(totals.held(), 0.0, "{ending:?} {held} {actual}");
            totals.resolve(Ending::Late, actual, 7.0);
            assert_eq!(totals.held(), 0.0, "late after {ending:?}");
        }
    }
}
