//! Balances the books from outside: reads every account and lease of a store and checks them against each other to the
//! token. Knows the layout of the keys, nothing of any config.

use std::collections::BTreeMap;

use super::account::{LimitId, Slot, Totals};
use super::chain::Chain;
use super::codec;
use super::lease::{Hold, LeaseId};
use super::rule::Unit;
use super::store::{Store, StoreError};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Audit {
    pub accounts: BTreeMap<String, AccountAudit>,
    pub live_leases: usize,
    /// Expired leases that one late settle may still correct.
    pub expired_leases: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccountAudit {
    pub totals: Totals,
    /// Tokens that live leases hold on this account, by the leases' own records.
    pub live_tokens: f64,
    /// Live leases that hold on it.
    pub leases: usize,
    /// Of these the one that has gone longest without a renewal.
    pub oldest: Option<OldLease>,
    /// Per limit: its state, and what live leases hold of it.
    pub slots: BTreeMap<LimitId, (Slot, f64)>,
    /// Slots of concurrency limits, as far as live leases or the rules tell: their level must equal what leases hold.
    pub concurrency: Vec<LimitId>,
    /// The record as it was read, if it was: what a repair may replace, and nothing else.
    pub(super) record: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OldLease {
    pub id: LeaseId,
    /// Microseconds on the store's clock. Once it has passed, any gateway of the org may reclaim the lease.
    pub deadline: f64,
    pub tokens: f64,
    pub dispatched: bool,
}

impl AccountAudit {
    /// reserved - settled - refunded - expired - live: anything but 0 leaked.
    pub fn leaked(&self) -> f64 {
        self.totals.held() - self.live_tokens
    }

    /// Concurrency limits whose level is not what live leases hold, with what it should be.
    fn stuck(&self) -> impl Iterator<Item = (LimitId, f64)> {
        let slots = self.concurrency.iter().filter_map(|id| Some((*id, self.slots.get(id)?)));
        slots.filter(|(_, (slot, held))| slot.level != *held).map(|(id, (_, held))| (id, *held))
    }

    fn concurrency(&mut self, id: LimitId) {
        if !self.concurrency.contains(&id) {
            self.concurrency.push(id);
        }
    }

    fn is_balanced(&self) -> bool {
        self.leaked() == 0.0 && self.stuck().next().is_none()
    }
}

impl Audit {
    pub fn is_balanced(&self) -> bool {
        self.accounts.values().all(AccountAudit::is_balanced)
    }

    /// Without rules an account does not say which of its limits are concurrency, and when no lease is live nobody does.
    pub fn know<'c>(&mut self, chains: impl IntoIterator<Item = &'c Chain>) {
        for chain in chains {
            for entry in chain.limits().iter().filter(|entry| entry.terms.unit == Unit::Concurrency) {
                if let Some(account) = self.accounts.get_mut(&chain.accounts()[entry.account].key) {
                    account.concurrency(entry.terms.id);
                }
            }
        }
    }

    pub fn leaked(&self) -> f64 {
        self.accounts.values().map(|account| account.leaked().abs()).sum()
    }

    /// One line per account that does not balance.
    pub fn faults(&self) -> Vec<String> {
        let bad = self.accounts.iter().filter(|(_, account)| !account.is_balanced());
        let told = |(key, account): (&String, &AccountAudit)| {
            let AccountAudit { totals: Totals { reserved, settled, refunded, expired }, live_tokens, leases, .. } =
                account;
            let stuck = account.stuck().count();
            format!(
                "{key}: leaked {} tokens (reserved {reserved} = settled {settled} + refunded {refunded} + expired {expired} \
                 + held by {leases} live leases {live_tokens}?); {stuck} concurrency limits differ from those leases",
                account.leaked()
            )
        };
        bad.map(told).collect()
    }

    fn account(&mut self, key: &str, totals: Totals, slots: &[(LimitId, Slot)]) -> &mut AccountAudit {
        let account = self.accounts.entry(key.to_owned()).or_default();
        account.totals = totals;
        for (id, slot) in slots {
            account.slots.entry(*id).or_default().0 = *slot;
        }
        account
    }

    fn hold(&mut self, key: &str, id: LeaseId, hold: &Hold) {
        let account = self.accounts.entry(key.to_owned()).or_default();
        let (tokens, deadline) = (hold.held.tokens(), hold.deadline);
        account.live_tokens += tokens;
        account.leases += 1;
        if account.oldest.as_ref().is_none_or(|oldest| (deadline, id) < (oldest.deadline, oldest.id)) {
            account.oldest = Some(OldLease { id, deadline, tokens, dispatched: hold.dispatched });
        }
    }

    fn hold_limit(&mut self, key: &str, id: LimitId, unit: Unit, held: f64) {
        let account = self.accounts.entry(key.to_owned()).or_default();
        account.slots.entry(id).or_default().1 += held;
        if unit == Unit::Concurrency {
            account.concurrency(id);
        }
    }
}

/// A quiet store is audited exactly; one in use may change between two reads, so audit it again before believing a fault.
pub async fn audit(store: &Store) -> Result<Audit, StoreError> {
    let mut audit = Audit::default();
    match store {
        Store::Memory(store) => {
            let ledger = store.ledger();
            for (key, account) in ledger.accounts() {
                audit.account(key, account.totals, &account.slots);
            }
            for (id, chain, hold) in ledger.live() {
                audit.live_leases += 1;
                for account in chain.accounts() {
                    audit.hold(&account.key, id, hold);
                }
                for entry in chain.limits() {
                    let key = &chain.accounts()[entry.account].key;
                    audit.hold_limit(key, entry.terms.id, entry.terms.unit, hold.held.of(entry.terms.unit));
                }
            }
            audit.expired_leases = ledger.expired();
        }
        Store::Redis(store) => {
            for (key, value) in store.dump("ps1:{*}:a:*").await? {
                let account = codec::read_account(&value)?;
                audit.account(&key, account.totals, &account.slots).record = value;
            }
            for (name, value) in store.dump("ps1:{*}:L:*").await? {
                let id = name.rsplit(':').next().and_then(LeaseId::parse);
                let id = id.ok_or_else(|| codec::unreadable("the key of a lease"))?;
                let Some(lease) = codec::read_lease(&value)? else { continue };
                if lease.expired {
                    audit.expired_leases += 1;
                    continue;
                }
                audit.live_leases += 1;
                for key in &lease.keys {
                    audit.hold(key, id, &lease.hold);
                }
                for (account, id, unit) in &lease.limits {
                    audit.hold_limit(&lease.keys[*account], *id, *unit, lease.hold.held.of(*unit));
                }
            }
        }
    }
    Ok(audit)
}

/// Makes the books of accounts that do not balance agree with the live leases, and says which: what leaked comes back as
/// refunded, what was held without a reserve counts as reserved, and concurrency is what the leases hold. An account
/// that has been used since the audit is left alone. Levels of windows stay: nobody knows what is missing there.
pub async fn repair(store: &Store, audit: &Audit) -> Result<Vec<String>, StoreError> {
    let Store::Redis(store) = store else { return Ok(Vec::new()) };
    let mut repaired = Vec::new();
    for (key, account) in audit.accounts.iter().filter(|(_, account)| !account.is_balanced()) {
        if account.record.is_empty() {
            continue;
        }
        let stuck: Vec<(LimitId, f64)> = account.stuck().collect();
        let record = codec::balanced(&account.record, account.leaked(), &stuck)?;
        if store.exchange(key, &account.record, &record).await? {
            repaired.push(key.clone());
        }
    }
    Ok(repaired)
}
