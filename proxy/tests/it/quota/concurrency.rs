//! Exactly k, whatever runs at once.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use proxy::quota::audit::audit;
use proxy::quota::store::Status;
use proxy::quota::{LeaseId, Limit, Quota, Refused};

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

/// A batch reads each lease once, so a second operation of a lease has to wait for the next batch.
#[tokio::test]
async fn a_reserve_sent_twice_at_once_holds_once_and_settles_once() {
    let server = RedisServer::start();
    let store = patient(&server.url()).await;
    let chain = chain(&everywhere(&[tokens(1000)]));
    for burst in 0..20 {
        let ids: Vec<LeaseId> = (0..6).map(|_| LeaseId::random()).collect();
        let asks: Vec<_> = ids.iter().chain(&ids).map(|id| ask(*id, 6, 4, Duration::from_secs(60))).collect();
        for answer in join_all(asks.iter().map(|ask| store.reserve(&chain, ask))).await {
            done(&answer.unwrap());
        }
        let books = audit(&store).await.unwrap();
        assert!(books.is_balanced() && books.live_leases == 6, "burst {burst}: {:#?}", books.faults());
        let actual = spent(1, 1);
        let settles = ids.iter().chain(&ids).map(|id| store.settle(&chain, *id, &actual));
        let statuses: Vec<Status> = join_all(settles).await.into_iter().map(|answer| answer.unwrap().status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == Status::Done).count(), 6, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == Status::Absent).count(), 6, "{statuses:?}");
    }
}

/// Whoever leaves while its reserve waits for a batch takes nothing with it and holds up nobody.
#[tokio::test]
async fn a_reserve_that_nobody_waits_for_any_more_leaves_its_place_to_the_others() {
    let server = RedisServer::start();
    let store = patient(&server.url()).await;
    let chain = chain(&everywhere(&[tokens(1000)]));
    let asks: Vec<_> = (0..9).map(|_| ask(LeaseId::random(), 6, 4, Duration::from_secs(60))).collect();
    let mut calls: Vec<_> = asks.iter().map(|ask| Box::pin(store.reserve(&chain, ask))).collect();
    poll_fn(|context| {
        assert!(calls.iter_mut().all(|call| call.as_mut().poll(context).is_pending()));
        Poll::Ready(())
    })
    .await;
    // The first two are on the wire; of those that wait every other one leaves.
    let stay = calls.into_iter().enumerate().filter(|(index, _)| *index < 2 || index % 2 == 0).map(|(_, call)| call);
    for answer in join_all(stay).await {
        done(&answer.unwrap());
    }
    assert_eq!(audit(&store).await.unwrap().live_leases, 6);
}
