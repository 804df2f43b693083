//! Which accounts and leases changed since a journal last looked. The ledger keeps this up to date under its mutex; no
//! bytes and no files here.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use super::chain::Chain;
use super::lease::{Hold, IdHasher, LeaseId};
use super::slots::Account;

/// A live lease with the chain that it is held on.
pub type Held = (Arc<Chain>, Hold);

/// One consistent step of the ledger, as values: applying it twice changes nothing more.
#[derive(Debug, Default)]
pub struct Changes {
    pub accounts: Vec<(Arc<str>, Account)>,
    /// `None`: the lease has ended.
    pub leases: Vec<(LeaseId, Option<Held>)>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty() && self.leases.is_empty()
    }
}

type Ids = HashSet<LeaseId, BuildHasherDefault<IdHasher>>;

#[derive(Debug, Default)]
pub struct Watch {
    /// By the ledger's index: accounts that are journalled.
    kept: Vec<Option<Kept>>,
    accounts: Vec<usize>,
    leases: Ids,
    /// Leases that the journal knows. The end of any other is no news, so that `leases` stays bounded by the calls in
    /// flight while a disk hangs.
    known: Ids,
}

#[derive(Debug)]
struct Kept {
    key: Arc<str>,
    changed: bool,
}

impl Watch {
    /// From here on the account is journalled; false if it already was.
    pub fn keep(&mut self, at: usize, key: &str) -> bool {
        if self.kept.len() <= at {
            self.kept.resize_with(at + 1, || None);
        }
        if self.kept[at].is_some() {
            return false;
        }
        self.kept[at] = Some(Kept { key: key.into(), changed: true });
        self.accounts.push(at);
        true
    }

    pub fn accounts(&mut self, changed: &[usize]) {
        for &at in changed {
            if let Some(Some(kept)) = self.kept.get_mut(at)
                && !std::mem::replace(&mut kept.changed, true)
            {
                self.accounts.push(at);
            }
        }
    }

    pub fn lease(&mut self, id: LeaseId, lives: bool) {
        if lives || self.known.contains(&id) {
            self.leases.insert(id);
        } else {
            self.leases.remove(&id);
        }
    }

    pub fn take(
        &mut self,
        account: impl Fn(usize) -> Account,
        lease: impl Fn(LeaseId) -> Option<(Arc<Chain>, Hold)>,
    ) -> Changes {
        let mut changes = Changes::default();
        for at in self.accounts.drain(..) {
            if let Some(Some(kept)) = self.kept.get_mut(at) {
                kept.changed = false;
                changes.accounts.push((kept.key.clone(), account(at)));
            }
        }
        for id in self.leases.drain() {
            let live = lease(id);
            match &live {
                Some(_) => self.known.insert(id),
                None => self.known.remove(&id),
            };
            changes.leases.push((id, live));
        }
        changes
    }
}
