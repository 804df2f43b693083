//! More output for a call that runs: a stream that goes on beyond its hold, or the longer answer of a cascade.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};

use super::super::Shared;
use super::super::account::Amounts;
use super::super::chain::Chain;
use super::super::holding::Bind;
use super::super::keeper::Live;
use super::super::refusal::{self, Refused};
use super::super::rule::{Demand, OnStoreFailure};
use super::super::settler::Permit;
use super::super::stats::Operation;
use super::super::store::{Answer, Extension, Status, StoreError};
use super::Reservation;

impl Reservation {
    /// Holds `output` more tokens at every level, or nothing at any. Nobody has to wait for it: the call may go on
    /// meanwhile, and may end.
    pub fn extend(&mut self, output: u64, bind: Bind) -> BoxFuture<'static, Result<(), Refused>> {
        let (shared, live) = (self.shared.clone(), self.live.clone());
        let demand = live.demand();
        let longer = Demand { output: demand.output.saturating_add(output), ..demand };
        if let Some(Permit::Unstored(ticket)) = &mut self.permit {
            let (chain, need) = (live.chain(), Amounts::of_demand(&longer));
            let held = shared.outage.amend(ticket, &chain, need, shared.store.gateways());
            let gone_on = held.or_else(|refused| if needs_store(&chain, bind) { Err(refused) } else { Ok(()) });
            if gone_on.is_ok() {
                shared.extended(&live, longer);
            }
            return ready(gone_on).boxed();
        }
        if !live.is_stored() {
            shared.extended(&live, longer);
            return ready(Ok(())).boxed();
        }
        async move { shared.extend(&live, longer, bind).await }.boxed()
    }
}

impl Shared {
    async fn extend(&self, live: &Live, longer: Demand, bind: Bind) -> Result<(), Refused> {
        let (chain, demand) = (live.chain(), live.demand());
        let (held, wanted) = (Amounts::of_demand(&demand), Amounts::of_demand(&longer));
        let (output, nano_usd) = (wanted.output - held.output, wanted.nano_usd - held.nano_usd);
        let more = Amounts { output, nano_usd, ..Amounts::default() };
        // Those that cannot outlive their holder have no deadline.
        let extension = Extension { id: live.id, more, ttl: self.options.lease_ttl, bind };
        let asked = self.store.extend(&chain, &extension);
        let error = match self.stats.timed(Operation::Extend, asked).await {
            Ok(answer) if answer.status == Status::Done => {
                self.extended(live, longer);
                return Ok(());
            }
            Ok(answer) if answer.status == Status::Full => {
                return Err(self.extension_refused(&chain, &more, &answer, bind));
            }
            Ok(Answer { status, .. }) => StoreError::Refused(format!("the lease cannot be extended: {status:?}")),
            Err(error) => error,
        };
        if needs_store(&chain, bind) { Err(Refused::Store(error)) } else { Ok(()) }
    }

    fn extended(&self, live: &Live, longer: Demand) {
        let held = Amounts::of_demand(&live.demand()).tokens();
        self.stats.extended(Amounts::of_demand(&longer).tokens() - held);
        live.extended(longer);
    }

    fn extension_refused(&self, chain: &Arc<Chain>, more: &Amounts, answer: &Answer, bind: Bind) -> Refused {
        let level = |(entry, &level): (&super::super::chain::ChainLimit, &f64)| match entry.binds(bind) {
            true => level,
            false => f64::NEG_INFINITY,
        };
        let levels: Vec<f64> = chain.limits.iter().zip(&answer.levels).map(level).collect();
        match refusal::judge(chain, more, &levels, answer.now_us, chain.rate()) {
            Some(refusal) => {
                self.stats.extension_refused(refusal.level, &refusal.limit);
                Refused::Limit(Box::new(refusal))
            }
            None => Refused::Store(StoreError::Unreadable("a refusal that no limit explains".to_owned())),
        }
    }
}

/// A limit that may refuse does not go on without the store.
fn needs_store(chain: &Chain, bind: Bind) -> bool {
    let mut limits = chain.limits.iter().filter(|entry| entry.binds(bind) && !entry.terms.shadow);
    limits.any(|entry| entry.on_failure != OnStoreFailure::Open)
}
