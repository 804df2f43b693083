//! Exact quotas: reserve before a call, settle after it, over four levels at once. This file is the flow; arithmetic
//! is in `account`, identity in `chain`, explanations in `refusal`, and the two stores behind `store`.
//!
//! The life of a call: [`Quota::chain`] (cached) → [`Quota::reserve`] → [`Reservation::dispatched`] →
//! [`Reservation::streamed`]* → [`Reservation::settle`]. A reservation dropped before dispatch is refunded in full;
//! dropped after it, it is charged prompt plus what was streamed, marked estimated.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

pub mod account;
pub mod audit;
pub mod balance;
pub mod calendar;
pub mod chain;
mod changes;
mod codec;
pub(crate) mod holding;
pub(crate) mod identity;
mod journal;
mod keeper;
pub mod lease;
pub mod ledger;
pub mod lengths;
pub mod memory;
mod outage;
pub mod rate;
mod reclaim;
pub mod redis;
mod refusal;
mod reservation;
mod rule;
mod rulebook;
mod secret;
mod settler;
mod shadow;
pub mod slots;
pub mod stats;
pub mod store;
pub mod tier;
pub mod topup;
pub mod trial;
pub mod turns;
mod waiting;

pub use calendar::CalendarPeriod;
pub use chain::Chain;
pub use holding::{Bind, Holding, Overrun};
pub use journal::JournalError;
pub use lease::{LeaseId, OnExpiry};
pub use memory::Clock;
pub use outage::Figures;
pub use rate::{Rate, RateHeaders};
pub use redis::{RedisAddress, RedisOptions};
pub use refusal::{Refusal, Refused};
pub use reservation::{Outcome, Reservation};
pub use rule::{
    Ceilings, Demand, Level, Limit, MAX_AMOUNT, OnLimit, OnStoreFailure, Pattern, Price, Rule, Subject, Unit, Wait,
    Window,
};
pub use rulebook::{goes_on_without_store, needs_journal, warnings};
pub use secret::Secret;
pub use shadow::Shadowed;
pub use stats::{Snapshot, Stats};
pub use store::{Store, StoreError};
pub use tier::{Share, Tier};
pub use waiting::Patience;

use account::Amounts;
use keeper::Registry;
use outage::Outage;
use reservation::Pending;
use rulebook::Rulebook;
use settler::Settler;
use stats::Operation;
use store::{Answer, Ask, Status};
use waiting::{Lines, Stopped, Waited};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a dispatched lease lives without being renewed; renewal is at a third of it.
    pub lease_ttl: Duration,
    /// What happens to a dispatched lease whose gateway died.
    pub on_expiry: OnExpiry,
    /// How long a lease lives before dispatch; its expiry refunds in full, whatever `on_expiry`.
    pub undispatched_ttl: Duration,
    /// Calls that may be reserved and not yet settled; more are `Overloaded`.
    pub capacity: usize,
    /// Calls that may wait in queues at once, and bytes of their bodies; more are refused.
    pub waiting_calls: usize,
    pub waiting_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease_ttl: Duration::from_secs(60),
            on_expiry: OnExpiry::Charge,
            undispatched_ttl: Duration::from_secs(5),
            capacity: 20_000,
            waiting_calls: 5_000,
            waiting_bytes: 512 << 20,
        }
    }
}

/// What there is to tell of an admission.
#[derive(Debug)]
struct Admitted {
    rate: RateHeaders,
    shadowed: Vec<Shadowed>,
    /// Time that it waited for its turn.
    queued: Duration,
}

/// What the request path and the background tasks share.
#[derive(Debug)]
struct Shared {
    store: Store,
    options: Options,
    stats: Stats,
    live: Registry,
    outage: Outage,
    lines: Lines,
}

/// Whether traffic should come here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    Whole,
    /// The store is down, and every rule says to go on without it.
    Degraded(StoreError),
}

#[derive(Debug)]
pub struct Quota {
    shared: Arc<Shared>,
    rules: Rulebook,
    settler: Settler,
    tasks: Vec<JoinHandle<()>>,
}

impl Quota {
    /// Starts the settler, the keeper and the reclaimer: call it inside a tokio runtime.
    pub fn new(rules: Vec<Rule>, store: Store, options: Options) -> Arc<Self> {
        let (stats, live) = (Stats::default(), Registry::default());
        let (outage, lines) = (Outage::new(options.capacity), Lines::default());
        let shared = Arc::new(Shared { store, options, stats, live, outage, lines });
        shared.store.join();
        for warning in warnings(&rules, &shared.store) {
            tracing::warn!("{warning}");
        }
        let settler = Settler::start(shared.clone());
        if let Store::Memory(store) = &shared.store {
            // Leases of a dead process whose time is over already.
            shared.stats.reclaimed(&store.reclaim(options.on_expiry));
        }
        let mut tasks = vec![keeper::start(shared.clone()), reclaim::start(shared.clone())];
        tasks.extend(journal::start(&shared));
        tasks.extend(outage::debts::start(&shared));
        Arc::new(Self { shared, rules: Rulebook::new(rules), settler, tasks })
    }

    /// Other rules for every chain that is asked for from now on. Use stays: an account knows no limits. Chains that
    /// callers keep are theirs to ask for again; holds on them end as they began.
    pub fn adopt(&self, rules: Vec<Rule>) {
        for warning in warnings(&rules, &self.shared.store) {
            tracing::warn!("{warning}");
        }
        self.rules.adopt(rules);
    }

    /// Every account and limit that this subject must pass for a model known by these names (resolved name, alias).
    pub fn chain(&self, subject: &Subject, models: &[&str]) -> Arc<Chain> {
        self.rules.chain(subject, models, |chain| self.shared.live.saw(chain))
    }

    /// Holds `demand` at every level, or nothing at any. Cancel-safe: a future dropped half way cancels its hold.
    pub async fn reserve(&self, chain: &Arc<Chain>, demand: Demand) -> Result<Reservation, Refused> {
        self.admit(chain, demand, Patience::default()).await
    }

    /// As [`Quota::reserve`], of a call that may wait for its turn where a limit queues.
    pub async fn admit(&self, chain: &Arc<Chain>, demand: Demand, patience: Patience) -> Result<Reservation, Refused> {
        let need = Amounts::of_demand(&demand);
        if let Some(refusal) = refusal::before_store(chain, &demand) {
            return Err(self.shared.refused(refusal));
        }
        let id = LeaseId::random();
        let permit = self.settler.permit().ok_or(Refused::Overloaded)?;
        let mut pending = Pending::new(self.shared.clone(), chain.clone(), id, permit);
        if chain.is_free() {
            let admitted = self.shared.admitted(chain, &demand, &[], RateHeaders::default());
            return Ok(pending.held(demand, admitted, None));
        }
        let ask = Ask { id, need, hold: self.shared.hold() };
        let waited = if chain.queues.is_empty() {
            let answer = self.shared.ask(chain, &ask).await;
            answer.map(Waited::not).map_err(|error| (!error.is_unsent(), Stopped::Store(error)))
        } else {
            // Boxed, so that calls that never wait do not carry it.
            Box::pin(self.shared.turn(chain, &ask, &patience)).await
        };
        match waited {
            Ok(Waited { answer, queued, served }) => match self.shared.judged(chain, &demand, &answer) {
                Ok(admitted) => Ok(pending.held(demand, Admitted { queued, ..admitted }, served)),
                Err(refused) => {
                    pending.nothing_held();
                    Err(refused)
                }
            },
            Err((may_be_known, stopped)) => {
                if !may_be_known {
                    pending.nothing_held();
                }
                let error = match stopped {
                    Stopped::Shed(refusal) => return Err(self.shared.refused(*refusal)),
                    Stopped::Store(error) => error,
                };
                let ticket = self.shared.without_store(chain, need, error)?;
                Ok(pending.unstored(demand, ticket))
            }
        }
    }

    /// What one request may ask for, whatever is held for it.
    pub fn within_ceilings(&self, chain: &Chain, worst: &Demand) -> Result<(), Refused> {
        refusal::over_ceiling(chain, worst).map_or(Ok(()), |refusal| Err(self.shared.refused(refusal)))
    }

    /// Whether traffic should come here, or why not. A store that is down is no reason where every rule goes on without
    /// it: all gateways would be emptied at once.
    pub fn ready(&self) -> Result<Readiness, StoreError> {
        match self.shared.store.health() {
            Ok(()) => Ok(Readiness::Whole),
            // A node of a Cluster is the trouble of its own orgs.
            Err(error) if self.rules.go_on_without_store() || self.shared.store.serves_some() => {
                Ok(Readiness::Degraded(error))
            }
            Err(error) => Err(error),
        }
    }

    pub fn stats(&self) -> Snapshot {
        let shared = &self.shared;
        let figures = shared.outage.figures(shared.store.health().is_err());
        let (queue_depth, queue_wait) = shared.lines.figures();
        let mut snapshot = Snapshot { queue_depth, queue_wait, ..shared.stats.snapshot(figures) };
        self.rules.begin_at_zero(&mut snapshot.refusals, &mut snapshot.shadow_refusals);
        snapshot
    }

    /// Waits until every reservation has resolved and every settlement and debt is with the store, or until the deadline.
    /// False when something is left; its leases expire in the store. A journal is up to date afterwards.
    pub async fn drain(&self, deadline: Duration) -> bool {
        let idle = async {
            let Shared { stats, outage, .. } = &*self.shared;
            while !(self.settler.is_idle() && stats.live_leases() == 0 && outage.is_settled()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let all = tokio::time::timeout(deadline, idle).await.is_ok();
        journal::flush(&self.shared).await;
        let owed = self.shared.outage.figures(false).owed;
        if owed > 0 {
            tracing::error!(tokens = owed, "the store stayed away: use that it never learns of");
        }
        all
    }

    pub fn store(&self) -> &Store {
        &self.shared.store
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Shared {
    /// How long a hold lasts before dispatch. Those that cannot outlive their holder have no deadline.
    fn hold(&self) -> Duration {
        if self.store.outlives_process() { self.options.undispatched_ttl } else { Duration::MAX }
    }

    /// One reserve; a second one only if the first was refused while dead leases could be reclaimed.
    async fn ask(&self, chain: &Arc<Chain>, ask: &Ask) -> Result<Answer, StoreError> {
        let silence = reclaim::introduce(self, chain).await;
        let answer = self.stats.timed(Operation::Reserve, self.store.reserve(chain, ask)).await;
        let answer = answer.map_err(|error| reclaim::first_cause(silence, error))?;
        let reclaim = reclaim::now(self, &chain.tag);
        if !(answer.due && tokio::time::timeout(self.store.patience(), reclaim).await.unwrap_or(false)) {
            return Ok(answer);
        }
        self.stats.timed(Operation::Reserve, self.store.reserve(chain, ask)).await
    }

    /// What an answer means for the client: its rate headers, or the refusal that explains itself.
    fn judged(&self, chain: &Chain, demand: &Demand, answer: &Answer) -> Result<Admitted, Refused> {
        let rate = self.told(chain, answer);
        match answer.status {
            Status::Done => Ok(self.admitted(chain, demand, &answer.levels, rate)),
            Status::Full => {
                let need = Amounts::of_demand(demand);
                let refusal = refusal::judge(chain, &need, &answer.levels, answer.now_us, rate);
                Err(refusal.map_or_else(|| Refused::Store(unexplained()), |refusal| self.refused(refusal)))
            }
            other => Err(Refused::Store(StoreError::Unreadable(format!("status {other:?}")))),
        }
    }

    /// Rate headers of an answer; it is remembered.
    fn told(&self, chain: &Chain, answer: &Answer) -> RateHeaders {
        let rate = RateHeaders::of(chain, &chain.calendars(answer.now_us), &answer.levels, answer.now_us);
        chain.remember_rate(rate);
        self.outage.saw(chain, &answer.levels);
        rate
    }

    fn admitted(&self, chain: &Chain, demand: &Demand, levels: &[f64], rate: RateHeaders) -> Admitted {
        let shadowed = shadow::of(chain, demand, levels);
        shadowed.iter().for_each(|by| self.stats.shadowed(by.level, &by.limit));
        Admitted { rate, shadowed, queued: Duration::ZERO }
    }

    fn refused(&self, refusal: Refusal) -> Refused {
        self.stats.refused(refusal.level, &refusal.limit);
        Refused::Limit(Box::new(refusal))
    }
}

fn unexplained() -> StoreError {
    StoreError::Unreadable("a refusal that no limit explains".to_owned())
}
