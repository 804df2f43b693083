//! The queues that calls of a chain may have to wait in, one per account with a limit that says so.

use std::time::Duration;

use super::Chain;
use crate::quota::identity::{queue_key, tenant};
use crate::quota::rule::{Level, Subject};
use crate::quota::turns::Tenant;

#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// Index into the accounts of the chain.
    pub account: usize,
    pub key: String,
    /// Whose turn a call of the chain takes: of the direct children of the account.
    pub tenant: Tenant,
    pub depth: usize,
    pub most_wait: Duration,
}

pub(super) fn of(chain: &Chain, subject: &Subject) -> Vec<Queue> {
    let queue = |(at, account): (usize, &super::ChainAccount)| {
        let waits = chain.limits.iter().filter(|entry| entry.account == at).filter_map(|entry| entry.wait);
        let wait = waits.reduce(|one, other| one.stricter(other))?;
        let child = match account.level {
            Level::Global => subject.path(Level::Org),
            Level::Org => subject.path(Level::App),
            Level::App => subject.path(Level::User),
            // Calls of one user go in order of arrival.
            Level::User => None,
        };
        Some(Queue {
            account: at,
            key: queue_key(&account.key),
            tenant: child.map_or_else(Tenant::default, |path| tenant(&path)),
            depth: wait.depth,
            most_wait: wait.most,
        })
    };
    chain.accounts.iter().enumerate().filter_map(queue).collect()
}

impl Chain {
    /// The longest that a call of this chain may wait.
    pub fn most_wait(&self) -> Duration {
        self.queues.iter().map(|queue| queue.most_wait).min().unwrap_or_default()
    }

    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }
}
