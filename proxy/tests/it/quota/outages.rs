//! The store goes away while calls are under way: bounded waits, nothing lost, recovery without help.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::quota::audit::audit;
use proxy::quota::{LeaseId, Options, Quota, Refused, Store};

use super::redis_server::RedisServer;
use super::rig::*;

const TIMEOUT: Duration = Duration::from_millis(200);

pub async fn gateway(server: &RedisServer, options: Options) -> Arc<Quota> {
    let store = Store::redis(&server.url(), waits(TIMEOUT)).await.unwrap();
    Quota::new(everywhere(&[tokens(1_000_000)]), store, options)
}

pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !check().await {
        assert!(Instant::now() < deadline, "not within 15 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_hanging_store_costs_one_bounded_wait_and_settlements_survive_it() {
    let server = RedisServer::start();
    let quota = gateway(&server, options()).await;
    let mut reservations = Vec::new();
    for _ in 0..50 {
        reservations.push(reserve(&quota, demand(60, 40)).await.unwrap());
    }
    server.freeze();
    let start = Instant::now();
    assert!(matches!(reserve(&quota, demand(1, 1)).await, Err(Refused::Store(_))));
    let first = start.elapsed();
    assert!(first >= TIMEOUT && first < TIMEOUT * 5, "{first:?}");
    let start = Instant::now();
    for _ in 0..100 {
        assert!(matches!(reserve(&quota, demand(1, 1)).await, Err(Refused::Store(_))));
    }
    assert!(start.elapsed() < TIMEOUT, "a store that is down refuses at once: {:?}", start.elapsed());
    assert!(quota.ready().is_err());
    for reservation in reservations {
        reservation.settle(used(60, 10));
    }
    tokio::time::sleep(TIMEOUT * 2).await;
    assert_eq!(quota.stats().held, 5000, "not acknowledged, so still held");
    server.thaw();
    eventually("recovery", async || quota.ready().is_ok()).await;
    assert_eq!(levels(&books(&quota).await), [3500.0; 4]);
    assert_eq!(audit(quota.store()).await.unwrap().live_leases, 0, "the unanswered reserve is cancelled");
}

#[tokio::test]
async fn a_restarted_store_gets_its_live_leases_back() {
    let mut server = RedisServer::start();
    let options = Options { lease_ttl: Duration::from_millis(900), ..options() };
    let quota = gateway(&server, options).await;
    let mut reservations = Vec::new();
    for _ in 0..10 {
        let mut reservation = reserve(&quota, demand(60, 40)).await.unwrap();
        reservation.dispatched();
        reservation.streamed(4);
        reservations.push(reservation);
    }
    server.kill();
    assert!(matches!(reserve(&quota, demand(1, 1)).await, Err(Refused::Store(_))));
    server.restart();
    eventually("live leases", async || {
        quota.ready().is_ok() && audit(quota.store()).await.is_ok_and(|audit| audit.live_leases == 10)
    })
    .await;
    assert_eq!(levels(&audit(quota.store()).await.unwrap()), [1000.0; 4], "the store had forgotten everything");
    assert!(quota.stats().reasserts > 0);
    for reservation in reservations {
        reservation.settle(used(60, 10));
    }
    assert_eq!(levels(&books(&quota).await), [700.0; 4]);
}

#[tokio::test]
async fn renewal_keeps_a_long_call_and_carries_its_checkpoint() {
    let server = RedisServer::start();
    let ttl = Duration::from_millis(1500);
    let quota = gateway(&server, Options { lease_ttl: ttl, undispatched_ttl: ttl, ..options() }).await;
    let mut reservation = reserve(&quota, demand(60, 40)).await.unwrap();
    tokio::time::sleep(ttl * 2).await;
    reservation.dispatched();
    reservation.streamed(11);
    tokio::time::sleep(ttl * 2).await;
    let held = audit(quota.store()).await.unwrap();
    assert_eq!((held.live_leases, held.expired_leases, levels(&held)), (1, 0, vec![100.0; 4]));
    // The gateway dies: nothing renews and nothing settles.
    std::mem::forget(reservation);
    drop(quota);
    let other = gateway(&server, Options { lease_ttl: ttl, ..options() }).await;
    other.chain(&ana(), &["m"]);
    eventually("reclaim by another gateway", async || audit(other.store()).await.unwrap().expired_leases == 1).await;
    let after = audit(other.store()).await.unwrap();
    assert_eq!((after.live_leases, levels(&after)), (0, vec![71.0; 4]), "prompt and what was streamed");
    let stats = other.stats();
    assert_eq!((stats.reclaimed_leases, stats.expired), (1, 71));
}

#[tokio::test]
async fn leases_of_an_org_that_nobody_uses_any_more_are_reclaimed() {
    let server = RedisServer::start();
    let ttl = Duration::from_millis(600);
    let quota = gateway(&server, Options { lease_ttl: ttl, undispatched_ttl: ttl, ..options() }).await;
    let reservation = reserve(&quota, demand(60, 40)).await.unwrap();
    let orgs = async || quota.store().some_orgs().await.unwrap();
    eventually("the org is noted", async || orgs().await == ["acme"]).await;
    std::mem::forget(reservation);
    drop(quota);
    let other = gateway(&server, Options { lease_ttl: ttl, ..options() }).await;
    eventually("reclaim", async || audit(other.store()).await.unwrap().live_leases == 0).await;
}

/// Its first pass of reclaim, which notes its orgs, never came.
#[tokio::test]
async fn an_org_that_only_a_gateway_knew_that_died_at_once_is_reclaimed() {
    let server = RedisServer::start();
    let long =
        Options { lease_ttl: Duration::from_secs(600), undispatched_ttl: Duration::from_millis(300), ..options() };
    let dead = gateway(&server, long).await;
    std::mem::forget(reserve(&dead, demand(60, 40)).await.unwrap());
    drop(dead);
    // Started afterwards, and never called.
    let other = gateway(&server, Options { lease_ttl: Duration::from_millis(600), ..options() }).await;
    eventually("reclaim", async || audit(other.store()).await.unwrap().live_leases == 0).await;
}

/// Its probe holds a lease of no org, which no call would ever make anybody look for.
#[tokio::test]
async fn what_a_gateway_held_that_died_while_it_started_is_reclaimed() {
    let server = RedisServer::start();
    let ttl = Duration::from_millis(600);
    let quota = gateway(&server, Options { lease_ttl: ttl, ..options() }).await;
    let ask = ask(LeaseId::random(), 1, 1, ttl);
    done(&quota.store().reserve(&chain(&[]), &ask).await.unwrap());
    let (tag, mut raw) = (quota.store().own_tag().unwrap(), server.connection());
    for key in ["dl".to_owned(), format!("L:{}", ask.id)] {
        redis::cmd("RENAME")
            .arg(format!("ps1:{{acme}}:{key}"))
            .arg(format!("ps1:{{{tag}}}:{key}"))
            .exec(&mut raw)
            .unwrap();
    }
    assert_eq!(audit(quota.store()).await.unwrap().live_leases, 1);
    eventually("reclaim", async || audit(quota.store()).await.unwrap().live_leases == 0).await;
}

#[tokio::test]
async fn a_refusal_reclaims_dead_leases_and_tries_once_more() {
    let server = RedisServer::start();
    let rules = everywhere(&[tokens(100)]);
    let short = Options { undispatched_ttl: Duration::from_millis(900), ..options() };
    let dead = Quota::new(rules.clone(), patient(&server.url()).await, short);
    std::mem::forget(reserve(&dead, demand(60, 40)).await.unwrap());
    drop(dead);
    let quota = Quota::new(rules, patient(&server.url()).await, options());
    refusal(reserve(&quota, demand(60, 40)).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let reservation = reserve(&quota, demand(60, 40)).await.unwrap();
    reservation.settle(used(60, 40));
    assert_eq!(levels(&books(&quota).await), [100.0; 4]);
}

#[tokio::test]
async fn a_scripting_permission_lost_at_run_time_shows_in_readiness_and_heals() {
    let server = RedisServer::start();
    let quota = gateway(&server, options()).await;
    let acl = |change: &str| redis::cmd("ACL").arg(&["SETUSER", "default", change]).exec(&mut server.connection());
    acl("-@scripting").unwrap();
    eventually("not ready", async || quota.ready().is_err()).await;
    acl("+@scripting").unwrap();
    eventually("ready", async || quota.ready().is_ok()).await;
    reserve(&quota, demand(1, 1)).await.unwrap();
}

#[tokio::test]
async fn an_account_of_another_version_is_not_overwritten() {
    let server = RedisServer::start();
    let quota = gateway(&server, options()).await;
    let key = quota.chain(&ana(), &["m"]).accounts()[0].key.clone();
    let mut raw = server.connection();
    redis::cmd("SET").arg(&key).arg(b"\x02new").exec(&mut raw).unwrap();
    let refused = reserve(&quota, demand(1, 1)).await.unwrap_err();
    assert!(matches!(&refused, Refused::Store(error) if error.to_string().contains("another version")), "{refused:?}");
    let kept: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut raw).unwrap();
    assert_eq!(kept, b"\x02new");
    assert!(quota.ready().is_ok(), "one bad account is not an outage");
}

#[tokio::test]
async fn a_settlement_that_the_store_will_never_take_blocks_no_other() {
    let server = RedisServer::start();
    let quota = gateway(&server, Options { capacity: 2, ..options() }).await;
    let reservations = [reserve(&quota, demand(60, 40)).await.unwrap(), reserve(&quota, demand(60, 40)).await.unwrap()];
    // Somebody else's keys in the place of the leases: every script that meets them fails.
    let mut connection = server.connection();
    let leases: Vec<String> = redis::cmd("KEYS").arg("ps1:*:L:*").query(&mut connection).unwrap();
    assert_eq!(leases.len(), 2);
    for lease in &leases {
        redis::pipe().del(lease).rpush(lease, "x").exec(&mut connection).unwrap();
    }
    for reservation in reservations {
        reservation.settle(used(60, 10));
    }
    eventually("the settlements are given up", async || quota.stats().leases == 0).await;
    assert_eq!(quota.stats().lost_leases, 2);
    eventually("room for other calls", async || reserve(&quota, demand(1, 1)).await.is_ok()).await;
}
