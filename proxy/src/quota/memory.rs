//! The embedded store: the pure ledger behind one mutex, and behind that a journal if what it counts must outlive the
//! process. For one process at a time.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::account::Amounts;
use super::chain::Chain;
use super::journal::{Journal, JournalError};
use super::lease::{LeaseId, OnExpiry};
use super::ledger::Ledger;
use super::secret::Secret;
use super::store::{Answer, Ask, Extension, Reclaimed, Renewal, Turn, Turned};

/// Where "now" comes from: the wall clock, or a number that a test moves.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    #[default]
    Wall,
    /// Microseconds since the Unix epoch.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    pub fn now_us(&self) -> f64 {
        match self {
            #[expect(clippy::disallowed_methods, reason = "the clock of the embedded store, as TIME is that of Redis")]
            Self::Wall => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_micros() as f64),
            Self::Manual(us) => us.load(Ordering::Relaxed) as f64,
        }
    }
}

#[derive(Debug)]
pub struct MemoryStore {
    ledger: Mutex<Ledger>,
    clock: Clock,
    journal: Option<Journal>,
    secret: Secret,
}

impl MemoryStore {
    pub fn new(clock: Clock) -> Self {
        Self { ledger: Mutex::default(), clock, journal: None, secret: Secret::random() }
    }

    /// Goes on where the journal in `folder` ends, and keeps it from then on.
    pub fn journalled(folder: &Path, clock: Clock) -> Result<Self, JournalError> {
        let (journal, ledger) = Journal::open(folder)?;
        Ok(Self { ledger: Mutex::new(ledger), clock, journal: Some(journal), secret: Secret::random() })
    }

    pub fn is_journalled(&self) -> bool {
        self.journal.is_some()
    }

    /// Blocks on the disk, never under the ledger's mutex. What cannot be written now is written by a later call.
    pub fn flush(&self) {
        if let Some(journal) = &self.journal {
            journal.flush(|| self.ledger().take_changes());
        }
    }

    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The whole ledger, for audits.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now_us(&self) -> f64 {
        self.clock.now_us()
    }

    pub fn reserve(&self, chain: &Arc<Chain>, ask: &Ask) -> Answer {
        let mut ledger = self.ledger();
        ledger.reserve(chain, ask, self.clock.now_us())
    }

    pub fn turn(&self, chain: &Arc<Chain>, ask: &Ask, turn: &Turn) -> Turned {
        let mut ledger = self.ledger();
        ledger.turn(chain, ask, turn, self.clock.now_us())
    }

    pub fn leave(&self, chain: &Chain, id: LeaseId) {
        self.ledger().leave(chain, id);
    }

    pub fn correct(&self, chain: &Chain, queue: usize, change: f64) {
        self.ledger().correct(chain, queue, change);
    }

    pub fn amend(&self, chain: &Arc<Chain>, ask: &Ask) -> Answer {
        self.ledger().amend(chain, ask, self.clock.now_us())
    }

    pub fn renew(&self, chain: &Arc<Chain>, renewal: &Renewal) -> Answer {
        self.ledger().renew(chain, renewal, self.clock.now_us())
    }

    pub fn extend(&self, extension: &Extension) -> Answer {
        self.ledger().extend(extension, self.clock.now_us())
    }

    pub fn settle(&self, id: LeaseId, actual: &Amounts) -> Answer {
        self.ledger().settle(id, actual, self.clock.now_us())
    }

    pub fn cancel(&self, id: LeaseId) -> Answer {
        self.ledger().cancel(id, self.clock.now_us())
    }

    pub fn expire(&self, id: LeaseId, policy: OnExpiry) -> Answer {
        self.ledger().expire(id, policy, self.clock.now_us())
    }

    pub fn reclaim(&self, policy: OnExpiry) -> Reclaimed {
        self.ledger().reclaim(policy, self.clock.now_us())
    }
}
