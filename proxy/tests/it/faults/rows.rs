//! Rows of the settlement truth table that take a broken way to the store, one by one.

use std::sync::Arc;
use std::time::Duration;

use proxy::quota::audit::audit;
use proxy::quota::{Quota, Refused, Store};

use super::link::{Cut, Link, Trouble};
use super::world::replicated;
use crate::quota::outages::eventually;
use crate::quota::redis_server::RedisServer;
use crate::quota::rig::*;

const TIMEOUT: Duration = Duration::from_millis(100);
const REFUSED: &str = "ERR upstream failure";

async fn gateway(link: &Link) -> Arc<Quota> {
    Quota::new(everywhere(&[tokens(1000)]), Store::redis(&link.url(0), waits(TIMEOUT)).await.unwrap(), options())
}

async fn well(quota: &Quota) {
    eventually("recovery", async || quota.ready().is_ok() && audit(quota.store()).await.is_ok()).await;
}

/// Every way in which an answer of the store does not arrive, though it has done what it was asked for.
fn lose_answers(link: &Link, way: usize) {
    match way {
        0 => link.cut(Cut::Reply(0)),
        1 => link.cut(Cut::Reply(9)),
        2 => link.trouble(Trouble::Mute),
        3 => link.trouble(Trouble::LateCommands(TIMEOUT * 3)),
        4 => link.trouble(Trouble::LateReplies(TIMEOUT * 3)),
        _ => link.trouble(Trouble::Denied(REFUSED)),
    }
}

#[tokio::test]
async fn a_settle_whose_answer_was_lost_charges_once() {
    for way in 0..6 {
        let server = RedisServer::start();
        let link = Link::to(server.socket());
        let quota = gateway(&link).await;
        let mut reservation = reserve(&quota, demand(60, 40)).await.unwrap();
        reservation.dispatched();
        lose_answers(&link, way);
        reservation.settle(used(60, 10));
        tokio::time::sleep(TIMEOUT * 5).await;
        assert_eq!(levels(&audit(&patient(&server.url()).await).await.unwrap()), [70.0; 4], "way {way}");
        link.trouble(Trouble::None);
        well(&quota).await;
        assert_eq!(levels(&books(&quota).await), [70.0; 4], "way {way}");
        assert_eq!((quota.stats().settled, quota.stats().lost_leases), (70, 0), "way {way}");
    }
}

#[tokio::test]
async fn a_settle_cut_off_on_its_way_is_sent_again() {
    let server = RedisServer::start();
    let link = Link::to(server.socket());
    let quota = gateway(&link).await;
    let reservation = reserve(&quota, demand(60, 40)).await.unwrap();
    link.cut(Cut::Command(50));
    reservation.settle(used(60, 10));
    assert_eq!(levels(&books(&quota).await), [70.0; 4]);
}

#[tokio::test]
async fn a_reserve_whose_answer_was_lost_or_that_came_late_holds_nothing() {
    for way in 0..5 {
        let server = RedisServer::start();
        let link = Link::to(server.socket());
        let quota = gateway(&link).await;
        // Its org is known by now.
        reserve(&quota, demand(1, 1)).await.unwrap().settle(used(1, 1));
        books(&quota).await;
        lose_answers(&link, way);
        assert!(matches!(reserve(&quota, demand(60, 40)).await, Err(Refused::Store(_))), "way {way}");
        tokio::time::sleep(TIMEOUT * 5).await;
        link.trouble(Trouble::None);
        well(&quota).await;
        let after = books(&quota).await;
        assert_eq!((levels(&after), after.live_leases), (vec![2.0; 4], 0), "way {way}");
    }
}

/// Twenty refusals are soon over; what all calls meet is an outage, whatever the server calls it.
#[tokio::test]
async fn a_store_that_refuses_everything_is_down_and_no_settlement_is_given_up() {
    let errors = ["BUSY Redis is busy running a script.", "NOREPLICAS Not enough good replicas to write.", REFUSED];
    for error in errors {
        let server = RedisServer::start();
        let link = Link::to(server.socket());
        let quota = gateway(&link).await;
        let reservation = reserve(&quota, demand(60, 40)).await.unwrap();
        link.trouble(Trouble::Refused(error));
        reservation.settle(used(60, 10));
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(quota.ready().is_err(), "{error}");
        assert_eq!(quota.stats().lost_leases, 0, "{error}");
        link.trouble(Trouble::None);
        well(&quota).await;
        assert_eq!(levels(&books(&quota).await), [70.0; 4], "{error}");
    }
}

#[tokio::test]
async fn a_replica_takes_the_place_of_its_primary_once_it_takes_writes() {
    let (mut primary, replica) = replicated();
    let link = Link::to(primary.socket());
    let quota = gateway(&link).await;
    let reservation = reserve(&quota, demand(60, 40)).await.unwrap();
    // It waits for what its own connection wrote, and so for all before that.
    let mut raw = primary.connection();
    redis::cmd("SET").arg("caught").arg("up").exec(&mut raw).unwrap();
    let caught_up: i64 = redis::cmd("WAIT").arg(1).arg(5000).query(&mut raw).unwrap();
    assert_eq!(caught_up, 1);
    primary.kill();
    link.lead_to(replica.socket());
    reservation.settle(used(60, 10));
    assert!(matches!(reserve(&quota, demand(1, 1)).await, Err(Refused::Store(_))));
    eventually(
        "it is read only",
        async || matches!(quota.ready(), Err(error) if error.to_string().contains("read only replica")),
    )
    .await;
    redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).exec(&mut replica.connection()).unwrap();
    well(&quota).await;
    assert_eq!(levels(&books(&quota).await), [70.0; 4]);
    reserve(&quota, demand(1, 1)).await.unwrap();
}
