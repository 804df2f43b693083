//! The gateway's own ledger as `bench quota` wants it: orgs with limits at four levels that no run reaches.

use std::{sync::Arc, time::Duration};

use ::bench::quota::{Connect, Pairs, Store as BenchStore};
use futures_util::{FutureExt, future::BoxFuture};
use proxy::quota::{
    Ceilings, Chain, Clock, Demand, Holding, Level, Limit, OnLimit, OnStoreFailure, Options, Outcome, Pattern, Price,
    Quota, RedisOptions, Rule, Store, Subject, Unit,
};
use wire::{Metered, Usage};

const MODEL: &str = "bench";
const DEMAND: Demand = Demand { input: 100, output: 100, price: Price { input: 0, output: 0 } };
const USED: Usage = Usage { prompt: 100, completion: 50, cached: 0 };
const MINUTE: Duration = Duration::from_secs(60);

pub struct Ledger;

struct Open {
    quota: Arc<Quota>,
    /// One subject per org.
    chains: Vec<Arc<Chain>>,
}

impl Connect for Ledger {
    fn connect<'a>(&'a self, store: &'a BenchStore, orgs: usize) -> BoxFuture<'a, Result<Arc<dyn Pairs>, String>> {
        async move {
            let store = match store {
                BenchStore::Memory => Store::memory(Clock::Wall),
                BenchStore::Redis { url } => {
                    Store::redis(url, RedisOptions::default()).await.map_err(|error| error.to_string())?
                }
            };
            let quota = Quota::new(Level::ALL.map(rule).into(), store, Options::default());
            let chains = (0..orgs).map(|org| quota.chain(&subject(org), &[MODEL])).collect();
            Ok(Arc::new(Open { quota, chains }) as Arc<dyn Pairs>)
        }
        .boxed()
    }
}

fn subject(org: usize) -> Subject {
    Subject { org: Some(format!("org-{org}")), app: Some("app".to_owned()), user: Some("user".to_owned()), tier: None }
}

/// Requests and tokens per minute, as most quotas have them, far above what a run can use.
fn rule(level: Level) -> Rule {
    let limit = |unit| Limit::per(unit, 1_000_000_000_000, MINUTE);
    Rule {
        level,
        matcher: Pattern::any(),
        models: Vec::new(),
        name: None,
        limits: vec![limit(Unit::Requests), limit(Unit::Tokens)],
        ceilings: Ceilings::default(),
        on_store_failure: OnStoreFailure::Closed,
        holding: Holding::default(),
        on_limit: OnLimit::Reject,
        shadow: false,
    }
}

impl Pairs for Open {
    fn pair(&self, org: usize) -> BoxFuture<'_, Result<(), String>> {
        async move {
            let chain = self.chains.get(org).ok_or_else(|| format!("there is no org {org}"))?;
            let mut reservation = self.quota.reserve(chain, DEMAND).await.map_err(|refused| format!("{refused:?}"))?;
            reservation.dispatched();
            reservation.settle(Outcome::Used { metered: Metered::Exact(USED), nano_usd: 0 });
            Ok(())
        }
        .boxed()
    }

    fn settled(&self) -> BoxFuture<'_, Result<(), String>> {
        async move {
            let drained = self.quota.drain(MINUTE).await;
            drained.then_some(()).ok_or_else(|| format!("settlements were still on their way after {MINUTE:?}"))
        }
        .boxed()
    }
}
