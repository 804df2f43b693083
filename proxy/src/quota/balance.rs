//! What the accounts of an audit are called, and how much is left of each limit, by the rules of a configuration. A store
//! knows neither: its keys are digests and its state is free of limits.

use std::collections::BTreeMap;

use super::account::{LimitId, Slot};
use super::audit::Audit;
use super::chain::Chain;
use super::rate;
use super::rule::{Level, Unit};

/// An account by its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    pub level: Level,
    /// The subject's path.
    pub subject: String,
    /// In the order of the rules.
    pub limits: Vec<LimitBalance>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LimitBalance {
    /// As a refusal names it, e.g. `tokens/minute`.
    pub limit: String,
    pub unit: Unit,
    pub shadow: bool,
    /// The most that can be left.
    pub most: u64,
    /// Drained, used or running now; more than `most` is debt.
    pub used: f64,
    pub left: u64,
    id: LimitId,
}

/// By key, those accounts of the audit that the chains pass through, at `now_us`. Where chains share a limit on different
/// terms, the one with the least left is told.
pub fn balances<'c>(
    chains: impl IntoIterator<Item = &'c Chain>,
    audit: &Audit,
    now_us: f64,
) -> BTreeMap<String, Balance> {
    let mut balances: BTreeMap<String, Balance> = BTreeMap::new();
    for chain in chains {
        let Some(starts) = chain.calendars(now_us).starts(chain, now_us) else { continue };
        for (entry, start) in chain.limits().iter().zip(starts) {
            let account = &chain.accounts()[entry.account];
            let Some(audited) = audit.accounts.get(&account.key) else { continue };
            let slot = audited.slots.get(&entry.terms.id).map_or(Slot::default(), |(slot, _)| *slot);
            let used = slot.advanced(&entry.terms, now_us, start).level;
            let limit = LimitBalance {
                limit: entry.label.clone(),
                unit: entry.terms.unit,
                shadow: entry.terms.shadow,
                most: entry.terms.cap as u64,
                used,
                left: rate::left(entry.terms.cap, used),
                id: entry.terms.id,
            };
            let named = || Balance { level: account.level, subject: account.path.clone(), limits: Vec::new() };
            balances.entry(account.key.clone()).or_insert_with(named).add(limit);
        }
    }
    balances
}

impl Balance {
    fn add(&mut self, limit: LimitBalance) {
        match self.limits.iter_mut().find(|known| known.id == limit.id) {
            Some(known) if known.left <= limit.left => {}
            Some(known) => *known = limit,
            None => self.limits.push(limit),
        }
    }
}
