//! Random histories of calls that wait: the Lua on a real server against the pure queues, place by place and bit for bit.
//! How histories are held against the ledger in general is `model.rs`.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proxy::quota::account::Amounts;
use proxy::quota::audit::audit;
use proxy::quota::ledger::Ledger;
use proxy::quota::store::{Ask, Status, Turn};
use proxy::quota::{
    CalendarPeriod, Chain, LeaseId, Level, Limit, OnLimit, Rule, Share, Store, Subject, Tier, Unit, Wait, Window,
};

use super::redis_server::RedisServer;
use super::rig::{patient, rule};

/// As `line.lua` has it.
const LIFE_US: f64 = 2e6;
const LEASES: u128 = 12;

#[derive(Clone, Debug)]
enum Op {
    Turn { lease: u128, chain: usize, input: u64, output: u64, gateway: u128, wait_ms: u64 },
    Leave { lease: u128 },
    Settle { lease: u128, output: u64 },
    Correct { chain: usize, queue: usize, change: i64 },
    Wait { ms: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let lease = 1..LEASES;
    prop_oneof![
        12 => (lease.clone(), 0..6usize, 0u64..40, 0u64..60, 1u128..3, 1u64..80).prop_map(
            |(lease, chain, input, output, gateway, wait_ms)| Op::Turn { lease, chain, input, output, gateway, wait_ms }
        ),
        1 => lease.clone().prop_map(|lease| Op::Leave { lease }),
        5 => (lease, 0u64..90).prop_map(|(lease, output)| Op::Settle { lease, output }),
        2 => (0..6usize, 0..2usize, -90i64..40).prop_map(|(chain, queue, change)| Op::Correct { chain, queue, change }),
        1 => (1u64..60).prop_map(|ms| Op::Wait { ms }),
    ]
}

/// Two levels with queues, one of them small, and one whose limit turns away.
fn rules() -> Vec<Rule> {
    let queue = |depth| OnLimit::Queue(Wait { most: Duration::from_secs(1), depth });
    let calendar = Window::Calendar { period: CalendarPeriod::Second, zone: TimeZone::UTC };
    let bucket = Window::Bucket { period: Duration::from_millis(200), burst: 150 };
    vec![
        Rule { on_limit: queue(3), ..rule(Level::App, vec![Limit::concurrency(2)]) },
        Rule {
            on_limit: queue(100),
            ..rule(Level::Org, vec![Limit { unit: Unit::Tokens, amount: 300, window: bucket }, Limit::concurrency(3)])
        },
        rule(Level::User, vec![Limit { unit: Unit::OutputTokens, amount: 400, window: calendar }]),
    ]
}

fn chains() -> Vec<Arc<Chain>> {
    let shares: Arc<[Share]> = [0.0, 0.05, 0.3].map(Share::new).into();
    let chain = |(app, user, rank): (&str, &str, u8)| {
        let (name, kept) = (rank.to_string(), Share::new(f64::from(rank) * 0.1));
        let tier = Some(Arc::new(Tier { name, rank, kept, shares: shares.clone() }));
        let subject = Subject { org: Some("acme".into()), app: Some(app.into()), user: Some(user.into()), tier };
        Arc::new(Chain::resolve(&rules(), &subject, &["m"]))
    };
    [("web", "ana", 0), ("web", "bo", 1), ("bot", "cy", 1), ("bot", "di", 2), ("cli", "ed", 1), ("cli", "flo", 2)]
        .map(chain)
        .into()
}

struct Pair {
    store: Store,
    ledger: Ledger,
    ours: Vec<Arc<Chain>>,
    theirs: Vec<Arc<Chain>>,
    /// Per lease what it asked for first, and since when it waits.
    asked: [Option<(usize, Ask, f64)>; LEASES as usize],
    salt: u128,
}

impl Pair {
    async fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Turn { lease, chain, input, output, gateway, wait_ms } => {
                let need = Amounts::held(input, output, 0);
                let id = LeaseId(self.salt + lease);
                let fresh = (chain, Ask { id, need, hold: Duration::from_secs(60) }, 0.0);
                let (chain, ask, since) = self.asked[lease as usize].unwrap_or(fresh);
                let turn = Turn { gateway, since, wait_us: wait_ms as f64 * 1000.0 };
                let redis = self.store.turn(&self.ours[chain], &ask, &turn).await.unwrap();
                let model = self.ledger.turn(&self.theirs[chain], &ask, &turn, redis.answer.now_us);
                let told = |turned: &proxy::quota::store::Turned| {
                    (turned.answer.status, turned.answer.levels.clone(), turned.spot)
                };
                prop_assert_eq!(told(&redis), told(&model), "{:?}", op);
                self.asked[lease as usize] = match redis.answer.status {
                    Status::Queued | Status::Done => Some((chain, ask, redis.spot.map_or(since, |spot| spot.since))),
                    _ => None,
                };
            }
            Op::Leave { lease } => {
                let Some((chain, ask, _)) = self.asked[lease as usize] else { return Ok(()) };
                if !self.ledger.live().any(|(id, ..)| id == ask.id) {
                    self.store.leave(&self.ours[chain], ask.id).await.unwrap();
                    self.ledger.leave(&self.theirs[chain], ask.id);
                    self.asked[lease as usize] = None;
                }
            }
            Op::Settle { lease, output } => {
                let Some((chain, ask, _)) = self.asked[lease as usize] else { return Ok(()) };
                let actual = Amounts::used(1, ask.need.input as u64, output, 0);
                let redis = self.store.settle(&self.ours[chain], ask.id, &actual).await.unwrap();
                let model = self.ledger.settle(ask.id, &actual, redis.now_us);
                prop_assert_eq!(redis.status, model.status, "{:?}", op);
                if redis.status == Status::Done {
                    self.asked[lease as usize] = None;
                }
            }
            Op::Correct { chain, queue, change } => {
                self.store.correct(&self.ours[chain], queue, change as f64).await.unwrap();
                self.ledger.correct(&self.theirs[chain], queue, change as f64);
            }
            Op::Wait { ms } => tokio::time::sleep(Duration::from_millis(ms)).await,
        }
        Ok(())
    }
}

#[test]
fn random_histories_of_turns_agree_with_the_pure_queues() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 80, failure_persistence: None, ..Config::default() });
    let salt = Cell::new(0u128);
    let outcome = runner.run(&prop::collection::vec(op(), 1..120), |history| {
        runtime.block_on(async {
            redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
            salt.set(salt.get() + 1000);
            let store = patient(&server.url()).await;
            let ledger = Ledger::with_life(LIFE_US);
            let mut pair =
                Pair { store, ledger, ours: chains(), theirs: chains(), asked: Default::default(), salt: salt.get() };
            for op in &history {
                pair.apply(op).await?;
            }
            let audit = audit(&pair.store).await.unwrap();
            prop_assert!(audit.is_balanced(), "{:#?}", audit.faults());
            prop_assert_eq!(audit.live_leases, pair.ledger.live().count());
            Ok(())
        })
    });
    if let Err(failure) = outcome {
        panic!("{failure}\nthe history above is minimal; it replays as it stands");
    }
}
