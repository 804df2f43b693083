//! Gateways that share a queue: one order, whoever asks, and what is left of one that dies.

use std::time::{Duration, Instant};

use proxy::quota::account::Amounts;
use proxy::quota::store::{Ask, Status, Turn};
use proxy::quota::{Chain, LeaseId, Level, Limit, OnStoreFailure, Quota, Refused, Rule, Store};

use super::queue::{PATIENT, many_wait, of_app, queues, waiter};
use super::redis_server::RedisServer;
use super::rig::*;

fn one_at_a_time() -> Vec<Rule> {
    vec![queues(rule(Level::Org, vec![Limit::concurrency(1)]), PATIENT, 100)]
}

/// Asks for a turn as a gateway would that says nothing ever after.
async fn dying(store: &Store, chain: &std::sync::Arc<Chain>, hold: Duration) -> Status {
    let ask = Ask { id: LeaseId::random(), need: Amounts::held(5, 5, 0), hold };
    let turn = Turn { gateway: 99, since: 0.0, wait_us: 20e6 };
    store.turn(chain, &ask, &turn).await.unwrap().answer.status
}

#[tokio::test]
async fn two_gateways_have_one_order() {
    let server = RedisServer::start();
    let gateways = [
        Quota::new(one_at_a_time(), patient(&server.url()).await, options()),
        Quota::new(one_at_a_time(), patient(&server.url()).await, options()),
    ];
    let chains = gateways.each_ref().map(|quota| quota.chain(&ana(), &["m"]));
    let mut running = gateways[0].reserve(&chains[0], demand(1, 1)).await.unwrap();
    let mut waiters = Vec::new();
    for call in 0..8 {
        // Two of each in a row: turns go from gateway to gateway and stay.
        let at = call / 2 % 2;
        let before = [0, 1].map(|at| super::queue::waiting(&gateways[at]));
        waiters.push(waiter(&gateways[at], &chains[at], 10));
        many_wait(&gateways[at], before[at] + 1).await;
    }
    for (call, waiter) in waiters.into_iter().enumerate() {
        let freed = Instant::now();
        drop(running);
        running = tokio::time::timeout(Duration::from_secs(5), waiter).await.expect("in order").unwrap().unwrap();
        assert!(freed.elapsed() < Duration::from_secs(1), "call {call}: {:?}", freed.elapsed());
    }
    drop(running);
    books(&gateways[0]).await;
    books(&gateways[1]).await;
}

#[tokio::test]
async fn the_places_of_a_gateway_that_died_are_given_up() {
    let server = RedisServer::start();
    let quota = Quota::new(one_at_a_time(), patient(&server.url()).await, options());
    let chain = quota.chain(&ana(), &["m"]);
    let first = quota.reserve(&chain, demand(1, 1)).await.unwrap();
    assert_eq!(dying(quota.store(), &chain, PATIENT).await, Status::Queued);
    let next = waiter(&quota, &chain, 10);
    many_wait(&quota, 1).await;
    drop(first);
    let begin = Instant::now();
    drop(tokio::time::timeout(PATIENT, next).await.expect("its turn comes").unwrap().unwrap());
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    books(&quota).await;
}

#[tokio::test]
async fn a_turn_that_a_dead_gateway_was_given_comes_back() {
    let server = RedisServer::start();
    let quota = Quota::new(one_at_a_time(), patient(&server.url()).await, options());
    let chain = quota.chain(&ana(), &["m"]);
    let hold = Duration::from_millis(400);
    assert_eq!(dying(quota.store(), &chain, hold).await, Status::Done);
    let begin = Instant::now();
    let next =
        tokio::time::timeout(PATIENT, quota.reserve(&chain, demand(5, 5))).await.expect("it comes back").unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(300) && begin.elapsed() < Duration::from_secs(3));
    drop(next);
    assert_eq!(levels(&books(&quota).await), [0.0], "it is given back in full");
}

/// Whatever the policy: a call that waits holds nothing, and an outage is over before its patience is.
#[tokio::test]
async fn a_store_that_is_silent_for_a_while_does_not_end_a_wait() {
    for policy in [OnStoreFailure::Closed, OnStoreFailure::Open] {
        let server = RedisServer::start();
        let rules = one_at_a_time().into_iter().map(|rule| Rule { on_store_failure: policy, ..rule }).collect();
        let store = Store::redis(&server.url(), waits(Duration::from_millis(100))).await.unwrap();
        let quota = Quota::new(rules, store, options());
        let chain = quota.chain(&ana(), &["m"]);
        let first = quota.reserve(&chain, demand(1, 1)).await.unwrap();
        let waiters: Vec<_> = (0..3).map(|_| waiter(&quota, &chain, 10)).collect();
        many_wait(&quota, 3).await;
        server.freeze();
        super::queue::until("the store counts as down", || quota.store().health().is_err()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(super::queue::waiting(&quota), 3, "{policy:?}");
        server.thaw();
        super::queue::until("the store is back", || quota.store().health().is_ok()).await;
        drop(first);
        for waiter in waiters {
            drop(tokio::time::timeout(PATIENT, waiter).await.expect("its turn comes").unwrap().expect("admitted"));
        }
        assert_eq!(levels(&books(&quota).await), [0.0]);
    }
}

#[tokio::test]
async fn a_store_that_dies_leaves_calls_to_their_policy_when_their_patience_ends() {
    for policy in [OnStoreFailure::Closed, OnStoreFailure::Open] {
        let mut server = RedisServer::start();
        let limits = vec![Limit::concurrency(1)];
        let waits_little = queues(rule(Level::Org, limits), Duration::from_secs(2), 100);
        let rules = vec![Rule { on_store_failure: policy, ..waits_little }];
        let store = Store::redis(&server.url(), waits(Duration::from_millis(300))).await.unwrap();
        let quota = Quota::new(rules, store, options());
        let chain = quota.chain(&ana(), &["m"]);
        let first = quota.reserve(&chain, demand(1, 1)).await.unwrap();
        let next = waiter(&quota, &chain, 10);
        many_wait(&quota, 1).await;
        server.kill();
        let next = tokio::time::timeout(Duration::from_secs(10), next).await.expect("it does not wait on").unwrap();
        match policy {
            OnStoreFailure::Open => drop(next.expect("an open rule admits")),
            _ => assert!(matches!(next, Err(Refused::Store(_))), "{next:?}"),
        }
        assert_eq!(super::queue::waiting(&quota), 0);
        drop(first);
    }
}

/// Nobody of it is at the head, where dead places are given up one by one: a call that finds no room looks at all.
#[tokio::test]
async fn a_queue_that_is_full_of_the_dead_takes_the_living() {
    let server = RedisServer::start();
    let rules = || vec![queues(rule(Level::Org, vec![Limit::concurrency(1)]), PATIENT, 3)];
    let quota = Quota::new(rules(), patient(&server.url()).await, options());
    let chain = quota.chain(&ana(), &["m"]);
    // What the dead gateway holds is overdue when the living one looks.
    assert_eq!(dying(quota.store(), &chain, Duration::from_millis(500)).await, Status::Done);
    for _ in 0..3 {
        assert_eq!(dying(quota.store(), &chain, PATIENT).await, Status::Queued);
    }
    assert!(matches!(quota.reserve(&chain, demand(5, 5)).await, Err(Refused::Limit(_))), "they may be alive still");
    tokio::time::sleep(Duration::from_secs(3)).await;
    drop(quota.reserve(&chain, demand(5, 5)).await.expect("the org is idle"));
    assert_eq!(levels(&books(&quota).await), [0.0]);
}

#[tokio::test]
async fn tenants_of_two_gateways_are_served_alike() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let server = RedisServer::start();
    let rules = || vec![queues(rule(Level::Org, vec![Limit::concurrency(2)]), PATIENT, 100)];
    let served = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    // 40 times the bound of the algorithm: twice what runs at a time.
    let enough = 40 * 2 * 40;
    let mut callers = tokio::task::JoinSet::new();
    for (tenant, calls) in [(0, 60), (1, 6)] {
        let quota = Quota::new(rules(), patient(&server.url()).await, options());
        let chain = quota.chain(&of_app(["web", "bot"][tenant], None), &["m"]);
        for _ in 0..calls {
            let (quota, chain, served) = (quota.clone(), chain.clone(), served.clone());
            callers.spawn(async move {
                while served.iter().any(|tokens| tokens.load(Relaxed) < enough) {
                    let call = quota.reserve(&chain, demand(10, 10)).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    call.settle(used(10, 10));
                    served[tenant].fetch_add(20, Relaxed);
                }
            });
        }
    }
    super::queue::until("both are served", || served.iter().all(|tokens| tokens.load(Relaxed) >= enough)).await;
    let [web, bot] = served.each_ref().map(|tokens| tokens.load(Relaxed) as f64);
    assert!((web / bot - 1.0).abs() <= 0.05, "{web} against {bot}");
    while callers.join_next().await.is_some() {}
}
