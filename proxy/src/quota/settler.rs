//! Takes the resolutions of reservations to the store, so that no request waits for them and none is lost while the
//! store is down. Every queue here is bounded by `Options::capacity`; when all are full, new calls are `Overloaded`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{BoxFuture, ready};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::OwnedPermit;

use super::Shared;
use super::account::Amounts;
use super::chain::Chain;
use super::keeper::Live;
use super::lease::LeaseId;
use super::outage::Ticket;
use super::stats::Operation;
use super::store::{Answer, Status, Store, StoreError};
use super::waiting::Served;

/// Settlements in flight at once; they are pipelined on one connection.
const IN_FLIGHT: usize = 256;
/// After an outage: 20 every 20 ms, at most 1,000 per second, so that new reserves go first.
const REPLAY_EVERY: Duration = Duration::from_millis(20);
const REPLAY_BATCH: usize = 20;
/// Parked ones that are looked at for that.
const REPLAY_LOOK: usize = 1000;
/// Times a store that is up may refuse a settlement.
const REFUSALS: u32 = 20;

/// One resolution on its way to the store.
#[derive(Debug)]
pub(super) struct Settlement {
    id: LeaseId,
    chain: Arc<Chain>,
    what: What,
    /// False for a call without limits: it is only counted.
    stored: bool,
    /// The turn that the call had in a queue.
    served: Option<Served>,
    attempts: u32,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Settle {
        held: f64,
        actual: Amounts,
    },
    /// Of a reserve that nobody waits for any more.
    Cancel,
}

impl Settlement {
    pub fn settle(live: &Live, actual: Amounts, served: Option<Served>) -> Self {
        let held = Amounts::of_demand(&live.demand()).tokens();
        let what = What::Settle { held, actual };
        Self { id: live.id, chain: live.chain(), what, stored: live.is_stored(), served, attempts: 0 }
    }

    pub fn cancel(id: LeaseId, chain: Arc<Chain>) -> Self {
        let stored = !chain.is_free();
        Self { id, chain, what: What::Cancel, stored, served: None, attempts: 0 }
    }

    fn actual(&self) -> Amounts {
        match self.what {
            What::Settle { actual, .. } => actual,
            What::Cancel => Amounts::default(),
        }
    }

    /// Tokens beyond what the call's turn was counted at.
    fn correction(&self) -> f64 {
        self.actual().tokens() - self.served.as_ref().map_or(0.0, |served| served.cost)
    }

    /// The store answers, and it refuses this one again and again: it will not be otherwise.
    fn is_hopeless(&self, error: &StoreError) -> bool {
        self.attempts >= REFUSALS && matches!(error, StoreError::Refused(_) | StoreError::Unreadable(_))
    }

    /// Left to its expiry in the store, so that it holds no place that other calls need.
    fn abandon(&self, shared: &Shared, error: &StoreError) {
        tracing::error!(%error, lease = %self.id, "settlement given up: the lease expires in the store");
        if let What::Settle { held, .. } = self.what {
            shared.stats.lost(held);
        }
    }

    fn count(&self, shared: &Shared, status: Status) {
        let What::Settle { held, actual } = self.what else { return };
        match status {
            // A retried settle that finds nothing was executed the first time.
            Status::Absent if self.attempts == 0 => shared.stats.lost(held),
            Status::Late => shared.stats.settled_late(held, actual.tokens()),
            _ => shared.stats.settled(held, actual.tokens()),
        }
    }
}

type Resolved = (Settlement, Result<Status, StoreError>);

/// What the settler receives.
pub(super) enum Work {
    Waiting(Settlement),
    /// On its way to the store, and counted among those in flight.
    Begun(BoxFuture<'static, Resolved>),
}

/// The right to resolve once without waiting.
#[derive(Debug)]
pub(super) enum Permit {
    /// The embedded store resolves at once, under its mutex.
    Direct,
    Queued {
        permit: OwnedPermit<Work>,
        in_flight: Arc<AtomicUsize>,
    },
    /// Admitted while the store was down: what is used is a debt.
    Unstored(Box<Ticket>),
}

impl Permit {
    pub fn send(self, shared: &Arc<Shared>, settlement: Settlement) {
        match (self, &shared.store) {
            (Self::Queued { permit, in_flight }, _) => {
                permit.send(begin(shared, settlement, &in_flight));
            }
            (Self::Unstored(ticket), _) => {
                shared.outage.ended(&ticket, &settlement.actual());
                settlement.count(shared, Status::Done);
            }
            (Self::Direct, Store::Memory(store)) if settlement.stored => {
                let answer = match settlement.what {
                    What::Settle { actual, .. } => store.settle(settlement.id, &actual),
                    What::Cancel => store.cancel(settlement.id),
                };
                settlement.count(shared, answer.status);
                if let Some(Served { chain, queue, .. }) = &settlement.served {
                    store.correct(chain, *queue, settlement.correction());
                }
                if matches!(settlement.what, What::Cancel) && !settlement.chain.queues.is_empty() {
                    store.leave(&settlement.chain, settlement.id);
                }
                shared.lines.wake(&settlement.chain);
            }
            (Self::Direct, _) => settlement.count(shared, Status::Done),
        }
    }
}

/// Puts a settlement on the wire at once where it can, so that it reaches the store before the reserve of a client that
/// has just seen the end of its call: that reserve may come before the settler's turn does.
fn begin(shared: &Arc<Shared>, settlement: Settlement, in_flight: &AtomicUsize) -> Work {
    let room = in_flight.load(Ordering::Relaxed) < IN_FLIGHT;
    // What a runtime drops at its end has no clock to be timed by.
    if !room || !settlement.stored || !shared.store.serves(&settlement.chain) || Handle::try_current().is_err() {
        return Work::Waiting(settlement);
    }
    in_flight.fetch_add(1, Ordering::Relaxed);
    let mut resolving = resolve(shared.clone(), settlement).boxed();
    Work::Begun(match resolving.poll_unpin(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(resolved) => ready(resolved).boxed(),
        Poll::Pending => resolving,
    })
}

#[derive(Debug)]
pub(super) struct Settler {
    /// `None` with the embedded store.
    queue: Option<mpsc::Sender<Work>>,
    /// Received, and not yet acknowledged by the store.
    outstanding: Arc<AtomicUsize>,
    /// On their way to the store, those that the settler has not received yet among them.
    in_flight: Arc<AtomicUsize>,
}

impl Settler {
    pub fn start(shared: Arc<Shared>) -> Self {
        let (outstanding, in_flight) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let queue = matches!(shared.store, Store::Redis(_)).then(|| {
            let capacity = shared.options.capacity.max(1);
            let (sender, receiver) = mpsc::channel(capacity);
            tokio::spawn(run(shared, receiver, outstanding.clone(), in_flight.clone(), capacity));
            sender
        });
        Self { queue, outstanding, in_flight }
    }

    /// Never waits: no permit means that more calls are unsettled than the configured capacity.
    pub fn permit(&self) -> Option<Permit> {
        match &self.queue {
            None => Some(Permit::Direct),
            Some(queue) => {
                let permit = queue.clone().try_reserve_owned().ok()?;
                Some(Permit::Queued { permit, in_flight: self.in_flight.clone() })
            }
        }
    }

    /// No permit is out, and nothing waits for the store.
    pub fn is_idle(&self) -> bool {
        let queued = self.queue.as_ref().map_or(0, |queue| queue.max_capacity() - queue.capacity());
        queued == 0 && self.outstanding.load(Ordering::Acquire) == 0
    }
}

/// Ends when the quota and every permit are gone and nothing is left to resolve.
async fn run(
    shared: Arc<Shared>,
    mut receiver: mpsc::Receiver<Work>,
    outstanding: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
    capacity: usize,
) {
    // Resolutions that the store did not take, oldest first.
    let mut parked: VecDeque<Settlement> = VecDeque::new();
    let mut in_flight: FuturesUnordered<BoxFuture<'static, Resolved>> = FuturesUnordered::new();
    let resolving = |settlement| {
        begun.fetch_add(1, Ordering::Relaxed);
        resolve(shared.clone(), settlement).boxed()
    };
    let mut replay = tokio::time::interval(REPLAY_EVERY);
    replay.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut open = true;
    while open || !parked.is_empty() || !in_flight.is_empty() {
        outstanding.store(parked.len() + in_flight.len(), Ordering::Release);
        // Full of unresolved leases it stops receiving: permits run out and new calls are answered `Overloaded`.
        let receiving = open && parked.len() < capacity && in_flight.len() < IN_FLIGHT;
        tokio::select! {
            Some((settlement, result)) = in_flight.next(), if !in_flight.is_empty() => {
                begun.fetch_sub(1, Ordering::Relaxed);
                match result {
                    Ok(status) => Settlement::count(&settlement, &shared, status),
                    Err(error) if settlement.is_hopeless(&error) && shared.store.serves(&settlement.chain) => {
                        settlement.abandon(&shared, &error);
                    }
                    Err(error) => park(&mut parked, settlement, &error),
                }
            }
            received = receiver.recv(), if receiving => match received {
                None => open = false,
                Some(Work::Begun(resolving)) => in_flight.push(resolving),
                Some(Work::Waiting(settlement)) if !settlement.stored => settlement.count(&shared, Status::Done),
                Some(Work::Waiting(settlement)) if shared.store.serves(&settlement.chain) => {
                    in_flight.push(resolving(settlement));
                }
                Some(Work::Waiting(settlement)) => parked.push_back(settlement),
            },
            _ = replay.tick(), if !parked.is_empty() => {
                let room = IN_FLIGHT.saturating_sub(in_flight.len()).min(REPLAY_BATCH);
                let serves = |settlement: &Settlement| shared.store.serves(&settlement.chain);
                in_flight.extend(served(&mut parked, room, serves).into_iter().map(resolving));
            }
        }
    }
    outstanding.store(0, Ordering::Release);
}

/// The oldest of the parked that the store may take now, at most `room`. Those of a node that is down go to the end, so that
/// they are not in the way of others.
fn served(parked: &mut VecDeque<Settlement>, room: usize, serves: impl Fn(&Settlement) -> bool) -> Vec<Settlement> {
    let mut taken = Vec::new();
    for _ in 0..parked.len().min(REPLAY_LOOK) {
        if taken.len() == room {
            break;
        }
        match parked.pop_front() {
            Some(settlement) if serves(&settlement) => taken.push(settlement),
            Some(settlement) => parked.push_back(settlement),
            None => break,
        }
    }
    taken
}

fn park(parked: &mut VecDeque<Settlement>, settlement: Settlement, error: &StoreError) {
    tracing::debug!(%error, lease = %settlement.id, "settlement parked until the store answers");
    parked.push_back(Settlement { attempts: settlement.attempts + 1, ..settlement });
}

async fn resolve(shared: Arc<Shared>, settlement: Settlement) -> Resolved {
    let (id, chain, store) = (settlement.id, &settlement.chain, &shared.store);
    let answer = match settlement.what {
        What::Settle { actual, .. } => shared.stats.timed(Operation::Settle, store.settle(chain, id, &actual)).await,
        What::Cancel => shared.stats.timed(Operation::Cancel, store.cancel(chain, id)).await,
    };
    let answer = if chain.queues.is_empty() { answer } else { queues_of(&shared, &settlement, answer).await };
    (settlement, answer.map(|answer| answer.status))
}

/// What the end of a call means for those that wait where it may have waited.
async fn queues_of(
    shared: &Shared,
    settlement: &Settlement,
    answer: Result<Answer, StoreError>,
) -> Result<Answer, StoreError> {
    let answer = answer?;
    if let Some(Served { chain, queue, .. }) = &settlement.served {
        // A share of turns that is a little off is no reason to settle again.
        let corrected = shared.store.correct(chain, *queue, settlement.correction()).await;
        if let Err(error) = corrected {
            tracing::debug!(%error, "a turn keeps what it was counted at");
        }
    }
    if let What::Cancel = settlement.what {
        shared.store.leave(&settlement.chain, settlement.id).await?;
    }
    shared.lines.wake(&settlement.chain);
    Ok(answer)
}
