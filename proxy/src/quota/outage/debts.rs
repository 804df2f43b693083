//! What was used without the store goes into the accounts once it answers: one lease per debt, written whatever the
//! limits and settled at once, so that a repeated or interrupted charge counts once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;

use super::super::Shared;
use super::super::account::Amounts;
use super::super::chain::Chain;
use super::super::lease::LeaseId;
use super::super::reclaim;
use super::super::rule::MAX_AMOUNT;
use super::super::stats::Operation;
use super::super::store::{Renewal, Status, Store, StoreError};

/// 20 every 20 ms, at most 1,000 per second, so that new reserves go first.
const EVERY: Duration = Duration::from_millis(20);
const BATCH: usize = 20;
/// Times a store that is up may refuse a debt.
const REFUSALS: u32 = 20;

/// Use of one chain that its accounts do not know of.
#[derive(Debug)]
pub(in crate::quota) struct Debt {
    pub chain: Arc<Chain>,
    pub used: Amounts,
}

/// A debt on its way. The lease's name stays the same whatever happens, so that it is charged once.
#[derive(Debug)]
struct Charge {
    debt: Debt,
    id: LeaseId,
    written: bool,
    /// A settle was sent, so that a lease that is gone means settled.
    settling: bool,
    refusals: u32,
}

impl Debt {
    pub fn new(chain: Arc<Chain>) -> Self {
        Self { chain, used: Amounts::default() }
    }

    /// Sums stay where doubles count exactly.
    pub fn add(&mut self, used: &Amounts) {
        let sum = |a: f64, b: f64| (a + b).min(MAX_AMOUNT as f64 / 2.0);
        let Amounts { requests, input, output, nano_usd, .. } = self.used;
        self.used = Amounts {
            requests: sum(requests, used.requests),
            input: sum(input, used.input),
            output: sum(output, used.output),
            nano_usd: sum(nano_usd, used.nano_usd),
            // Whatever was in flight has ended.
            concurrency: 0.0,
        };
    }
}

impl Charge {
    fn new(debt: Debt) -> Self {
        Self { debt, id: LeaseId::random(), written: false, settling: false, refusals: 0 }
    }

    /// Its checkpoint is the whole charge: should this gateway die in between, expiry charges it.
    async fn write(&mut self, shared: &Shared) -> Result<(), StoreError> {
        let renewal = Renewal {
            id: self.id,
            held: Amounts::held(0, 0, 0),
            checkpoint: self.debt.used,
            dispatched: true,
            ttl: shared.options.lease_ttl,
            reassert: true,
        };
        reclaim::introduce(shared, &self.debt.chain).await;
        shared.stats.timed(Operation::Renew, shared.store.renew(&self.debt.chain, &renewal)).await?;
        self.written = true;
        Ok(())
    }

    async fn send(&mut self, shared: &Shared) -> Result<(), StoreError> {
        loop {
            if !self.written {
                self.write(shared).await?;
            }
            let sent = std::mem::replace(&mut self.settling, true);
            let settle = shared.store.settle(&self.debt.chain, self.id, &self.debt.used);
            let answer = shared.stats.timed(Operation::Settle, settle).await?;
            if sent || answer.status != Status::Absent {
                return Ok(());
            }
            // Written, not settled, and gone: the store has lost its memory in between.
            (self.written, self.settling) = (false, false);
        }
    }

    /// The store answers, and it refuses this one again and again: it will not be otherwise.
    fn is_hopeless(&mut self, error: &StoreError) -> bool {
        self.refusals += u32::from(matches!(error, StoreError::Refused(_) | StoreError::Unreadable(_)));
        self.refusals >= REFUSALS
    }
}

/// The embedded store does not fail.
pub(in crate::quota) fn start(shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
    matches!(shared.store, Store::Redis(_)).then(|| tokio::spawn(run(shared.clone())))
}

async fn run(shared: Arc<Shared>) {
    let mut charges: Vec<Charge> = Vec::new();
    loop {
        if charges.is_empty() {
            charges.extend(shared.outage.take(BATCH).into_iter().map(Charge::new));
        }
        if charges.is_empty() {
            shared.outage.owing.notified().await;
            continue;
        }
        tokio::time::sleep(EVERY).await;
        if shared.store.serves_some() {
            charges = send(&shared, charges).await;
        }
    }
}

/// Those that are still to be sent.
async fn send(shared: &Shared, mut charges: Vec<Charge>) -> Vec<Charge> {
    let results = join_all(charges.iter_mut().map(|charge| charge.send(shared))).await;
    let mut left = Vec::new();
    for (mut charge, result) in charges.into_iter().zip(results) {
        match result {
            Ok(()) => shared.outage.charged(&charge.debt),
            Err(error) if shared.store.serves(&charge.debt.chain) && charge.is_hopeless(&error) => {
                let (tokens, accounts) = (charge.debt.used.tokens(), charge.debt.chain.accounts.len());
                tracing::error!(%error, tokens, accounts, "use during an outage is lost: the store refuses it");
                shared.outage.charged(&charge.debt);
            }
            Err(error) => {
                tracing::debug!(%error, "use during an outage is charged when the store answers");
                left.push(charge);
            }
        }
    }
    left
}
