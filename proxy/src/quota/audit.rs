//! Balances the books from outside: reads every account and lease of a store and checks them against each other to the
//! token. Knows the layout of the keys, nothing of any config.

use std::collections::BTreeMap;

use super::account::{LimitId, Totals};
use super::codec;
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
    /// Per limit: its level, and what live leases hold of it.
    pub slots: BTreeMap<LimitId, (f64, f64)>,
    /// Slots of concurrency limits: their level must equal what live leases hold.
    pub concurrency: Vec<LimitId>,
}

impl AccountAudit {
    /// reserved - settled - refunded - expired - live: anything but 0 leaked.
    pub fn leaked(&self) -> f64 {
        self.totals.held() - self.live_tokens
    }

    fn is_balanced(&self) -> bool {
        let slots = |id: &LimitId| self.slots.get(id).is_none_or(|(level, held)| level == held);
        self.leaked() == 0.0 && self.concurrency.iter().all(slots)
    }
}

impl Audit {
    pub fn is_balanced(&self) -> bool {
        self.accounts.values().all(AccountAudit::is_balanced)
    }

    pub fn leaked(&self) -> f64 {
        self.accounts.values().map(|account| account.leaked().abs()).sum()
    }

    /// One line per account that does not balance.
    pub fn faults(&self) -> Vec<String> {
        let bad = self.accounts.iter().filter(|(_, account)| !account.is_balanced());
        bad.map(|(key, account)| format!("{key}: leaked {} tokens: {account:?}", account.leaked())).collect()
    }

    fn account(&mut self, key: &str, totals: Totals, slots: impl Iterator<Item = (LimitId, f64)>) {
        let account = self.accounts.entry(key.to_owned()).or_default();
        account.totals = totals;
        for (id, level) in slots {
            account.slots.entry(id).or_default().0 = level;
        }
    }

    fn hold(&mut self, key: &str, tokens: f64) {
        self.accounts.entry(key.to_owned()).or_default().live_tokens += tokens;
    }

    fn hold_limit(&mut self, key: &str, id: LimitId, unit: Unit, held: f64) {
        let account = self.accounts.entry(key.to_owned()).or_default();
        account.slots.entry(id).or_default().1 += held;
        if unit == Unit::Concurrency && !account.concurrency.contains(&id) {
            account.concurrency.push(id);
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
                audit.account(key, account.totals, account.slots.iter().map(|(id, slot)| (*id, slot.level)));
            }
            for (_, chain, hold) in ledger.live() {
                audit.live_leases += 1;
                for account in chain.accounts() {
                    audit.hold(&account.key, hold.held.tokens());
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
                audit.account(&key, account.totals, account.slots.iter().map(|(id, slot)| (*id, slot.level)));
            }
            for (_, value) in store.dump("ps1:{*}:L:*").await? {
                let Some(lease) = codec::read_lease(&value)? else { continue };
                if lease.expired {
                    audit.expired_leases += 1;
                    continue;
                }
                audit.live_leases += 1;
                for key in &lease.keys {
                    audit.hold(key, lease.hold.held.tokens());
                }
                for (account, id, unit) in &lease.limits {
                    audit.hold_limit(&lease.keys[*account], *id, *unit, lease.hold.held.of(*unit));
                }
            }
        }
    }
    Ok(audit)
}
