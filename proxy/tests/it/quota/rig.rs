//! One store with time that a test can move: the embedded store by its clock, Redis by waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proxy::quota::account::{Amounts, Totals};
use proxy::quota::audit::{Audit, audit};
use proxy::quota::store::{Answer, Ask, Renewal, Status};
use proxy::quota::{
    Ceilings, Chain, Clock, Demand, Holding, LeaseId, Level, Limit, OnExpiry, OnLimit, OnStoreFailure, Options,
    Outcome, Pattern, Price, Quota, RedisOptions, Refusal, Refused, Reservation, Rule, Share, Store, Subject, Tier,
    Unit,
};
use wire::{Metered, Usage};

use super::redis_server::RedisServer;

/// Midday of a day without clock changes, so that no test meets midnight by accident.
const NOON_US: u64 = 1_780_315_200_000_000;

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Memory,
    Redis,
}

pub struct Rig {
    clock: Arc<AtomicU64>,
    pub redis: Option<RedisServer>,
}

impl Rig {
    pub fn new(kind: Kind) -> Self {
        let redis = match kind {
            Kind::Memory => None,
            Kind::Redis => Some(RedisServer::start()),
        };
        Self { clock: Arc::new(AtomicU64::new(NOON_US)), redis }
    }

    pub async fn store(&self) -> Store {
        match &self.redis {
            None => Store::memory(Clock::Manual(self.clock.clone())),
            Some(server) => patient(&server.url()).await,
        }
    }

    pub async fn quota(&self, rules: Vec<Rule>) -> Arc<Quota> {
        Quota::new(rules, self.store().await, options())
    }

    /// Lets time pass on the store's clock.
    pub async fn pass(&self, time: Duration) {
        match &self.redis {
            None => {
                self.clock.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
            }
            Some(_) => tokio::time::sleep(time).await,
        }
    }

    fn now_us(&self) -> u64 {
        match &self.redis {
            None => self.clock.load(Ordering::Relaxed),
            Some(server) => {
                let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut server.connection()).unwrap();
                seconds * 1_000_000 + micros
            }
        }
    }

    /// Starts a scenario at the start of a calendar second and gives what it saw, if it took exactly `seconds` windows
    /// as intended. On a busy machine with real time it may not have: then another one is played on fresh accounts,
    /// which carry the number of the attempt in their name.
    pub async fn in_seconds<T>(&self, seconds: u64, scenario: impl AsyncFn(usize) -> T) -> T {
        for attempt in 0..30 {
            self.pass(Duration::from_micros(1_000_000 - self.now_us() % 1_000_000 + 1000)).await;
            let start = self.now_us() / 1_000_000;
            let seen = scenario(attempt).await;
            if self.now_us() / 1_000_000 - start == seconds {
                return seen;
            }
        }
        panic!("the machine is too busy: no attempt of 30 stayed within its seconds");
    }
}

/// Generous: on a busy machine a slow answer is not what a test is about.
pub async fn patient(url: &str) -> Store {
    Store::redis(url, waits(Duration::from_secs(5))).await.unwrap()
}

/// How long a call may wait for the store; the start may take longer.
pub fn waits(timeout: Duration) -> RedisOptions {
    RedisOptions { timeout, start_timeout: Duration::from_secs(10), ..RedisOptions::default() }
}

pub fn options() -> Options {
    Options { lease_ttl: Duration::from_secs(60), capacity: 4096, ..Options::default() }
}

/// Runs one test body on both stores.
macro_rules! both {
    ($($name:ident),* $(,)?) => {
        mod in_memory {
            $(#[tokio::test] async fn $name() { super::$name(&super::Rig::new(super::Kind::Memory)).await })*
        }
        mod on_redis {
            $(#[tokio::test] async fn $name() { super::$name(&super::Rig::new(super::Kind::Redis)).await })*
        }
    };
}
pub(super) use both;

pub fn ana() -> Subject {
    Subject { org: Some("acme".into()), app: Some("web".into()), user: Some("ana".into()), tier: None }
}

pub fn rule(level: Level, limits: Vec<Limit>) -> Rule {
    let (matcher, ceilings, on_store_failure) = (Pattern::any(), Ceilings::default(), OnStoreFailure::Closed);
    let (models, on_limit, holding) = (vec![], OnLimit::Reject, Holding::default());
    Rule { level, matcher, models, name: None, limits, ceilings, on_limit, on_store_failure, holding, shadow: false }
}

/// `ana` in a tier that may not use this share of any limit.
pub fn below(kept: f64) -> Subject {
    let tier = Tier { name: "standard".into(), rank: 1, kept: Share::new(kept), shares: Arc::default() };
    Subject { tier: Some(Arc::new(tier)), ..ana() }
}

/// The same limits at all four levels.
pub fn everywhere(limits: &[Limit]) -> Vec<Rule> {
    Level::ALL.map(|level| rule(level, limits.to_vec())).to_vec()
}

pub fn tokens(amount: u64) -> Limit {
    Limit::lifetime(Unit::Tokens, amount)
}

pub fn requests(amount: u64) -> Limit {
    Limit::lifetime(Unit::Requests, amount)
}

pub fn chain(rules: &[Rule]) -> Arc<Chain> {
    Arc::new(Chain::resolve(rules, &ana(), &["m"]))
}

pub const PRICE: Price = Price { input: 150_000_000, output: 600_000_000 };

pub fn demand(input: u64, output: u64) -> Demand {
    Demand::new(input, output, PRICE)
}

pub fn used(prompt: u64, completion: u64) -> Outcome {
    let metered = Metered::Exact(Usage { prompt, completion, cached: 0 });
    Outcome::Used { metered, nano_usd: PRICE.cost(prompt, completion) }
}

pub fn ask(id: LeaseId, input: u64, output: u64, hold: Duration) -> Ask {
    Ask { id, need: Amounts::held(input, output, PRICE.cost(input, output)), hold }
}

pub fn spent(input: u64, output: u64) -> Amounts {
    Amounts::used(1, input, output, PRICE.cost(input, output))
}

pub fn renewal(id: LeaseId, held: (u64, u64), streamed: u64, ttl: Duration) -> Renewal {
    Renewal {
        id,
        held: Amounts::held(held.0, held.1, PRICE.cost(held.0, held.1)),
        checkpoint: spent(held.0, streamed),
        dispatched: true,
        ttl,
        reassert: false,
    }
}

pub async fn reserve(quota: &Quota, demand: Demand) -> Result<Reservation, Refused> {
    quota.reserve(&quota.chain(&ana(), &["m"]), demand).await
}

pub fn refusal(result: Result<Reservation, Refused>) -> Refusal {
    match result {
        Err(Refused::Limit(refusal)) => *refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Waits for the settler, then reads the books.
pub async fn books(quota: &Quota) -> Audit {
    assert!(quota.drain(Duration::from_secs(10)).await, "something never settled: {:?}", quota.stats());
    assert_eq!(quota.stats().leaked(), 0);
    audit(quota.store()).await.unwrap()
}

/// Levels of the only limit of every account that has been used, and that the books balance.
pub fn levels(audit: &Audit) -> Vec<f64> {
    assert!(audit.is_balanced(), "{:#?}", audit.faults());
    audit.accounts.values().flat_map(|account| account.slots.values().map(|(slot, _)| slot.level)).collect()
}

pub fn totals(audit: &Audit) -> Vec<Totals> {
    audit.accounts.values().map(|account| account.totals).collect()
}

/// What a chain's limits stand at: the levels of a reserve of no tokens that is cancelled at once, less itself.
pub async fn peek(store: &Store, chain: &Arc<Chain>) -> Vec<f64> {
    let ask = ask(LeaseId::random(), 0, 0, Duration::from_secs(5));
    let answer = store.reserve(chain, &ask).await.unwrap();
    store.cancel(chain, ask.id).await.unwrap();
    let own = |unit| if answer.status == Status::Done { ask.need.of(unit) } else { 0.0 };
    chain.limits().iter().zip(answer.levels).map(|(entry, level)| level - own(entry.terms.unit)).collect()
}

pub fn done(answer: &Answer) {
    assert_eq!(answer.status, Status::Done, "{answer:?}");
}

pub const CHARGE: OnExpiry = OnExpiry::Charge;
