//! The one seam between the quota logic and where accounts live. Operations are named after the life of a lease;
//! each is atomic over all accounts of a chain.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::account::Amounts;
use super::chain::Chain;
use super::holding::Bind;
use super::identity::GLOBAL_TAG;
use super::journal::JournalError;
use super::lease::{LeaseId, OnExpiry};
use super::memory::{Clock, MemoryStore};
use super::redis::{RedisOptions, RedisStore};
use super::secret::Secret;
use super::turns::{Ahead, GatewayId};

/// Why a store could not answer. Cheap to clone: one outage refuses many calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the quota store did not answer within {0:?}")]
    Timeout(Duration),
    /// Known before anything was sent.
    #[error("the quota store is unreachable: {0}")]
    Unreachable(String),
    #[error("the connection to the quota store broke: {0}")]
    Broken(String),
    #[error("the quota store refused the call: {0}")]
    Refused(String),
    #[error("the quota store answered what this version cannot read: {0}")]
    Unreadable(String),
    #[error("the quota store is down, and what may be used of {0} until it is back has been used")]
    SliceSpent(String),
}

/// How an operation ended. The numbers are the status byte of a script's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done: held, renewed, settled, cancelled or expired, by operation.
    Done = 0,
    /// A limit does not fit; nothing was taken.
    Full = 1,
    /// The lease is not known: settled already, or lost with the store's memory.
    Absent = 2,
    /// A tombstone says that the lease was cancelled or expired.
    Buried = 3,
    /// The lease had expired; its charge was corrected.
    Late = 4,
    /// The deadline has not passed.
    NotDue = 5,
    /// The calendar windows that came with the call do not cover the store's clock.
    Stale = 6,
    /// The lease belongs to other accounts than those named; its record follows.
    Moved = 7,
    /// It is not the call's turn, or it does not fit yet: it has a place in a queue.
    Queued = 9,
    /// It would have to wait, and as many wait as may.
    Crowded = 10,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: Status,
    /// The store's clock, microseconds since the Unix epoch.
    pub now_us: f64,
    /// A lease of this org is past its deadline: reclaim may free something.
    pub due: bool,
    /// Level of each limit of the chain, holds included; empty where the operation has no use for it.
    pub levels: Vec<f64>,
}

/// One hold to take.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub id: LeaseId,
    /// Made by [`Amounts::held`]: one request, one slot.
    pub need: Amounts,
    /// How long the hold lasts before its call is dispatched. Expiry refunds in full until then.
    pub hold: Duration,
}

/// What a call says that asks for its turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub gateway: GatewayId,
    /// When it came to its first queue, as the store said; 0 if it comes now.
    pub since: f64,
    /// Its place lasts no longer than this, in microseconds from now.
    pub wait_us: f64,
}

/// Where a call stands that waits, has waited or would have to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spot {
    /// Index into the queues of its chain.
    pub queue: usize,
    pub since: f64,
    pub ahead: Ahead,
    /// Whose turn it is there now.
    pub next: Option<LeaseId>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Turned {
    pub answer: Answer,
    pub spot: Option<Spot>,
}

/// What a live lease says about itself at each renewal.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    pub id: LeaseId,
    pub held: Amounts,
    pub checkpoint: Amounts,
    pub dispatched: bool,
    pub ttl: Duration,
    /// Write the lease anew if the store has lost it. Only for leases that this process knows to be live.
    pub reassert: bool,
}

/// More output for a call that runs.
#[derive(Clone, Copy, Debug)]
pub struct Extension {
    pub id: LeaseId,
    /// Output and its price; nothing else of a call grows.
    pub more: Amounts,
    /// The lease lives at least so long from now on.
    pub ttl: Duration,
    pub bind: Bind,
}

#[derive(Debug)]
pub enum Store {
    Memory(Box<MemoryStore>),
    Redis(RedisStore),
}

impl StoreError {
    /// Waiting may heal it, as opposed to a server that does not suit: nothing answers, or it takes no writes yet.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Refused(why) => {
                ["LOADING", "loading", "READONLY", "MASTERDOWN"].iter().any(|sign| why.contains(sign))
            }
            other => other.is_silence(),
        }
    }

    /// No answer, or none from now on: an outage, as opposed to a call that the store turns away.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Unreachable(_) | Self::Broken(_))
    }

    /// What a client may know: nothing of the store's address, nor of what its server said.
    pub fn told(&self) -> String {
        match self {
            Self::SliceSpent(_) => self.to_string(),
            _ => "the quota store cannot answer now, and a quota of this key admits nothing without it".to_owned(),
        }
    }

    /// The store never saw the call, so nothing can be held.
    pub fn is_unsent(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Refused(_))
    }
}

impl Store {
    /// For one process. Nothing outlives it.
    pub fn memory(clock: Clock) -> Self {
        Self::Memory(Box::new(MemoryStore::new(clock)))
    }

    /// For one process at a time. Long windows and live leases are kept in `folder`.
    pub fn journalled(folder: &Path, clock: Clock) -> Result<Self, JournalError> {
        MemoryStore::journalled(folder, clock).map(|store| Self::Memory(Box::new(store)))
    }

    /// Whether a call on this chain is worth trying.
    pub fn serves(&self, chain: &Chain) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Redis(store) => store.serves(&chain.tag),
        }
    }

    /// Whether calls of some orgs, at least, are worth trying.
    pub fn serves_some(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Redis(store) => store.serves_some(),
        }
    }

    /// Why calls, or those of some orgs, are not tried, if so.
    pub fn health(&self) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Redis(store) => store.health(),
        }
    }

    /// From here on this process counts as a gateway.
    pub fn join(&self) {
        if let Self::Redis(store) = self {
            store.join();
        }
    }

    /// Gateways that share the store's limits, as of the last heartbeat; this one included.
    pub fn gateways(&self) -> usize {
        match self {
            Self::Memory(_) => 1,
            Self::Redis(store) => store.gateways(),
        }
    }

    /// The longest that a request waits for a store that says nothing.
    pub fn patience(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::MAX,
            Self::Redis(store) => store.patience(),
        }
    }

    /// Connects and proves that the scripts run there, within a bounded time.
    pub async fn redis(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        RedisStore::connect(url, options).await.map(Self::Redis)
    }

    /// Takes `ask.need` from every account of the chain, or nothing. Repeating an id changes nothing.
    pub async fn reserve(&self, chain: &Arc<Chain>, ask: &Ask) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.reserve(chain, ask)),
            Self::Redis(store) => store.reserve(chain, ask).await,
        }
    }

    /// As [`Store::reserve`], of a chain with queues: where the call would be refused it may have a place in a queue
    /// instead. Repeated until it is held or refused; [`Store::leave`] ends it before that.
    pub async fn turn(&self, chain: &Arc<Chain>, ask: &Ask, turn: &Turn) -> Result<Turned, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.turn(chain, ask, turn)),
            Self::Redis(store) => store.turn(chain, ask, turn).await,
        }
    }

    /// Gives up the call's places.
    pub async fn leave(&self, chain: &Arc<Chain>, id: LeaseId) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.leave(chain, id),
            Self::Redis(store) => store.leave(chain, id).await?,
        }
        Ok(())
    }

    /// A call that had its turn in this queue used `change` tokens more than it held there.
    pub async fn correct(&self, chain: &Arc<Chain>, queue: usize, change: f64) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.correct(chain, queue, change),
            Self::Redis(store) => store.correct(chain, queue, change).await?,
        }
        Ok(())
    }

    /// Swaps the hold of `old` for `ask` on `new`, or keeps the old one.
    pub async fn amend(&self, old: &Arc<Chain>, new: &Arc<Chain>, ask: &Ask) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.amend(new, ask)),
            Self::Redis(store) => store.amend(old, new, ask).await,
        }
    }

    /// Holds more for a call that runs, at every level or at none.
    pub async fn extend(&self, chain: &Arc<Chain>, extension: &Extension) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.extend(extension)),
            Self::Redis(store) => store.extend(chain, extension).await,
        }
    }

    pub async fn renew(&self, chain: &Arc<Chain>, renewal: &Renewal) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.renew(chain, renewal)),
            Self::Redis(store) => store.renew(chain, renewal).await,
        }
    }

    /// Replaces the hold by what was used. Absence of the lease is idempotence.
    pub async fn settle(&self, chain: &Arc<Chain>, id: LeaseId, actual: &Amounts) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.settle(id, actual)),
            Self::Redis(store) => store.settle(chain, id, actual).await,
        }
    }

    /// Undoes a reserve whose answer was lost, and forbids one that is still on its way.
    pub async fn cancel(&self, chain: &Arc<Chain>, id: LeaseId) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.cancel(id)),
            Self::Redis(store) => store.cancel(chain, id).await,
        }
    }

    /// Resolves one lease past its deadline; its answer's levels are the tokens held and charged.
    pub async fn expire(&self, chain: &Arc<Chain>, id: LeaseId, policy: OnExpiry) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.expire(id, policy)),
            Self::Redis(store) => store.expire(chain, id, policy).await,
        }
    }

    /// Resolves every lease of the chain's org that is past its deadline; the tokens that this charged or gave back.
    pub async fn reclaim(&self, tag: &str, policy: OnExpiry) -> Result<Reclaimed, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.reclaim(policy)),
            Self::Redis(store) => store.reclaim(tag, policy).await,
        }
    }

    /// True for one gateway per `quiet`.
    pub async fn may_sweep(&self, tag: &str, quiet: Duration) -> Result<bool, StoreError> {
        match self {
            Self::Memory(_) => Ok(true),
            Self::Redis(store) => store.may_sweep(tag, quiet).await,
        }
    }

    /// Remembers orgs for the walk over all of them.
    pub async fn note_orgs(&self, tags: &[String]) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Redis(store) => store.note_orgs(tags).await,
        }
    }

    /// As [`Store::note_orgs`], on the way of calls: a hold that follows comes after it.
    pub async fn note_org(&self, tag: &str) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Redis(store) => store.note_org(tag).await,
        }
    }

    /// The next page of orgs that any gateway ever noted.
    pub async fn some_orgs(&self) -> Result<Vec<String>, StoreError> {
        match self {
            // One stands for all: reclaim here is for every org at once.
            Self::Memory(_) => Ok(vec![GLOBAL_TAG.to_owned()]),
            Self::Redis(store) => store.some_orgs().await,
        }
    }

    /// Leases of the store itself, which belong to no org: a gateway that dies while it starts leaves one.
    pub fn own_tag(&self) -> Option<&'static str> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(_) => Some(RedisStore::OWN_TAG),
        }
    }

    /// Shared by all processes on this store.
    pub fn secret(&self) -> &Secret {
        match self {
            Self::Memory(store) => store.secret(),
            Self::Redis(store) => store.secret(),
        }
    }

    /// Leases outlive this process, so they have deadlines and must be renewed.
    pub fn outlives_process(&self) -> bool {
        match self {
            Self::Memory(store) => store.is_journalled(),
            Self::Redis(_) => true,
        }
    }
}

/// What one pass of reclaim did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reclaimed {
    pub leases: u64,
    /// Tokens that the leases held.
    pub tokens: f64,
    /// The part of them that was charged.
    pub charged: f64,
}

impl Reclaimed {
    /// Counts an expiry, whose answer carries the tokens held and charged; anything else left the lease alone.
    pub(super) fn add(&mut self, expiry: &Answer) {
        if let (Status::Done, &[tokens, charged]) = (expiry.status, expiry.levels.as_slice()) {
            self.leases += 1;
            self.tokens += tokens;
            self.charged += charged;
        }
    }
}
