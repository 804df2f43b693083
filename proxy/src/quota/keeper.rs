//! Leases that this process holds, and the task that keeps them alive in the store: renewal at a third of their time,
//! with the streamed count as checkpoint. A lease that the store has lost is written anew, unless it ended meanwhile.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Shared;
use super::account::Amounts;
use super::chain::Chain;
use super::lease::LeaseId;
use super::reservation::dispatch_mark;
use super::rule::Demand;
use super::stats::Operation;
use super::store::{Renewal, Status};

const TICK: Duration = Duration::from_millis(100);
/// Renewals in flight at once; they are pipelined on one connection.
const IN_FLIGHT: usize = 64;

/// A lease as its holder knows it.
#[derive(Debug)]
pub struct Live {
    pub id: LeaseId,
    pub streamed: AtomicU64,
    state: Mutex<State>,
    stored: AtomicBool,
    /// What the call was settled at, once it was.
    ended: OnceLock<Amounts>,
}

#[derive(Debug)]
struct State {
    chain: Arc<Chain>,
    demand: Demand,
    dispatched: bool,
    next_renewal: Instant,
    /// The store has lost the lease: the next renewal writes it anew.
    lost: bool,
}

impl Live {
    pub fn new(id: LeaseId, chain: Arc<Chain>, demand: Demand, undispatched_ttl: Duration) -> Self {
        let next_renewal = Instant::now() + undispatched_ttl / 3;
        let state = State { chain, demand, dispatched: false, next_renewal, lost: false };
        Self {
            id,
            streamed: AtomicU64::new(0),
            state: Mutex::new(state),
            stored: AtomicBool::new(false),
            ended: OnceLock::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn chain(&self) -> Arc<Chain> {
        self.state().chain.clone()
    }

    pub fn demand(&self) -> Demand {
        self.state().demand
    }

    pub fn is_dispatched(&self) -> bool {
        self.state().dispatched
    }

    /// A hold exists in the store; without one there is nothing to renew or settle there.
    pub fn stored(&self) {
        self.stored.store(true, Ordering::Relaxed);
    }

    pub fn is_stored(&self) -> bool {
        self.stored.load(Ordering::Relaxed)
    }

    pub fn amended(&self, chain: Arc<Chain>, demand: Demand) {
        let mut state = self.state();
        // The store counts the new candidate as undispatched; its mark follows with the next renewal.
        (state.chain, state.demand, state.dispatched) = (chain, demand, false);
        self.streamed.store(0, Ordering::Relaxed);
    }

    pub fn extended(&self, longer: Demand) {
        self.state().demand = longer;
    }

    pub fn dispatched(&self, ttl: Duration) {
        let mut state = self.state();
        state.dispatched = true;
        state.next_renewal = state.next_renewal.min(Instant::now() + dispatch_mark(ttl));
    }

    pub fn end(&self, actual: Amounts) {
        // A reservation resolves once: its permit is taken first.
        let _first = self.ended.set(actual);
    }

    /// The renewal to send if one is due, and the time of the one after it.
    fn due(&self, now: Instant, ttl: Duration, undispatched_ttl: Duration) -> Option<Renewal> {
        let mut state = self.state();
        if now < state.next_renewal || self.ended.get().is_some() {
            return None;
        }
        let ttl = if state.dispatched { ttl } else { undispatched_ttl };
        state.next_renewal = now + ttl / 3;
        let Demand { input, price, .. } = state.demand;
        let streamed = self.streamed.load(Ordering::Relaxed);
        Some(Renewal {
            id: self.id,
            held: Amounts::of_demand(&state.demand),
            checkpoint: Amounts::used(1, input, streamed, price.cost(input, streamed)),
            dispatched: state.dispatched,
            ttl,
            reassert: state.lost,
        })
    }

    fn lost(&self, now: Instant) {
        let mut state = self.state();
        (state.lost, state.next_renewal) = (true, now);
    }

    fn retry_at(&self, at: Instant) {
        let mut state = self.state();
        state.next_renewal = state.next_renewal.min(at);
    }
}

#[derive(Debug, Default)]
pub(super) struct Registry {
    leases: Mutex<HashMap<LeaseId, Arc<Live>>>,
    /// Orgs that this process has resolved a chain for: those it reclaims.
    tags: Mutex<BTreeSet<String>>,
    /// Those of them that it has told the store of.
    introduced: Mutex<BTreeSet<String>>,
}

impl Registry {
    fn leases(&self) -> MutexGuard<'_, HashMap<LeaseId, Arc<Live>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn watch(&self, live: Arc<Live>) {
        self.leases().insert(live.id, live);
    }

    pub fn forget(&self, id: LeaseId) {
        self.leases().remove(&id);
    }

    pub fn saw(&self, chain: &Chain) {
        if !chain.is_free() {
            self.tags.lock().unwrap_or_else(PoisonError::into_inner).insert(chain.tag.clone());
        }
    }

    pub fn tags(&self) -> Vec<String> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub fn is_introduced(&self, tag: &str) -> bool {
        self.introduced.lock().unwrap_or_else(PoisonError::into_inner).contains(tag)
    }

    pub fn introduced(&self, tag: &str) {
        self.introduced.lock().unwrap_or_else(PoisonError::into_inner).insert(tag.to_owned());
    }

    fn all(&self) -> Vec<Arc<Live>> {
        self.leases().values().cloned().collect()
    }
}

impl Shared {
    /// Renews the lease until it ends, where it has a deadline at all.
    pub(super) fn watch(&self, live: &Arc<Live>) {
        if self.store.outlives_process() {
            self.live.watch(live.clone());
        }
    }
}

pub(super) fn start(shared: Arc<Shared>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let tick = TICK.min(shared.options.undispatched_ttl / 10).max(Duration::from_millis(5));
        let mut ticks = tokio::time::interval(tick);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            renew_due(&shared).await;
        }
    })
}

async fn renew_due(shared: &Shared) {
    let (now, options) = (Instant::now(), &shared.options);
    let mut all = shared.live.all().into_iter();
    let mut in_flight = FuturesUnordered::new();
    loop {
        while in_flight.len() < IN_FLIGHT {
            let Some(live) = all.next() else { break };
            if let Some(renewal) = live.due(now, options.lease_ttl, options.undispatched_ttl) {
                in_flight.push(renew(shared, live, renewal));
            }
        }
        if in_flight.next().await.is_none() {
            return;
        }
    }
}

async fn renew(shared: &Shared, live: Arc<Live>, renewal: Renewal) {
    let chain = live.chain();
    let answer = shared.stats.timed(Operation::Renew, shared.store.renew(&chain, &renewal)).await;
    match answer.map(|answer| answer.status) {
        Ok(Status::Absent) if live.ended.get().is_none() => {
            // Only a store that lost its memory forgets a live lease: the others are lost as well.
            shared.stats.reasserted();
            for other in shared.live.all() {
                other.lost(Instant::now());
            }
        }
        Ok(_) => {
            let reasserted = std::mem::replace(&mut live.state().lost, false);
            if let Some(actual) = live.ended.get().filter(|_| reasserted) {
                // It ended while it was written anew. Settling again is a no-op if the first settle came later.
                let again = shared.store.settle(&chain, live.id, actual).await;
                if let Err(error) = again {
                    tracing::warn!(%error, lease = %live.id, "a re-asserted lease is left to expire");
                }
            }
        }
        Err(_) => live.retry_at(Instant::now() + Duration::from_millis(500)),
    }
}
