//! All accounts and leases as one plain value: pure, synchronous, time is an argument. The memory store is this behind
//! a mutex, and the Lua scripts are checked against it with random histories.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

use super::account::{Amounts, Ending, Kind, Slot};
use super::chain::{Chain, Places};
use super::changes::{Changes, Watch};
use super::lease::{Hold, IdHasher, LeaseId, OnExpiry};
use super::slots::Account;
use super::store::{Answer, Ask, Reclaimed, Renewal, Status};
use super::turns::Turns;

mod turn;

mod extend;

/// How long a cancelled id stays forbidden, and how long an expired lease may still be corrected.
pub(super) const CANCELLED_FOR: Duration = Duration::from_secs(120);
pub(super) const EXPIRED_FOR: Duration = Duration::from_secs(3600);

#[derive(Debug)]
enum Entry {
    Live { chain: Arc<Chain>, hold: Hold },
    Expired { chain: Arc<Chain>, hold: Hold, until: f64 },
    Cancelled { until: f64 },
}

#[derive(Debug)]
pub struct Ledger {
    accounts: Vec<Account>,
    /// Per account the slots of the chain that last came to it: only another one needs to look at all the others.
    fronts: Vec<Vec<usize>>,
    index: HashMap<String, usize>,
    leases: HashMap<LeaseId, Entry, BuildHasherDefault<IdHasher>>,
    /// No live lease is due before this; it may be earlier than the first deadline, never later.
    next_due: f64,
    /// Queues of accounts, by their keys. They end with the process, as those that wait in them do.
    turns: HashMap<String, Turns>,
    /// Microseconds that the places of a gateway outlast its last word.
    life_us: f64,
    /// Only of a ledger that is journalled.
    watch: Option<Watch>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            accounts: Vec::new(),
            fronts: Vec::new(),
            index: HashMap::new(),
            leases: HashMap::default(),
            next_due: f64::INFINITY,
            turns: HashMap::new(),
            life_us: f64::INFINITY,
            watch: None,
        }
    }
}

impl Ledger {
    /// The ledger of a former process, and from here on the record of what changes.
    pub fn restored<'j>(
        accounts: impl Iterator<Item = (&'j str, &'j Account)>,
        leases: impl Iterator<Item = (LeaseId, &'j Arc<Chain>, &'j Hold)>,
    ) -> Self {
        let mut ledger = Self { watch: Some(Watch::default()), ..Self::default() };
        for (key, account) in accounts {
            let at = ledger.account(key);
            ledger.accounts[at] = account.clone();
            if let Some(watch) = &mut ledger.watch {
                watch.keep(at, key);
            }
        }
        for (id, chain, hold) in leases {
            ledger.places(chain);
            ledger.next_due = ledger.next_due.min(hold.deadline);
            ledger.leases.insert(id, Entry::Live { chain: chain.clone(), hold: hold.clone() });
            ledger.changed(id);
        }
        // What was read from the journal is no news to it.
        drop(ledger.take_changes());
        ledger
    }

    /// What a journal has yet to write; nothing if there is none.
    pub fn take_changes(&mut self) -> Changes {
        let Some(watch) = &mut self.watch else { return Changes::default() };
        let (accounts, leases) = (&self.accounts, &self.leases);
        watch.take(
            |at| accounts[at].clone(),
            |id| match leases.get(&id)? {
                Entry::Live { chain, hold } => Some((chain.clone(), hold.clone())),
                Entry::Expired { .. } | Entry::Cancelled { .. } => None,
            },
        )
    }

    /// Finds or makes the accounts of a chain; done once per chain, so that a call needs no hashing.
    pub fn place(&mut self, chain: &Chain) -> Places {
        let accounts: Vec<usize> = chain.accounts.iter().map(|account| self.account(&account.key)).collect();
        let place = |entry: &super::chain::ChainLimit| self.accounts[accounts[entry.account]].place(entry.terms.id);
        let slots: Vec<usize> = chain.limits.iter().map(place).collect();
        self.keep_long(chain, &accounts);
        let placed = || chain.limits.iter().zip(&slots);
        let own = |account| placed().filter(|(entry, _)| entry.account == account).map(|(_, slot)| *slot).collect();
        Places { own: (0..accounts.len()).map(own).collect(), accounts, slots }
    }

    /// An account with a long limit is journalled whole from here on, with the leases that hold it already.
    fn keep_long(&mut self, chain: &Chain, accounts: &[usize]) {
        let Some(watch) = &mut self.watch else { return };
        for entry in chain.limits.iter().filter(|entry| entry.limit.window.is_long()) {
            let at = accounts[entry.account];
            if watch.keep(at, &chain.accounts[entry.account].key) {
                let holds = |chain: &Chain| chain.places.get().is_some_and(|places| places.accounts.contains(&at));
                for (id, entry) in &self.leases {
                    if matches!(entry, Entry::Live { chain, .. } if holds(chain)) {
                        watch.lease(*id, true);
                    }
                }
            }
        }
    }

    fn changed(&mut self, id: LeaseId) {
        if let Some(watch) = &mut self.watch {
            watch.lease(id, matches!(self.leases.get(&id), Some(Entry::Live { .. })));
        }
    }

    fn account(&mut self, key: &str) -> usize {
        if let Some(&at) = self.index.get(key) {
            return at;
        }
        self.accounts.push(Account::default());
        self.fronts.push(Vec::new());
        self.index.insert(key.to_owned(), self.accounts.len() - 1);
        self.accounts.len() - 1
    }

    pub fn accounts(&self) -> impl Iterator<Item = (&str, &Account)> {
        self.index.iter().map(|(key, &at)| (key.as_str(), &self.accounts[at]))
    }

    /// Live leases with the keys of their accounts.
    pub fn live(&self) -> impl Iterator<Item = (LeaseId, &Arc<Chain>, &Hold)> {
        self.leases.iter().filter_map(|(id, entry)| match entry {
            Entry::Live { chain, hold } => Some((*id, chain, hold)),
            Entry::Expired { .. } | Entry::Cancelled { .. } => None,
        })
    }

    /// Expired leases that one late settle may still correct.
    pub fn expired(&self) -> usize {
        self.leases.values().filter(|entry| matches!(entry, Entry::Expired { .. })).count()
    }

    pub fn reserve(&mut self, chain: &Arc<Chain>, ask: &Ask, now: f64) -> Answer {
        let starts = starts(chain, now);
        match self.leases.get(&ask.id) {
            Some(Entry::Live { .. }) => return self.answer(Status::Done, chain, &starts, now),
            Some(_) => return Answer { status: Status::Buried, now_us: now, due: false, levels: Vec::new() },
            None => {}
        }
        if !self.fits(chain, &ask.need, &starts, now) {
            return self.answer(Status::Full, chain, &starts, now);
        }
        self.hold(chain, ask, &starts, now);
        self.answer(Status::Done, chain, &starts, now)
    }

    pub fn amend(&mut self, chain: &Arc<Chain>, ask: &Ask, now: f64) -> Answer {
        let starts = starts(chain, now);
        // First: a new chain may add slots, which the copy taken below must have.
        self.places(chain);
        let Some((old, hold)) = self.take_live(ask.id) else {
            let status = if self.leases.contains_key(&ask.id) { Status::Buried } else { Status::Absent };
            return Answer { status, now_us: now, due: false, levels: Vec::new() };
        };
        // Undone by value if the new hold does not fit: a refund that a floor cuts cannot be undone by arithmetic.
        let places = self.places(&old);
        let before: Vec<Account> = places.accounts.iter().map(|&at| self.accounts[at].clone()).collect();
        self.resolve(&old, &hold, &hold.held, &Amounts::default(), Ending::Settle, now);
        if self.fits(chain, &ask.need, &starts, now) {
            self.hold(chain, ask, &starts, now);
            return self.answer(Status::Done, chain, &starts, now);
        }
        let refused = self.answer(Status::Full, chain, &starts, now);
        for (&at, account) in places.accounts.iter().zip(before) {
            self.accounts[at] = account;
            self.fronts[at].clear();
        }
        self.leases.insert(ask.id, Entry::Live { chain: old, hold });
        self.changed(ask.id);
        refused
    }

    pub fn renew(&mut self, chain: &Arc<Chain>, renewal: &Renewal, now: f64) -> Answer {
        let deadline = now + micros(renewal.ttl);
        let status = match self.leases.get_mut(&renewal.id) {
            Some(Entry::Live { hold, .. }) => {
                hold.deadline = deadline;
                hold.dispatched = renewal.dispatched;
                hold.checkpoint = renewal.checkpoint;
                self.next_due = self.next_due.min(deadline);
                Status::Done
            }
            Some(_) => Status::Buried,
            None if renewal.reassert => {
                let ask = Ask { id: renewal.id, need: renewal.held, hold: renewal.ttl };
                self.hold(chain, &ask, &starts(chain, now), now);
                if let Some(Entry::Live { hold, .. }) = self.leases.get_mut(&renewal.id) {
                    hold.dispatched = renewal.dispatched;
                    hold.checkpoint = renewal.checkpoint;
                }
                Status::Done
            }
            None => Status::Absent,
        };
        self.changed(renewal.id);
        Answer { status, now_us: now, due: false, levels: Vec::new() }
    }

    pub fn settle(&mut self, id: LeaseId, actual: &Amounts, now: f64) -> Answer {
        let status = match self.leases.remove(&id) {
            Some(Entry::Live { chain, hold }) => {
                self.resolve(&chain, &hold, &hold.held, actual, Ending::Settle, now);
                Status::Done
            }
            Some(Entry::Expired { chain, hold, .. }) => {
                self.resolve(&chain, &hold, &hold.checkpoint, actual, Ending::Late, now);
                Status::Late
            }
            Some(cancelled @ Entry::Cancelled { .. }) => {
                self.leases.insert(id, cancelled);
                Status::Buried
            }
            None => Status::Absent,
        };
        self.changed(id);
        Answer { status, now_us: now, due: false, levels: Vec::new() }
    }

    pub fn cancel(&mut self, id: LeaseId, now: f64) -> Answer {
        if let Some((chain, hold)) = self.take_live(id) {
            self.resolve(&chain, &hold, &hold.held, &Amounts::default(), Ending::Settle, now);
        }
        let status = match self.leases.get(&id) {
            Some(Entry::Expired { .. }) => Status::Buried,
            _ => {
                let until = now + micros(CANCELLED_FOR);
                self.leases.insert(id, Entry::Cancelled { until });
                Status::Done
            }
        };
        self.changed(id);
        Answer { status, now_us: now, due: false, levels: Vec::new() }
    }

    /// Resolves one lease past its deadline and buries it, so that one late settle can still correct the charge.
    pub fn expire(&mut self, id: LeaseId, policy: OnExpiry, now: f64) -> Answer {
        let (status, levels) = match self.take_live(id) {
            Some((chain, mut hold)) if hold.deadline <= now => {
                let charge = hold.charge_at_expiry(policy);
                self.resolve(&chain, &hold, &hold.held, &charge, Ending::Expire, now);
                hold.checkpoint = charge;
                let levels = vec![hold.held.tokens(), charge.tokens()];
                self.leases.insert(id, Entry::Expired { chain, hold, until: now + micros(EXPIRED_FOR) });
                (Status::Done, levels)
            }
            Some((chain, hold)) => {
                self.leases.insert(id, Entry::Live { chain, hold });
                (Status::NotDue, Vec::new())
            }
            None => (Status::Absent, Vec::new()),
        };
        self.changed(id);
        Answer { status, now_us: now, due: false, levels }
    }

    /// Expires everything that is due and forgets old tombstones. Cheap when nothing can be due yet: healthy leases
    /// are renewed long before their deadline, so the walk over all leases is rare.
    pub fn reclaim(&mut self, policy: OnExpiry, now: f64) -> Reclaimed {
        if now < self.next_due {
            return Reclaimed::default();
        }
        self.leases.retain(|_, entry| match entry {
            Entry::Live { .. } => true,
            Entry::Expired { until, .. } | Entry::Cancelled { until } => now < *until,
        });
        let due: Vec<LeaseId> = self.live().filter(|(_, _, hold)| hold.deadline <= now).map(|(id, ..)| id).collect();
        let mut total = Reclaimed::default();
        for id in due {
            total.add(&self.expire(id, policy, now));
        }
        self.next_due = self.live().map(|(_, _, hold)| hold.deadline).fold(f64::INFINITY, f64::min);
        total
    }

    fn take_live(&mut self, id: LeaseId) -> Option<(Arc<Chain>, Hold)> {
        match self.leases.remove(&id)? {
            Entry::Live { chain, hold } => Some((chain, hold)),
            other => {
                self.leases.insert(id, other);
                None
            }
        }
    }

    fn places<'c>(&mut self, chain: &'c Chain) -> &'c Places {
        chain.places.get_or_init(|| self.place(chain))
    }

    /// Before a chain writes to its accounts.
    fn come_forward(&mut self, places: &Places, now: f64) {
        for (&at, own) in places.accounts.iter().zip(&places.own) {
            if !self.fronts[at].starts_with(own) {
                self.accounts[at].make_room(own, now);
                self.fronts[at].clone_from(own);
            }
        }
    }

    fn fits(&mut self, chain: &Chain, need: &Amounts, starts: &[f64], now: f64) -> bool {
        let places = self.places(chain);
        chain.limits.iter().enumerate().all(|(at, entry)| {
            let slot = self.accounts[places.accounts[entry.account]].slots[places.slots[at]].1;
            slot.advanced(&entry.terms, now, starts[at]).fits(&entry.terms, need.of(entry.terms.unit))
        })
    }

    fn hold(&mut self, chain: &Arc<Chain>, ask: &Ask, starts: &[f64], now: f64) {
        let places = self.places(chain);
        self.come_forward(places, now);
        let mut epochs = Vec::new();
        for (at, entry) in chain.limits.iter().enumerate() {
            let slot = &mut self.accounts[places.accounts[entry.account]].slots[places.slots[at]].1;
            let here = slot.advanced(&entry.terms, now, starts[at]);
            *slot = Slot { level: here.level + ask.need.of(entry.terms.unit), at: here.at };
            if entry.terms.kind == Kind::Calendar {
                epochs.push(slot.at);
            }
        }
        for &at in &places.accounts {
            self.accounts[at].totals.reserve(ask.need.tokens());
        }
        let deadline = now + micros(ask.hold);
        self.next_due = self.next_due.min(deadline);
        let hold = Hold { dispatched: false, deadline, held: ask.need, checkpoint: Amounts::default(), epochs };
        self.leases.insert(ask.id, Entry::Live { chain: chain.clone(), hold });
        self.changed(ask.id);
        if let Some(watch) = &mut self.watch {
            watch.accounts(&places.accounts);
        }
    }

    fn resolve(&mut self, chain: &Chain, hold: &Hold, held: &Amounts, actual: &Amounts, ending: Ending, now: f64) {
        let places = self.places(chain);
        self.come_forward(places, now);
        let starts = starts(chain, now);
        let mut epochs = hold.epochs.iter();
        for (at, entry) in chain.limits.iter().enumerate() {
            let epoch = if entry.terms.kind == Kind::Calendar { epochs.next().copied().unwrap_or(0.0) } else { 0.0 };
            let slot = &mut self.accounts[places.accounts[entry.account]].slots[places.slots[at]].1;
            let (held, actual) = (held.of(entry.terms.unit), actual.of(entry.terms.unit));
            *slot = slot.resolved(&entry.terms, held, actual, epoch, now, starts[at]);
        }
        for &at in &places.accounts {
            self.accounts[at].totals.resolve(ending, held.tokens(), actual.tokens());
        }
        if let Some(watch) = &mut self.watch {
            watch.accounts(&places.accounts);
        }
    }

    fn answer(&mut self, status: Status, chain: &Chain, starts: &[f64], now: f64) -> Answer {
        let places = self.places(chain);
        let level = |(at, entry): (usize, &super::chain::ChainLimit)| {
            let slot = self.accounts[places.accounts[entry.account]].slots[places.slots[at]].1;
            slot.advanced(&entry.terms, now, starts[at]).level
        };
        let levels = chain.limits.iter().enumerate().map(level).collect();
        let due = matches!(status, Status::Full | Status::Queued) && self.next_due <= now;
        Answer { status, now_us: now, due, levels }
    }
}

fn starts(chain: &Chain, now: f64) -> Vec<f64> {
    // Freshly computed windows always cover the instant they were computed for.
    chain.calendars(now).starts(chain, now).unwrap_or_else(|| vec![0.0; chain.limits.len()])
}

fn micros(duration: Duration) -> f64 {
    duration.as_micros() as f64
}
