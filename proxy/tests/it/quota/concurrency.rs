//! Exactly k, whatever runs at once.

use std::sync::Arc;
use std::time::Duration;

use proxy::quota::{Limit, Quota, Refused};

use super::redis_server::RedisServer;
use super::rig::*;

/// `parallel` calls over these gateways against an org budget for exactly `k` calls that cannot refill.
async fn admitted(gateways: &[Arc<Quota>], parallel: usize) -> usize {
    let calls: Vec<_> = (0..parallel)
        .map(|at| {
            let quota = gateways[at % gateways.len()].clone();
            tokio::spawn(async move {
                match reserve(&quota, demand(7, 3)).await {
                    Ok(reservation) => {
                        reservation.settle(used(7, 3));
                        true
                    }
                    Err(Refused::Limit(_)) => false,
                    Err(other) => panic!("{other:?}"),
                }
            })
        })
        .collect();
    let mut count = 0;
    for call in calls {
        count += usize::from(call.await.unwrap());
    }
    count
}

both!(what_a_call_gives_back_is_there_for_the_next_one);

/// On one thread nothing else runs between the end of a call and the next reserve, unless that reserve waits.
async fn what_a_call_gives_back_is_there_for_the_next_one(rig: &Rig) {
    let quota = rig.quota(everywhere(&[Limit::concurrency(1)])).await;
    for call in 0..20 {
        let reservation = reserve(&quota, demand(10, 10)).await;
        let reservation = reservation.unwrap_or_else(|refused| panic!("call {call}: {refused:?}"));
        match call % 2 {
            0 => reservation.settle(used(10, 1)),
            _ => drop(reservation),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_calls_over_two_gateways_on_one_redis_admit_exactly_ten() {
    for run in 0..20 {
        let server = RedisServer::start();
        let rules = everywhere(&[tokens(100), requests(1000)]);
        let gateway = async || Quota::new(rules.clone(), patient(&server.url()).await, options());
        let gateways = [gateway().await, gateway().await];
        assert_eq!(admitted(&gateways, 1000).await, 10, "run {run}");
        for gateway in &gateways {
            let audit = books(gateway).await;
            assert!(audit.is_balanced(), "{:#?}", audit.faults());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_calls_in_memory_admit_exactly_ten() {
    for run in 0..20 {
        let quota = Rig::new(Kind::Memory).quota(everywhere(&[tokens(100), requests(1000)])).await;
        assert_eq!(admitted(std::slice::from_ref(&quota), 1000).await, 10, "run {run}");
    }
}

#[tokio::test]
async fn more_unsettled_calls_than_the_capacity_are_overloaded() {
    let server = RedisServer::start();
    let options = proxy::quota::Options { capacity: 3, ..options() };
    let quota = Quota::new(everywhere(&[tokens(1000)]), patient(&server.url()).await, options);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(reserve(&quota, demand(1, 1)).await.unwrap());
    }
    assert!(matches!(reserve(&quota, demand(1, 1)).await, Err(Refused::Overloaded)));
    held.clear();
    assert!(quota.drain(Duration::from_secs(5)).await);
    reserve(&quota, demand(1, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_script_cache_is_not_seen_by_any_call() {
    let server = RedisServer::start();
    let quota = Quota::new(everywhere(&[tokens(1_000_000)]), patient(&server.url()).await, options());
    let flusher = tokio::task::spawn_blocking({
        let mut raw = server.connection();
        move || {
            for _ in 0..20 {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut raw).unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
    let mut calls = 0u64;
    while !flusher.is_finished() {
        assert_eq!(admitted(std::slice::from_ref(&quota), 16).await, 16);
        calls += 16;
    }
    flusher.await.unwrap();
    assert_eq!(levels(&books(&quota).await), [(calls * 10) as f64; 4]);
}

#[tokio::test]
async fn a_reserve_that_nobody_waits_for_any_more_is_cancelled() {
    let server = RedisServer::start();
    let quota = Quota::new(everywhere(&[tokens(1000)]), patient(&server.url()).await, options());
    reserve(&quota, demand(1, 1)).await.unwrap().settle(used(0, 0));
    server.freeze();
    let abandoned = tokio::time::timeout(Duration::from_millis(30), reserve(&quota, demand(10, 10))).await;
    assert!(abandoned.is_err(), "the server is frozen");
    server.thaw();
    let audit = books(&quota).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(levels(&audit), [0.0; 4]);
    assert_eq!(proxy::quota::audit::audit(quota.store()).await.unwrap().live_leases, 0);
}
