//! Counters of this process: the ledger invariant of its own leases, refusals, and the store's latency.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::outage::Figures;
use super::rule::Level;
use super::store::{Reclaimed, StoreError};

/// Upper bounds of the latency histogram, seconds; the last bucket is open.
pub const LATENCY_BOUNDS: [f64; 11] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25];

/// Upper bounds of the histogram of waits, seconds.
pub const WAIT_BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Reserve,
    Amend,
    Extend,
    Renew,
    Settle,
    Cancel,
    Reclaim,
}

impl Operation {
    pub const ALL: [Self; 7] =
        [Self::Reserve, Self::Amend, Self::Extend, Self::Renew, Self::Settle, Self::Cancel, Self::Reclaim];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserve => "reserve",
            Self::Amend => "amend",
            Self::Extend => "extend",
            Self::Renew => "renew",
            Self::Settle => "settle",
            Self::Cancel => "cancel",
            Self::Reclaim => "reclaim",
        }
    }
}

#[derive(Debug, Default)]
struct Latency {
    buckets: [AtomicU64; LATENCY_BOUNDS.len() + 1],
    sum_us: AtomicU64,
    errors: AtomicU64,
}

/// By level and label of the limit.
pub(super) type Refusals = BTreeMap<(Level, String), u64>;

#[derive(Debug, Default)]
pub struct Stats {
    books: Mutex<Books>,
    expired: AtomicU64,
    late: AtomicU64,
    lost: AtomicU64,
    reasserted: AtomicU64,
    reclaimed_leases: AtomicU64,
    refusals: Mutex<Refusals>,
    shadow_refusals: Mutex<Refusals>,
    extension_refusals: Mutex<Refusals>,
    latency: [Latency; Operation::ALL.len()],
}

/// How long calls waited for their turn, those included that left without one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waits {
    /// Not cumulative; one more than [`WAIT_BOUNDS`].
    pub buckets: [u64; WAIT_BOUNDS.len() + 1],
    pub sum: Duration,
}

impl Waits {
    pub(super) fn add(&mut self, wait: Duration) {
        let bucket = WAIT_BOUNDS.iter().position(|bound| wait.as_secs_f64() <= *bound).unwrap_or(WAIT_BOUNDS.len());
        self.buckets[bucket] += 1;
        self.sum += wait;
    }
}

/// The sides of the ledger invariant, which holds at every look: they change together.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    reserved: u64,
    settled: u64,
    refunded: u64,
    held: u64,
    leases: u64,
    overrun: u64,
}

impl Books {
    fn ended(&mut self, held: u64) {
        self.held -= held;
        self.leases -= 1;
    }
}

/// Tokens unless named otherwise, cumulative except `held` and `leases`. Of the leases that this process made:
/// `reserved == settled + refunded + expired + held`, or something leaked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub reserved: u64,
    pub settled: u64,
    pub refunded: u64,
    /// Charged by expiry, of leases that other gateways left behind and this one reclaimed.
    pub expired: u64,
    pub held: u64,
    /// Live leases.
    pub leases: u64,
    /// Used beyond the hold; part of both `reserved` and `settled`.
    pub overrun: u64,
    /// Leases that had expired before this process settled them.
    pub late_settles: u64,
    /// Leases that the store had forgotten when they were settled.
    pub lost_leases: u64,
    /// Renewals that found a store without its memory.
    pub reasserts: u64,
    pub reclaimed_leases: u64,
    pub refusals: Refusals,
    /// What shadow limits would have refused.
    pub shadow_refusals: Refusals,
    /// Extensions that a limit refused; some were granted when they were asked for again.
    pub extension_refusals: Refusals,
    pub store: Vec<StoreLatency>,
    pub outage: Figures,
    /// Calls that wait now, by tier.
    pub queue_depth: Vec<(String, u64)>,
    pub queue_wait: Waits,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StoreLatency {
    pub operation: Operation,
    /// Not cumulative; one more than [`LATENCY_BOUNDS`].
    pub buckets: Vec<u64>,
    pub sum: Duration,
    pub errors: u64,
}

impl Snapshot {
    /// Must be 0.
    pub fn leaked(&self) -> i64 {
        let resolved = self.settled + self.refunded + self.held;
        i64::try_from(self.reserved).unwrap_or(i64::MAX) - i64::try_from(resolved).unwrap_or(i64::MAX)
    }
}

impl Stats {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reserved(&self, tokens: f64) {
        let (tokens, mut books) = (tokens as u64, self.books());
        books.reserved += tokens;
        books.held += tokens;
        books.leases += 1;
    }

    pub(super) fn amended(&self, old: f64, new: f64) {
        let (old, new, mut books) = (old as u64, new as u64, self.books());
        books.refunded += old;
        books.reserved += new;
        books.held += new;
        books.held -= old;
    }

    pub(super) fn extended(&self, tokens: f64) {
        let (tokens, mut books) = (tokens as u64, self.books());
        books.reserved += tokens;
        books.held += tokens;
    }

    pub(super) fn settled(&self, held: f64, actual: f64) {
        let (held, actual, mut books) = (held as u64, actual as u64, self.books());
        let overrun = actual.saturating_sub(held);
        books.reserved += overrun;
        books.overrun += overrun;
        books.settled += actual;
        books.refunded += held.saturating_sub(actual);
        books.ended(held);
    }

    pub(super) fn settled_late(&self, held: f64, actual: f64) {
        self.late.fetch_add(1, Relaxed);
        self.settled(held, actual);
    }

    /// A store that forgot a lease has, in effect, given its tokens back.
    pub(super) fn lost(&self, held: f64) {
        self.lost.fetch_add(1, Relaxed);
        let (held, mut books) = (held as u64, self.books());
        books.refunded += held;
        books.ended(held);
    }

    pub(super) fn reasserted(&self) {
        self.reasserted.fetch_add(1, Relaxed);
    }

    pub(super) fn reclaimed(&self, done: &Reclaimed) {
        self.reclaimed_leases.fetch_add(done.leases, Relaxed);
        self.expired.fetch_add(done.charged as u64, Relaxed);
    }

    pub(super) fn refused(&self, level: Level, limit: &str) {
        one_more(&self.refusals, level, limit);
    }

    pub(super) fn shadowed(&self, level: Level, limit: &str) {
        one_more(&self.shadow_refusals, level, limit);
    }

    pub(super) fn extension_refused(&self, level: Level, limit: &str) {
        one_more(&self.extension_refusals, level, limit);
    }

    pub(super) fn live_leases(&self) -> u64 {
        self.books().leases
    }

    /// Measures one call of the store.
    pub(super) async fn timed<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let start = Instant::now();
        let result = call.await;
        let took = start.elapsed();
        let latency = &self.latency[operation as usize];
        let bucket =
            LATENCY_BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(LATENCY_BOUNDS.len());
        latency.buckets[bucket].fetch_add(1, Relaxed);
        latency.sum_us.fetch_add(took.as_micros() as u64, Relaxed);
        latency.errors.fetch_add(u64::from(result.is_err()), Relaxed);
        result
    }

    pub(super) fn snapshot(&self, outage: Figures) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        let latency = |operation: Operation| {
            let latency = &self.latency[operation as usize];
            StoreLatency {
                operation,
                buckets: latency.buckets.iter().map(read).collect(),
                sum: Duration::from_micros(read(&latency.sum_us)),
                errors: read(&latency.errors),
            }
        };
        let Books { reserved, settled, refunded, held, leases, overrun } = *self.books();
        Snapshot {
            reserved,
            settled,
            refunded,
            expired: read(&self.expired),
            held,
            leases,
            overrun,
            late_settles: read(&self.late),
            lost_leases: read(&self.lost),
            reasserts: read(&self.reasserted),
            reclaimed_leases: read(&self.reclaimed_leases),
            refusals: read_refusals(&self.refusals),
            shadow_refusals: read_refusals(&self.shadow_refusals),
            extension_refusals: read_refusals(&self.extension_refusals),
            store: Operation::ALL.map(latency).to_vec(),
            outage,
            queue_depth: Vec::new(),
            queue_wait: Waits::default(),
        }
    }
}

fn read_refusals(refusals: &Mutex<Refusals>) -> Refusals {
    refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn one_more(refusals: &Mutex<Refusals>, level: Level, limit: &str) {
    let mut refusals = refusals.lock().unwrap_or_else(PoisonError::into_inner);
    match refusals.get_mut(&(level, limit.to_owned())) {
        Some(count) => *count += 1,
        None => {
            refusals.insert((level, limit.to_owned()), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn nothing_leaks_at_any_look() {
        let (stats, done) = (Stats::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| {
                for call in 0..200_000 {
                    stats.reserved(1000.0);
                    if call % 3 == 0 {
                        stats.amended(1000.0, 500.0);
                        stats.settled(500.0, 700.0);
                    } else {
                        stats.settled(1000.0, 200.0);
                    }
                }
                done.store(true, Relaxed);
            });
            while !done.load(Relaxed) {
                assert_eq!(stats.snapshot(Figures::default()).leaked(), 0);
            }
            calls.join().expect("no panic");
        });
    }
}
