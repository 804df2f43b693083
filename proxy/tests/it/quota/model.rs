//! Random histories: the Lua on a real server against the pure ledger, bit for bit. The server's own clock is read
//! from each answer and given to the ledger, so nothing in the scripts is there for the test.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proxy::quota::account::{Amounts, Slot};
use proxy::quota::audit::audit;
use proxy::quota::ledger::Ledger;
use proxy::quota::store::{Ask, Extension, Renewal, Status};
use proxy::quota::{
    Bind, CalendarPeriod, Chain, Holding, LeaseId, Level, Limit, OnExpiry, Overrun, Pattern, Rule, Store, Unit, Window,
};

use super::redis_server::RedisServer;
use super::rig::{ana, below, patient, rule};

#[derive(Clone, Debug)]
enum Op {
    Reserve {
        lease: u128,
        chain: usize,
        input: u64,
        output: u64,
        hold_ms: u64,
    },
    Amend {
        lease: u128,
        chain: usize,
        input: u64,
        output: u64,
    },
    Renew {
        lease: u128,
        streamed: u64,
        dispatched: bool,
        ttl_ms: u64,
        reassert: bool,
    },
    Extend {
        lease: u128,
        output: u64,
        all: bool,
        ttl_ms: u64,
    },
    Settle {
        lease: u128,
        requests: u64,
        input: u64,
        output: u64,
    },
    Cancel {
        lease: u128,
    },
    Expire {
        lease: u128,
        refund: bool,
    },
    Wait {
        ms: u64,
    },
    /// Reserves and settles at once: the first ones travel alone, the others in one batch.
    Together(Vec<Op>),
}

fn op(chains: usize) -> impl Strategy<Value = Op> {
    let (lease, chain) = (0u128..8, 0..chains);
    let amount = || 0u64..60;
    let reserve = (lease.clone(), chain.clone(), amount(), amount(), 1u64..60)
        .prop_map(|(lease, chain, input, output, hold_ms)| Op::Reserve { lease, chain, input, output, hold_ms });
    let settle = (lease.clone(), 0u64..2, amount(), 0u64..200)
        .prop_map(|(lease, requests, input, output)| Op::Settle { lease, requests, input, output });
    prop_oneof![
        5 => reserve.clone(),
        2 => (lease.clone(), chain, amount(), amount())
            .prop_map(|(lease, chain, input, output)| Op::Amend { lease, chain, input, output }),
        2 => (lease.clone(), amount(), any::<bool>(), 1u64..60, prop::bool::weighted(0.2)).prop_map(
            |(lease, streamed, dispatched, ttl_ms, reassert)| Op::Renew { lease, streamed, dispatched, ttl_ms, reassert }
        ),
        3 => (lease.clone(), amount(), any::<bool>(), 1u64..60)
            .prop_map(|(lease, output, all, ttl_ms)| Op::Extend { lease, output, all, ttl_ms }),
        4 => settle.clone(),
        4 => prop::collection::vec(prop_oneof![reserve, settle], 3..8).prop_map(Op::Together),
        1 => lease.clone().prop_map(|lease| Op::Cancel { lease }),
        2 => (lease, any::<bool>()).prop_map(|(lease, refund)| Op::Expire { lease, refund }),
        1 => (1u64..40).prop_map(|ms| Op::Wait { ms }),
    ]
}

/// Every kind of window and unit, over all levels; three models of which two share accounts but not all limits.
fn rules() -> Vec<Rule> {
    let bucket = |unit, amount, period_ms, burst| Limit {
        unit,
        amount,
        window: Window::Bucket { period: Duration::from_millis(period_ms), burst },
    };
    let calendar = |unit, amount| {
        let zone = TimeZone::get("Europe/Lisbon").unwrap();
        Limit { unit, amount, window: Window::Calendar { period: CalendarPeriod::Second, zone } }
    };
    let only = |model: &str, rule: Rule| Rule { models: vec![Pattern::new(model).unwrap()], ..rule };
    let shadow = |rule: Rule| Rule { shadow: true, ..rule };
    let stop = |rule: Rule| Rule { holding: Holding { overrun: Overrun::Stop, ..Holding::default() }, ..rule };
    vec![
        rule(Level::User, vec![bucket(Unit::Tokens, 700, 300, 170), Limit::concurrency(4)]),
        only("a", rule(Level::User, vec![bucket(Unit::Requests, 7, 90, 5)])),
        stop(only("b", rule(Level::App, vec![calendar(Unit::OutputTokens, 190)]))),
        stop(rule(Level::Org, vec![calendar(Unit::Tokens, 400), bucket(Unit::InputTokens, 1000, 700, 300)])),
        only("a", rule(Level::Org, vec![Limit::lifetime(Unit::NanoUsd, 40_000_000)])),
        rule(Level::Global, vec![Limit::lifetime(Unit::Tokens, 5000), calendar(Unit::Requests, 20)]),
        shadow(rule(Level::Org, vec![calendar(Unit::Tokens, 30), bucket(Unit::Requests, 9, 200, 2)])),
        shadow(only("a", rule(Level::App, vec![bucket(Unit::Tokens, 10, 100, 0), Limit::concurrency(1)]))),
    ]
}

/// One of them for a caller of a lower tier as well, on the same accounts.
fn three_models() -> Vec<Chain> {
    let chain = |subject, model| Chain::resolve(&rules(), &subject, &[model]);
    ["a", "b", "c"].map(|model| chain(ana(), model)).into_iter().chain([chain(below(0.3), "b")]).collect()
}

/// Rules that come and go, each with so many limits that an account cannot keep them all. All refill slowly, so that
/// nearly all of them say something.
fn eight_configurations() -> Vec<Chain> {
    let bucket = |unit, hours: u64| Limit {
        unit,
        amount: 1000,
        window: Window::Bucket { period: Duration::from_secs(3600 * hours), burst: 1_000_000 },
    };
    let units = [Unit::Tokens, Unit::InputTokens, Unit::OutputTokens];
    let configuration = |number: usize| {
        let buckets = units.into_iter().flat_map(|unit| (1..=15u64).map(move |hours| bucket(unit, hours)));
        let limits = buckets.chain([Limit::lifetime(Unit::Tokens, 1_000_000), Limit::concurrency(100)]).collect();
        let name = Some(format!("configuration {number}"));
        let kept = rule(Level::Org, vec![Limit::per(Unit::Tokens, 4000, Duration::from_secs(3600))]);
        Chain::resolve(&[Rule { name, ..rule(Level::Org, limits) }, named("kept", kept)], &ana(), &["m"])
    };
    (0..8).map(configuration).collect()
}

fn named(name: &str, rule: Rule) -> Rule {
    Rule { name: Some(name.to_owned()), matcher: Pattern::new("a*").unwrap(), ..rule }
}

#[derive(Debug)]
enum Asked {
    Reserve(u128, usize, Ask),
    Settle(usize, LeaseId, Amounts),
}

/// The same history on both; what each lease is on is tracked here, as a gateway would.
struct Pair {
    store: Store,
    ledger: Ledger,
    ours: Vec<Arc<Chain>>,
    theirs: Vec<Arc<Chain>>,
    /// The chain that the gateway believes a lease to be on.
    on: [usize; 8],
    /// The one that it is on. A settle that names another takes a second trip, and others may come between.
    held_on: [usize; 8],
    salt: u128,
}

impl Pair {
    async fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let id = |lease: u128| LeaseId(self.salt + lease);
        let ask = |lease, input: u64, output: u64, hold_ms| {
            let need = Amounts::held(input, output, input * 150 + output * 600);
            Ask { id: id(lease), need, hold: Duration::from_millis(hold_ms) }
        };
        let (redis, model) = match *op {
            Op::Reserve { lease, chain, input, output, hold_ms } => {
                let ask = ask(lease, input, output, hold_ms);
                // A gateway repeats an id only with the same call.
                let chain = if self.is_live(lease) { self.on[lease as usize] } else { chain };
                let redis = self.store.reserve(&self.ours[chain], &ask).await.unwrap();
                self.on[lease as usize] = chain;
                if redis.status == Status::Done {
                    self.held_on[lease as usize] = chain;
                }
                let model = self.ledger.reserve(&self.theirs[chain], &ask, redis.now_us);
                (redis, model)
            }
            Op::Amend { lease, chain, input, output } => {
                let (ask, old) = (ask(lease, input, output, 40), self.on[lease as usize]);
                let redis = self.store.amend(&self.ours[old], &self.ours[chain], &ask).await.unwrap();
                if redis.status == Status::Done {
                    (self.on[lease as usize], self.held_on[lease as usize]) = (chain, chain);
                }
                let model = self.ledger.amend(&self.theirs[chain], &ask, redis.now_us);
                (redis, model)
            }
            Op::Renew { lease, streamed, dispatched, ttl_ms, reassert } => {
                let renewal = Renewal {
                    id: id(lease),
                    held: Amounts::held(30, 20, 777),
                    checkpoint: Amounts::used(1, 30, streamed, streamed * 600),
                    dispatched,
                    ttl: Duration::from_millis(ttl_ms),
                    reassert,
                };
                let chain = self.on[lease as usize];
                let redis = self.store.renew(&self.ours[chain], &renewal).await.unwrap();
                if redis.status == Status::Done && !self.is_live(lease) {
                    self.held_on[lease as usize] = chain;
                }
                (redis.clone(), self.ledger.renew(&self.theirs[chain], &renewal, redis.now_us))
            }
            Op::Extend { lease, output, all, ttl_ms } => {
                let more = Amounts { output: output as f64, nano_usd: (output * 600) as f64, ..Amounts::default() };
                let bind = if all { Bind::All } else { Bind::Stops };
                let extension = Extension { id: id(lease), more, ttl: Duration::from_millis(ttl_ms), bind };
                let redis = self.store.extend(&self.ours[self.held_on[lease as usize]], &extension).await.unwrap();
                (redis.clone(), self.ledger.extend(&extension, redis.now_us))
            }
            Op::Settle { lease, requests, input, output } => {
                let actual = Amounts::used(requests, input, output, input * 150 + output * 600);
                let redis = self.store.settle(&self.ours[self.on[lease as usize]], id(lease), &actual).await.unwrap();
                (redis.clone(), self.ledger.settle(id(lease), &actual, redis.now_us))
            }
            Op::Cancel { lease } => {
                let redis = self.store.cancel(&self.ours[self.on[lease as usize]], id(lease)).await.unwrap();
                (redis.clone(), self.ledger.cancel(id(lease), redis.now_us))
            }
            Op::Expire { lease, refund } => {
                let policy = if refund { OnExpiry::Refund } else { OnExpiry::Charge };
                let redis = self.store.expire(&self.ours[self.on[lease as usize]], id(lease), policy).await.unwrap();
                (redis.clone(), self.ledger.expire(id(lease), policy, redis.now_us))
            }
            Op::Wait { ms } => {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                return Ok(());
            }
            Op::Together(ref ops) => return self.apply_together(ops).await,
        };
        prop_assert_eq!((redis.status, &redis.levels), (model.status, &model.levels), "{:?}", op);
        Ok(())
    }

    /// Each lease once: what a second operation of it asks for would depend on the first one's answer.
    async fn apply_together(&mut self, ops: &[Op]) -> Result<(), TestCaseError> {
        let mut seen = Vec::new();
        let (mut asked, mut answers) = (Vec::new(), Vec::new());
        for op in ops {
            let (Op::Reserve { lease, .. } | Op::Settle { lease, .. }) = *op else { continue };
            if seen.contains(&lease) {
                continue;
            }
            seen.push(lease);
            let (id, on) = (LeaseId(self.salt + lease), self.held_on[lease as usize]);
            match *op {
                Op::Reserve { chain, input, output, hold_ms, .. } => {
                    let chain = if self.is_live(lease) { on } else { chain };
                    let need = Amounts::held(input, output, input * 150 + output * 600);
                    let ask = Ask { id, need, hold: Duration::from_millis(hold_ms) };
                    asked.push(Asked::Reserve(lease, chain, ask));
                }
                Op::Settle { requests, input, output, .. } => {
                    let actual = Amounts::used(requests, input, output, input * 150 + output * 600);
                    asked.push(Asked::Settle(on, id, actual));
                }
                _ => {}
            }
        }
        for asked in &asked {
            let (store, ours) = (&self.store, &self.ours);
            answers.push(async move {
                match asked {
                    Asked::Reserve(_, chain, ask) => store.reserve(&ours[*chain], ask).await,
                    Asked::Settle(chain, id, actual) => store.settle(&ours[*chain], *id, actual).await,
                }
            });
        }
        let answers = futures_util::future::join_all(answers).await;
        for (asked, redis) in asked.iter().zip(answers) {
            let redis = redis.unwrap();
            let model = match asked {
                Asked::Reserve(lease, chain, ask) => {
                    if redis.status == Status::Done {
                        (self.on[*lease as usize], self.held_on[*lease as usize]) = (*chain, *chain);
                    }
                    self.ledger.reserve(&self.theirs[*chain], ask, redis.now_us)
                }
                Asked::Settle(_, id, actual) => self.ledger.settle(*id, actual, redis.now_us),
            };
            prop_assert_eq!((redis.status, &redis.levels), (model.status, &model.levels), "{:?}", asked);
        }
        Ok(())
    }

    fn is_live(&self, lease: u128) -> bool {
        self.ledger.live().any(|(id, ..)| id == LeaseId(self.salt + lease))
    }

    async fn compare(&self) -> Result<(), TestCaseError> {
        let redis = audit(&self.store).await.unwrap();
        prop_assert!(redis.is_balanced(), "{:#?}", redis.faults());
        prop_assert_eq!(redis.live_leases, self.ledger.live().count());
        prop_assert_eq!(redis.expired_leases, self.ledger.expired());
        for (key, account) in self.ledger.accounts() {
            let theirs = redis.accounts.get(key);
            prop_assert_eq!(theirs.map(|a| a.totals).unwrap_or_default(), account.totals, "{}", key);
            for (id, Slot { level, .. }) in &account.slots {
                let stored = theirs.and_then(|a| a.slots.get(id)).map_or(0.0, |(slot, _)| slot.level);
                prop_assert_eq!(stored.to_bits(), level.to_bits(), "{} {:?}", key, id);
            }
        }
        Ok(())
    }
}

#[test]
fn random_histories_agree_with_the_pure_ledger_bit_for_bit() {
    agree(60, 80, three_models);
}

#[test]
fn random_histories_of_more_limits_than_an_account_can_keep_agree_too() {
    agree(30, 60, eight_configurations);
}

fn agree(cases: u32, longest: usize, chains: fn() -> Vec<Chain>) {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let salt = Cell::new(0u128);
    let outcome = runner.run(&prop::collection::vec(op(chains().len()), 1..longest), |history| {
        runtime.block_on(async {
            redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
            salt.set(salt.get() + 1000);
            let chains = || chains().into_iter().map(Arc::new).collect();
            let store = patient(&server.url()).await;
            let mut pair = Pair {
                store,
                ledger: Ledger::default(),
                ours: chains(),
                theirs: chains(),
                on: [0; 8],
                held_on: [0; 8],
                salt: salt.get(),
            };
            for op in &history {
                pair.apply(op).await?;
            }
            pair.compare().await
        })
    });
    if let Err(failure) = outcome {
        panic!("{failure}\nthe history above is minimal; it replays as it stands");
    }
}

#[tokio::test]
async fn a_settle_that_names_other_accounts_finds_the_right_ones() {
    let server = RedisServer::start();
    let store = patient(&server.url()).await;
    let rules = rules();
    let [a, b] = ["a", "b"].map(|model| Arc::new(Chain::resolve(&rules, &ana(), &[model])));
    let id = LeaseId::random();
    let ask = Ask { id, need: Amounts::held(10, 20, 5), hold: Duration::from_secs(60) };
    store.reserve(&a, &ask).await.unwrap();
    // As after an amend whose answer was lost: the gateway still believes in the other chain.
    assert_eq!(store.settle(&b, id, &Amounts::used(1, 10, 5, 5)).await.unwrap().status, Status::Done);
    let audit = audit(&store).await.unwrap();
    assert!(audit.is_balanced() && audit.live_leases == 0, "{:#?}", audit.faults());
}
