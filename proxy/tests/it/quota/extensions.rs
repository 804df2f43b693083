//! More output for a call that runs: taken at every level or at none, and the lease stays what it was.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::quota::account::{Amounts, Totals};
use proxy::quota::audit::audit;
use proxy::quota::store::{Extension, Status};
use proxy::quota::{
    Bind, CalendarPeriod, Holding, LeaseId, Level, Limit, OnStoreFailure, Options, Overrun, Quota, Refused, Rule,
    Store, Unit, Window,
};

use super::outages::eventually;
use super::redis_server::RedisServer;
use super::rig::*;

both!(
    an_extension_takes_the_difference_at_all_levels_or_nothing_at_any,
    a_limit_that_lets_calls_go_on_takes_an_extension_into_debt,
    an_extended_lease_stays_dispatched_and_keeps_its_checkpoint,
    what_has_refilled_since_is_not_taken_again,
    what_is_left_of_an_extension_comes_back_into_the_window_that_gave_it,
    a_lease_that_has_ended_cannot_be_extended,
    a_reservation_grows_and_is_settled_once,
    a_free_call_grows_without_asking,
);

const LONG: Duration = Duration::from_secs(60);

fn more(id: LeaseId, output: u64, bind: Bind) -> Extension {
    let more = Amounts { output: output as f64, nano_usd: PRICE.cost(0, output) as f64, ..Amounts::default() };
    Extension { id, more, ttl: LONG, bind }
}

fn stop(rule: Rule) -> Rule {
    Rule { holding: Holding { overrun: Overrun::Stop, ..Holding::default() }, ..rule }
}

async fn an_extension_takes_the_difference_at_all_levels_or_nothing_at_any(rig: &Rig) {
    for tight in Level::ALL {
        let amount = |level| if level == tight { 100 } else { 1000 };
        let name = Some(format!("{tight:?}"));
        let rules = Level::ALL.map(|level| Rule { name: name.clone(), ..rule(level, vec![tokens(amount(level))]) });
        let (store, chain) = (rig.store().await, chain(&rules));
        let id = LeaseId::random();
        done(&store.reserve(&chain, &ask(id, 20, 30, LONG)).await.unwrap());
        let answer = store.extend(&chain, &more(id, 50, Bind::All)).await.unwrap();
        assert_eq!((answer.status, answer.levels), (Status::Done, vec![100.0; 4]));
        let refused = store.extend(&chain, &more(id, 1, Bind::All)).await.unwrap();
        assert_eq!((refused.status, refused.levels), (Status::Full, vec![100.0; 4]));
        done(&store.settle(&chain, id, &spent(20, 70)).await.unwrap());
        let audit = audit(&store).await.unwrap();
        assert!(audit.is_balanced(), "{:#?}", audit.faults());
        assert_eq!(peek(&store, &chain).await, [90.0; 4], "{tight:?}");
    }
}

async fn a_limit_that_lets_calls_go_on_takes_an_extension_into_debt(rig: &Rig) {
    let rules = [stop(rule(Level::User, vec![tokens(90)])), rule(Level::Org, vec![tokens(60)])];
    let (store, chain) = (rig.store().await, chain(&rules));
    let id = LeaseId::random();
    done(&store.reserve(&chain, &ask(id, 20, 30, LONG)).await.unwrap());
    assert_eq!(store.extend(&chain, &more(id, 40, Bind::All)).await.unwrap().status, Status::Full);
    done(&store.extend(&chain, &more(id, 40, Bind::Stops)).await.unwrap());
    assert_eq!(peek(&store, &chain).await, [90.0, 90.0], "30 of debt at the org");
    assert_eq!(store.extend(&chain, &more(id, 1, Bind::Stops)).await.unwrap().status, Status::Full);
}

async fn an_extended_lease_stays_dispatched_and_keeps_its_checkpoint(rig: &Rig) {
    let (store, chain) = (rig.store().await, chain(&everywhere(&[tokens(1000), requests(9), Limit::concurrency(2)])));
    let (id, short) = (LeaseId::random(), Duration::from_millis(700));
    done(&store.reserve(&chain, &ask(id, 100, 50, short)).await.unwrap());
    done(&store.renew(&chain, &renewal(id, (100, 50), 40, short)).await.unwrap());
    let extension = Extension { ttl: short / 2, ..more(id, 30, Bind::All) };
    done(&store.extend(&chain, &extension).await.unwrap());
    assert_eq!(peek(&store, &chain).await[..3], [180.0, 1.0, 1.0], "one request, one slot");
    assert_eq!(store.expire(&chain, id, CHARGE).await.unwrap().status, Status::NotDue, "its deadline came no nearer");
    rig.pass(short + Duration::from_millis(1)).await;
    assert_eq!(store.reclaim("acme", CHARGE).await.unwrap().tokens, 180.0);
    assert_eq!(peek(&store, &chain).await[..3], [140.0, 1.0, 0.0]);
    let expect = Totals { reserved: 180.0, settled: 0.0, refunded: 40.0, expired: 140.0 };
    assert_eq!(totals(&audit(&store).await.unwrap()), [expect; 4]);
}

/// A long stream on a limit that refills: each step costs what it takes, not all that the call has held.
async fn what_has_refilled_since_is_not_taken_again(rig: &Rig) {
    let bucket = Window::Bucket { period: Duration::from_millis(200), burst: 100 };
    let limit = Limit { unit: Unit::Tokens, amount: 100, window: bucket };
    let (store, chain) = (rig.store().await, chain(&[rule(Level::Org, vec![limit])]));
    let id = LeaseId::random();
    done(&store.reserve(&chain, &ask(id, 20, 70, LONG)).await.unwrap());
    for _ in 0..5 {
        rig.pass(Duration::from_millis(250)).await;
        let answer = store.extend(&chain, &more(id, 80, Bind::All)).await.unwrap();
        assert_eq!((answer.status, answer.levels), (Status::Done, vec![80.0]));
    }
}

async fn what_is_left_of_an_extension_comes_back_into_the_window_that_gave_it(rig: &Rig) {
    let calendar = Window::Calendar { period: CalendarPeriod::Second, zone: jiff::tz::TimeZone::UTC };
    let limit = Limit { unit: Unit::OutputTokens, amount: 100, window: calendar };
    let levels = rig
        .in_seconds(1, async |attempt| {
            let (store, name) = (rig.store().await, Some(format!("attempt {attempt}")));
            let chain = chain(&[Rule { name, ..rule(Level::Org, vec![limit.clone()]) }]);
            let id = LeaseId::random();
            done(&store.reserve(&chain, &ask(id, 20, 90, LONG)).await.unwrap());
            rig.pass(Duration::from_millis(1001)).await;
            done(&store.extend(&chain, &more(id, 40, Bind::All)).await.unwrap());
            let extended = peek(&store, &chain).await;
            done(&store.settle(&chain, id, &spent(20, 100)).await.unwrap());
            [extended, peek(&store, &chain).await].concat()
        })
        .await;
    assert_eq!(levels, [40.0, 10.0]);
}

async fn a_lease_that_has_ended_cannot_be_extended(rig: &Rig) {
    let (store, chain) = (rig.store().await, chain(&everywhere(&[tokens(1000)])));
    let extend = async |id| store.extend(&chain, &more(id, 30, Bind::All)).await.unwrap().status;
    let (settled, cancelled) = (LeaseId::random(), LeaseId::random());
    assert_eq!(extend(settled).await, Status::Absent);
    done(&store.reserve(&chain, &ask(settled, 20, 30, LONG)).await.unwrap());
    done(&store.settle(&chain, settled, &spent(20, 30)).await.unwrap());
    done(&store.cancel(&chain, cancelled).await.unwrap());
    assert_eq!((extend(settled).await, extend(cancelled).await), (Status::Absent, Status::Buried));
    assert_eq!(peek(&store, &chain).await, [50.0; 4]);
}

async fn a_reservation_grows_and_is_settled_once(rig: &Rig) {
    let quota = rig.quota(everywhere(&[tokens(100)]).into_iter().map(stop).collect()).await;
    let mut reservation = reserve(&quota, demand(20, 30)).await.unwrap();
    reservation.dispatched();
    reservation.extend(50, Bind::Stops).await.unwrap();
    assert_eq!((reservation.demand().output, quota.stats().held), (80, 100));
    let Err(Refused::Limit(refused)) = reservation.extend(1, Bind::Stops).await else { panic!("nothing is left") };
    assert_eq!((refused.needed, refused.left), (1, 0));
    assert_eq!(quota.stats().extension_refusals.values().sum::<u64>(), 1);
    // Dropped on its way, an extension leaves one hold: the old or the new.
    drop(reservation.extend(1, Bind::Stops));
    reservation.settle(used(20, 60));
    assert_eq!(levels(&books(&quota).await), [80.0; 4]);
    let stats = quota.stats();
    assert_eq!((stats.reserved, stats.settled, stats.refunded, stats.overrun), (100, 80, 20, 0));
}

async fn a_free_call_grows_without_asking(rig: &Rig) {
    let quota = Quota::new(vec![], rig.store().await, Options::default());
    let mut reservation = reserve(&quota, demand(20, 30)).await.unwrap();
    reservation.extend(50, Bind::All).await.unwrap();
    assert_eq!((reservation.demand().output, quota.stats().held), (80, 100));
    drop(reservation);
    assert_eq!(quota.stats().leaked(), 0);
}

const TIMEOUT: Duration = Duration::from_millis(200);

/// On a server of its own that a test may stop.
async fn gateway(server: &RedisServer, policy: OnStoreFailure) -> Arc<Quota> {
    let rule = Rule { on_store_failure: policy, ..stop(rule(Level::Org, vec![tokens(1000)])) };
    Quota::new(vec![rule], Store::redis(&server.url(), waits(TIMEOUT)).await.unwrap(), options())
}

#[tokio::test]
async fn a_store_that_is_away_lets_a_call_go_on_only_where_the_rule_is_open() {
    for (policy, goes_on) in
        [(OnStoreFailure::Closed, false), (OnStoreFailure::Slice(0.5), false), (OnStoreFailure::Open, true)]
    {
        let server = RedisServer::start();
        let quota = gateway(&server, policy).await;
        let mut reservation = reserve(&quota, demand(20, 30)).await.unwrap();
        reservation.dispatched();
        server.freeze();
        let began = Instant::now();
        let extended = reservation.extend(50, Bind::Stops).await;
        assert!(began.elapsed() < TIMEOUT + Duration::from_millis(500), "{:?}", began.elapsed());
        assert_eq!(extended.is_ok(), goes_on, "{policy:?}: {extended:?}");
        assert!(!matches!(extended, Err(Refused::Limit(_))), "{extended:?}");
        server.thaw();
        eventually("recovery", async || quota.ready().is_ok() && quota.store().health().is_ok()).await;
        reservation.settle(used(20, 80));
        assert_eq!(levels(&books(&quota).await), [100.0], "whatever was held, what was used is charged: {policy:?}");
    }
}

#[tokio::test]
async fn a_call_that_was_admitted_without_the_store_grows_within_its_slice() {
    let server = RedisServer::start();
    let quota = gateway(&server, OnStoreFailure::Slice(0.05)).await;
    server.freeze();
    let mut reservation = reserve(&quota, demand(10, 20)).await.unwrap();
    reservation.extend(20, Bind::Stops).await.unwrap();
    assert!(matches!(reservation.extend(1, Bind::Stops).await, Err(Refused::Store(_))), "50 of 1,000 is the slice");
    assert_eq!(reservation.demand().output, 40);
    reservation.settle(used(10, 41));
    server.thaw();
    eventually("recovery", async || quota.ready().is_ok() && quota.stats().outage.owed == 0).await;
    assert_eq!(levels(&books(&quota).await), [51.0]);
}
