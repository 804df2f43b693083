//! What each rule says about a store that is away, on a real server that hangs, dies, crawls, or takes no writes.

use std::cell::Cell;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use proxy::quota::audit::audit;
use proxy::quota::{Level, Limit, OnStoreFailure, Options, Quota, Readiness, Refused, Rule, Store, StoreError, Unit};

use super::outages::eventually;
use super::redis_server::RedisServer;
use super::rig::*;
use super::slow_link::SlowLink;

const TIMEOUT: Duration = Duration::from_millis(200);
/// For a busy machine, on top of a bound.
const SLACK: Duration = Duration::from_millis(300);
const OPEN: OnStoreFailure = OnStoreFailure::Open;
const CLOSED: OnStoreFailure = OnStoreFailure::Closed;

fn on_failure(policy: OnStoreFailure, level: Level, limits: &[Limit]) -> Rule {
    Rule { on_store_failure: policy, ..rule(level, limits.to_vec()) }
}

fn org(policy: OnStoreFailure, amount: u64) -> Vec<Rule> {
    vec![on_failure(policy, Level::Org, &[tokens(amount)])]
}

async fn gateway(url: &str, rules: Vec<Rule>) -> Arc<Quota> {
    Quota::new(rules, Store::redis(url, waits(TIMEOUT)).await.unwrap(), options())
}

/// Both connections of each gateway: that of calls and that of audits.
async fn back(gateways: &[&Arc<Quota>]) {
    for quota in gateways {
        let whole = async || quota.ready() == Ok(Readiness::Whole) && audit(quota.store()).await.is_ok();
        eventually("recovery", whole).await;
    }
}

/// Calls of one token, each used whole, until one is refused or `most` are admitted.
async fn spend(quota: &Quota, most: u64) -> u64 {
    for admitted in 0..most {
        match reserve(quota, demand(1, 0)).await {
            Ok(reservation) => reservation.settle(used(1, 0)),
            Err(Refused::Store(_)) => return admitted,
            Err(other) => panic!("{other:?}"),
        }
    }
    most
}

#[tokio::test]
async fn two_gateways_overshoot_by_the_slice_and_not_by_a_token_more() {
    let server = RedisServer::start();
    let rules = org(OnStoreFailure::Slice(0.05), 1000);
    let gateways = [gateway(&server.url(), rules.clone()).await, gateway(&server.url(), rules).await];
    let [a, b] = &gateways;
    for quota in &gateways {
        eventually("two gateways", async || quota.store().gateways() == 2).await;
    }
    // All of the budget is held or used, and both have seen half of it: whatever they admit now is overshoot.
    let seen = reserve(b, demand(500, 0)).await.unwrap();
    let also = reserve(a, demand(400, 0)).await.unwrap();
    also.settle(used(400, 0));
    books(a).await;
    seen.settle(used(600, 0));
    books(b).await;
    server.freeze();
    assert_eq!([spend(a, 100).await, spend(b, 100).await], [25, 25], "5 % of 1,000, shared by two");
    assert_eq!([spend(a, 1).await, spend(b, 1).await], [0, 0], "a slice does not refill");
    let refused = reserve(a, demand(1, 0)).await.unwrap_err();
    let Refused::Store(StoreError::SliceSpent(what)) = refused else { panic!("{refused:?}") };
    assert_eq!(what, "tokens/lifetime of org acme");
    let figures = a.stats().outage;
    assert_eq!((figures.down, figures.admitted, figures.owed, figures.charged), (true, 25, 25, 0));
    assert_eq!(figures.spent[Level::Org as usize], (Level::Org, 25));
    server.thaw();
    back(&[a, b]).await;
    books(a).await;
    assert_eq!(levels(&books(b).await), [1050.0], "the debt is in the account, once");
    let figures = a.stats().outage;
    assert_eq!((figures.down, figures.owed, figures.charged), (false, 0, 25));
    assert_eq!(refusal(reserve(a, demand(1, 0)).await).left, 0);
}

#[tokio::test]
async fn no_more_is_admitted_than_was_last_seen_to_be_left() {
    let server = RedisServer::start();
    let quota = gateway(&server.url(), org(OnStoreFailure::Slice(0.5), 100)).await;
    reserve(&quota, demand(93, 0)).await.unwrap().settle(used(93, 0));
    books(&quota).await;
    server.freeze();
    assert_eq!(spend(&quota, 100).await, 7, "half of 100 would be more than there was");
    server.thaw();
    back(&[&quota]).await;
    assert_eq!(levels(&books(&quota).await), [100.0]);
}

#[tokio::test]
async fn each_outage_has_its_slice_and_one_that_is_not_charged_yet_is_not_given_again() {
    let mut server = RedisServer::start();
    let quota = gateway(&server.url(), org(OnStoreFailure::Slice(0.1), 100)).await;
    server.freeze();
    let running = reserve(&quota, demand(10, 0)).await.unwrap();
    server.thaw();
    back(&[&quota]).await;
    server.freeze();
    assert_eq!(spend(&quota, 10).await, 0, "the call of the first outage still runs");
    running.settle(used(4, 0));
    assert_eq!(spend(&quota, 10).await, 6);
    server.thaw();
    back(&[&quota]).await;
    assert_eq!(levels(&books(&quota).await), [10.0]);
    server.kill();
    assert_eq!(spend(&quota, 20).await, 10);
    server.restart();
    back(&[&quota]).await;
    assert_eq!(levels(&books(&quota).await), [10.0], "the server came back empty");
}

#[tokio::test]
async fn an_open_rule_costs_one_bounded_wait_and_what_was_used_is_charged_later() {
    let mut server = RedisServer::start();
    let limits = [tokens(100), requests(5), Limit::concurrency(2), Limit::lifetime(Unit::NanoUsd, 40_000)];
    let quota = gateway(&server.url(), vec![on_failure(OPEN, Level::User, &limits)]).await;
    server.freeze();
    let start = Instant::now();
    let first = reserve(&quota, demand(60, 40)).await.unwrap();
    assert!(start.elapsed() < TIMEOUT + SLACK, "{:?}", start.elapsed());
    let start = Instant::now();
    let mut running = Vec::new();
    for _ in 0..500 {
        running.push(reserve(&quota, demand(60, 40)).await.unwrap());
    }
    assert!(start.elapsed() < TIMEOUT, "a store that is down is not asked: {:?}", start.elapsed());
    assert!(matches!(quota.ready(), Ok(Readiness::Degraded(StoreError::Timeout(_)))));
    first.settle(used(60, 10));
    for reservation in running {
        reservation.settle(used(60, 10));
    }
    let stats = quota.stats();
    assert_eq!((stats.leaked(), stats.held, stats.outage.owed), (0, 0, 501 * 70));
    server.kill();
    server.restart();
    back(&[&quota]).await;
    let found = books(&quota).await;
    assert!(found.is_balanced(), "{:?}", found.faults());
    let account = found.accounts.values().next().unwrap();
    let mut levels: Vec<f64> = account.slots.values().map(|(slot, _)| slot.level).collect();
    levels.sort_by(f64::total_cmp);
    assert_eq!(levels, [0.0, 501.0, 501.0 * 70.0, (501 * PRICE.cost(60, 10)) as f64]);
    assert_eq!((account.totals.settled, account.totals.held()), (501.0 * 70.0, 0.0));
}

/// Or nobody would look for the lease that carries its debt, should the gateway die over it.
#[tokio::test]
async fn an_org_that_was_only_served_without_the_store_is_known_to_it_afterwards() {
    let mut server = RedisServer::start();
    let store = Store::redis(&server.url(), waits(TIMEOUT)).await.unwrap();
    // Long before the first pass of reclaim, which notes all orgs.
    let quota = Quota::new(org(OPEN, 100), store, Options { lease_ttl: Duration::from_secs(600), ..options() });
    // Not frozen, which would still hear of the org when it thaws.
    server.kill();
    assert_eq!(spend(&quota, 5).await, 5);
    server.restart();
    back(&[&quota]).await;
    assert_eq!(levels(&books(&quota).await), [5.0]);
    assert_eq!(quota.store().some_orgs().await.unwrap(), ["acme"]);
}

#[tokio::test]
async fn what_is_only_counted_refuses_nothing_when_the_store_is_down_and_counts_it_later() {
    let server = RedisServer::start();
    let shadow = |policy, level, amount| Rule { shadow: true, ..on_failure(policy, level, &[tokens(amount)]) };
    let slice = OnStoreFailure::Slice(0.01);
    let quota = gateway(&server.url(), vec![shadow(CLOSED, Level::User, 5), shadow(slice, Level::Org, 5)]).await;
    server.freeze();
    assert_eq!(spend(&quota, 30).await, 30);
    assert!(matches!(quota.ready(), Ok(Readiness::Degraded(_))));
    // Beside a rule in force it changes nothing of what that says.
    quota.adopt(vec![shadow(OPEN, Level::User, 5), on_failure(CLOSED, Level::Org, &[tokens(100)])]);
    assert!(matches!(reserve(&quota, demand(1, 0)).await, Err(Refused::Store(_))));
    assert!(quota.ready().is_err());
    server.thaw();
    back(&[&quota]).await;
    assert_eq!(levels(&books(&quota).await), [30.0, 30.0]);
}

#[tokio::test]
async fn one_closed_rule_closes_the_chain_and_the_gateway() {
    let server = RedisServer::start();
    let rules = vec![on_failure(OPEN, Level::User, &[tokens(100)]), on_failure(CLOSED, Level::Org, &[tokens(100)])];
    let quota = gateway(&server.url(), rules).await;
    server.freeze();
    assert!(matches!(reserve(&quota, demand(1, 0)).await, Err(Refused::Store(StoreError::Timeout(_)))));
    assert!(matches!(reserve(&quota, demand(1, 0)).await, Err(Refused::Store(StoreError::Unreachable(_)))));
    assert!(quota.ready().is_err());
    server.thaw();
    back(&[&quota]).await;
    let found = books(&quota).await;
    assert_eq!(found.live_leases, 0);
    assert!(levels(&found).iter().all(|level| *level == 0.0), "the unanswered call left nothing");
}

#[tokio::test]
async fn a_store_that_crawls_costs_one_bounded_wait_though_it_answers() {
    let server = RedisServer::start();
    let link = SlowLink::to(&server);
    let quota = gateway(&link.url(), org(OPEN, 1000)).await;
    reserve(&quota, demand(1, 0)).await.unwrap().settle(used(1, 0));
    link.delay(TIMEOUT * 3);
    // Others are under way, so that the server is heard of all the time.
    let calls = (0..20).map(|number: u32| {
        let quota = quota.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50) * number).await;
            let start = Instant::now();
            let reserved = reserve(&quota, demand(10, 0)).await;
            (reserved.map(|reservation| reservation.settle(used(10, 0))).is_ok(), start.elapsed())
        })
    });
    for call in calls.collect::<Vec<_>>() {
        let (admitted, waited) = call.await.unwrap();
        assert!(admitted && waited < TIMEOUT + SLACK, "{waited:?}");
    }
    link.delay(Duration::ZERO);
    back(&[&quota]).await;
    assert_eq!(levels(&books(&quota).await), [201.0]);
    assert_eq!(audit(quota.store()).await.unwrap().live_leases, 0);
}

#[tokio::test]
async fn a_burst_of_our_own_is_no_outage() {
    let server = RedisServer::start();
    let quota = gateway(&server.url(), org(OPEN, 10)).await;
    let calls = (0..4000).map(|_| {
        let quota = quota.clone();
        tokio::spawn(async move { reserve(&quota, demand(1, 0)).await })
    });
    let mut admitted = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap() {
            Ok(reservation) => admitted.push(reservation),
            Err(Refused::Limit(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((admitted.len(), quota.stats().outage.admitted), (10, 0));
}

#[tokio::test]
async fn a_store_that_takes_no_writes_is_down_until_it_does_and_each_change_is_one_line() {
    let server = RedisServer::start();
    let quota = gateway(&server.url(), org(OPEN, 1000)).await;
    let replica_of = |of: [&str; 2]| redis::cmd("REPLICAOF").arg(&of).exec(&mut server.connection()).unwrap();
    let before = lines();
    replica_of(["127.0.0.1", "1"]);
    assert_eq!(spend(&quota, 100).await, 100);
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(spend(&quota, 10).await, 10);
        assert!(quota.store().health().is_err(), "reads are answered, and that is not enough");
    }
    assert_eq!(lines() - before, 1, "down");
    replica_of(["NO", "ONE"]);
    back(&[&quota]).await;
    assert_eq!(levels(&books(&quota).await), [400.0]);
    assert_eq!(lines() - before, 2, "and back");
}

#[tokio::test]
async fn a_gateway_starts_without_a_store_where_the_rules_go_on_without_it() {
    let mut server = RedisServer::start();
    let url = server.url();
    server.kill();
    let redis = proxy::quota::RedisOptions { start_without: true, replicas: 4, ..waits(TIMEOUT) };
    let store = Store::redis(&url, redis).await.unwrap();
    let quota = Quota::new(org(OnStoreFailure::Slice(0.1), 400), store, options());
    assert!(matches!(quota.ready(), Ok(Readiness::Degraded(_))));
    assert_eq!(spend(&quota, 100).await, 10, "a quarter of 40: nothing was ever seen of the account");
    server.restart();
    back(&[&quota]).await;
    assert_eq!(levels(&books(&quota).await), [10.0]);
    reserve(&quota, demand(390, 0)).await.unwrap();
    // It answers and it does not suit: no time heals that.
    redis::cmd("ACL").arg(&["SETUSER", "default", "-@scripting"]).exec(&mut server.connection()).unwrap();
    assert!(Store::redis(&url, redis).await.is_err());
}

thread_local! {
    static LINES: Cell<usize> = const { Cell::new(0) };
}

/// Lines of an operator's log that this test has caused so far: it runs on one thread, and so do its gateways.
fn lines() -> usize {
    static INSTALLED: Once = Once::new();
    // For all threads: one of a thread alone is not asked about places that another thread has logged from first.
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(Lines).unwrap());
    LINES.get()
}

struct Lines;

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO && metadata.target().starts_with("proxy")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        LINES.set(LINES.get() + 1);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
