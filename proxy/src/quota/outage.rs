//! While the store is down: who is admitted without it, and what their calls used until the accounts know of it.
//! Arithmetic is in `outage/slice.rs`, the way of that use into the accounts in `outage/debts.rs`.
//!
//! Every rule says what its limits mean then. One `closed` limit refuses the call; an `open` one lets it pass; one
//! with a `slice` lets it pass within an allowance. Whatever passes is debt: charged after the outage, whole.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Shared;
use super::account::{Amounts, LimitId};
use super::chain::{Chain, ChainLimit};
use super::refusal::Refused;
use super::rule::{Level, OnStoreFailure, Unit};
use super::store::StoreError;

pub(super) mod debts;
mod slice;
#[cfg(test)]
mod tests;

use debts::Debt;
use slice::Slice;

#[derive(Debug)]
pub(super) struct Outage {
    state: Mutex<State>,
    /// Calls that may run at once without the store knowing of them.
    capacity: usize,
    admitted: AtomicU64,
    exhausted: AtomicU64,
    charged_tokens: AtomicU64,
    /// There is something to charge.
    owing: Notify,
}

#[derive(Debug, Default)]
struct State {
    slices: Vec<Slice>,
    index: HashMap<(String, LimitId), usize>,
    live: usize,
    /// Use that the accounts do not know of, merged per chain: its size is that of the configuration, not of the outage.
    debts: HashMap<usize, Debt>,
    /// Taken from `debts` and not yet acknowledged by the store.
    charging: usize,
    /// Tokens of all debts, taken or not.
    owed: f64,
}

/// One call admitted without the store; resolves once, through [`Outage::ended`].
#[derive(Debug)]
pub(super) struct Ticket {
    chain: Arc<Chain>,
    need: Amounts,
}

/// For metrics. Tokens, and cumulative, unless named otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The store does not answer now.
    pub down: bool,
    /// Calls.
    pub admitted: u64,
    /// Calls that found a slice spent.
    pub exhausted: u64,
    /// Spent of slices and not charged yet, by level, now.
    pub spent: Vec<(Level, u64)>,
    /// Used without the store and not charged yet, now.
    pub owed: u64,
    pub charged: u64,
}

impl Outage {
    pub fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::default(),
            capacity: capacity.max(1),
            admitted: AtomicU64::new(0),
            exhausted: AtomicU64::new(0),
            charged_tokens: AtomicU64::new(0),
            owing: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store said how the limits of this chain stand.
    pub fn saw(&self, chain: &Chain, levels: &[f64]) {
        if !chain.limits.iter().any(|entry| entry.on_failure.share().is_some()) {
            return;
        }
        let mut state = self.state();
        let slices = state.of(chain);
        for (slice, (entry, level)) in slices.iter().zip(chain.limits.iter().zip(levels)) {
            if let Some(at) = *slice {
                state.slices[at].saw(entry.terms.cap - level);
            }
        }
    }

    /// All limits of the chain let the call pass, or none of them counts it. `error` is what a closed one answers.
    pub fn admit(
        &self,
        chain: &Arc<Chain>,
        need: Amounts,
        gateways: usize,
        error: StoreError,
    ) -> Result<Ticket, Refused> {
        if chain.limits.iter().any(|entry| entry.on_failure == OnStoreFailure::Closed) {
            return Err(Refused::Store(error));
        }
        let mut state = self.state();
        if state.live >= self.capacity {
            return Err(Refused::Overloaded);
        }
        if let Err(entry) = state.spend(chain, &need, gateways) {
            self.exhausted.fetch_add(1, Relaxed);
            return Err(Refused::Store(slice_spent(chain, entry)));
        }
        state.live += 1;
        self.admitted.fetch_add(1, Relaxed);
        Ok(Ticket { chain: chain.clone(), need })
    }

    /// Moves the call to another candidate, or leaves it where it is.
    pub fn amend(
        &self,
        ticket: &mut Ticket,
        chain: &Arc<Chain>,
        need: Amounts,
        gateways: usize,
    ) -> Result<(), Refused> {
        if chain.limits.iter().any(|entry| entry.on_failure == OnStoreFailure::Closed) {
            return Err(Refused::Store(StoreError::Unreachable("it was down when the call was admitted".to_owned())));
        }
        let mut state = self.state();
        state.end(&ticket.chain, &ticket.need, &Amounts::default());
        if let Err(entry) = state.spend(chain, &need, gateways) {
            state.end(&ticket.chain, &Amounts::default(), &ticket.need);
            self.exhausted.fetch_add(1, Relaxed);
            return Err(Refused::Store(slice_spent(chain, entry)));
        }
        (ticket.chain, ticket.need) = (chain.clone(), need);
        Ok(())
    }

    pub fn ended(&self, ticket: &Ticket, used: &Amounts) {
        let mut state = self.state();
        state.live -= 1;
        state.end(&ticket.chain, &ticket.need, used);
        if *used == Amounts::default() || ticket.chain.is_free() {
            return;
        }
        let debt = || Debt::new(ticket.chain.clone());
        // The chain lives as long as its debt, so its address names it.
        state.debts.entry(Arc::as_ptr(&ticket.chain) as usize).or_insert_with(debt).add(used);
        state.owed += used.tokens();
        drop(state);
        self.owing.notify_one();
    }

    /// Nothing is left for the accounts to learn.
    pub fn is_settled(&self) -> bool {
        let state = self.state();
        state.live == 0 && state.debts.is_empty() && state.charging == 0
    }

    pub fn figures(&self, down: bool) -> Figures {
        let state = self.state();
        let spent = |level: Level| {
            let tokens = state.slices.iter().filter(|slice| slice.level == level && slice.unit == Unit::Tokens);
            (level, tokens.map(|slice| slice.spent()).sum::<f64>() as u64)
        };
        Figures {
            down,
            admitted: self.admitted.load(Relaxed),
            exhausted: self.exhausted.load(Relaxed),
            spent: Level::ALL.map(spent).to_vec(),
            owed: state.owed as u64,
            charged: self.charged_tokens.load(Relaxed),
        }
    }

    /// At most `most` debts, for the store to be told of.
    fn take(&self, most: usize) -> Vec<Debt> {
        let mut state = self.state();
        let names: Vec<usize> = state.debts.keys().copied().take(most).collect();
        let taken: Vec<Debt> = names.iter().filter_map(|name| state.debts.remove(name)).collect();
        state.charging += taken.len();
        taken
    }

    fn charged(&self, debt: &Debt) {
        let mut state = self.state();
        state.charging -= 1;
        state.owed -= debt.used.tokens();
        for (slice, entry) in state.of(&debt.chain).iter().zip(&debt.chain.limits) {
            if let Some(at) = *slice {
                state.slices[at].charged(debt.used.of(entry.terms.unit));
            }
        }
        self.charged_tokens.fetch_add(debt.used.tokens() as u64, Relaxed);
    }
}

impl State {
    /// Where the slice of each limit of the chain is kept; limits without one have none.
    fn of(&mut self, chain: &Chain) -> Arc<[Option<usize>]> {
        chain.slices.get_or_init(|| chain.limits.iter().map(|entry| self.slice(chain, entry)).collect()).clone()
    }

    fn slice(&mut self, chain: &Chain, entry: &ChainLimit) -> Option<usize> {
        entry.on_failure.share()?;
        let account = &chain.accounts[entry.account];
        let at = *self.index.entry((account.key.clone(), entry.terms.id)).or_insert(self.slices.len());
        if at == self.slices.len() {
            self.slices.push(Slice::new(account.level, entry.terms.unit));
        }
        Some(at)
    }

    /// Takes `need` from every slice of the chain, or names the limit that has too little and takes nothing.
    fn spend<'c>(&mut self, chain: &'c Chain, need: &Amounts, gateways: usize) -> Result<(), &'c ChainLimit> {
        let slices = self.of(chain);
        for (slice, entry) in slices.iter().zip(&chain.limits) {
            let (Some(at), Some(share)) = (*slice, entry.on_failure.share()) else { continue };
            let allowance = self.slices[at].allowance(share, entry.limit.amount as f64, gateways);
            if !self.slices[at].fits(need.of(entry.terms.unit), allowance) {
                return Err(entry);
            }
        }
        for (slice, entry) in slices.iter().zip(&chain.limits) {
            if let Some(at) = *slice {
                self.slices[at].spend(need.of(entry.terms.unit));
            }
        }
        Ok(())
    }

    fn end(&mut self, chain: &Chain, need: &Amounts, used: &Amounts) {
        for (slice, entry) in self.of(chain).iter().zip(&chain.limits) {
            if let Some(at) = *slice {
                let unit = entry.terms.unit;
                self.slices[at].ended(need.of(unit), used.of(unit));
            }
        }
    }
}

impl Shared {
    /// What the rules say about a call that the store could not answer for.
    pub(super) fn without_store(
        &self,
        chain: &Arc<Chain>,
        need: Amounts,
        error: StoreError,
    ) -> Result<Ticket, Refused> {
        // One account that cannot be read is a fault of that account, which no policy of outages covers. What is only
        // counted refuses in no case.
        let in_force = chain.limits.iter().any(|entry| !entry.terms.shadow);
        if in_force && !error.is_silence() && self.store.serves(chain) {
            return Err(Refused::Store(error));
        }
        self.outage.admit(chain, need, self.store.gateways(), error)
    }
}

fn slice_spent(chain: &Chain, entry: &ChainLimit) -> StoreError {
    let account = &chain.accounts[entry.account];
    let (limit, level, path) = (&entry.label, account.level.as_str(), &account.path);
    StoreError::SliceSpent(format!("{limit} of {level} {path}"))
}
