//! Leases at the seam of the stores: idempotence, cancel, renewal, expiry, late settles.

use std::time::Duration;

use proxy::quota::account::Totals;
use proxy::quota::audit::audit;
use proxy::quota::store::{Renewal, Status};
use proxy::quota::{LeaseId, Limit, OnExpiry, Store};

use super::rig::*;

both!(
    reserve_sent_twice_is_one_hold,
    settle_sent_twice_charges_once,
    a_cancelled_reserve_leaves_no_hold_even_when_it_arrives_late,
    before_dispatch_expiry_refunds_in_full,
    after_dispatch_expiry_charges_the_last_checkpoint,
    the_refund_policy_gives_a_dispatched_lease_back,
    one_late_settle_corrects_what_expiry_charged,
    a_renewed_lease_does_not_expire,
    a_lost_lease_is_written_anew_only_when_asked,
    a_refusal_says_that_reclaim_may_help,
    amending_resets_the_lease_to_undispatched,
    an_amend_refused_by_a_limit_never_used_before_keeps_the_old_hold,
    an_edited_quota_keeps_its_use,
);

const LONG: Duration = Duration::from_secs(60);
/// Short to wait for, long enough that a busy machine does not miss it.
const SHORT: Duration = Duration::from_millis(700);

fn limits() -> [Limit; 3] {
    [tokens(1000), requests(10), Limit::concurrency(3)]
}

async fn reserve_sent_twice_is_one_hold(rig: &Rig) {
    let (store, chain) = (rig.store().await, chain(&everywhere(&limits())));
    let ask = ask(LeaseId::random(), 20, 30, LONG);
    let first = store.reserve(&chain, &ask).await.unwrap();
    let second = store.reserve(&chain, &ask).await.unwrap();
    assert_eq!((first.status, first.levels), (Status::Done, second.levels.clone()));
    assert_eq!(second.levels, [50.0, 1.0, 1.0].repeat(4));
}

async fn settle_sent_twice_charges_once(rig: &Rig) {
    let (store, chain) = (rig.store().await, chain(&everywhere(&limits())));
    let id = LeaseId::random();
    done(&store.reserve(&chain, &ask(id, 20, 30, LONG)).await.unwrap());
    done(&store.settle(&chain, id, &spent(20, 10)).await.unwrap());
    assert_eq!(store.settle(&chain, id, &spent(20, 10)).await.unwrap().status, Status::Absent);
    assert_eq!(peek(&store, &chain).await, [30.0, 1.0, 0.0].repeat(4));
}

async fn a_cancelled_reserve_leaves_no_hold_even_when_it_arrives_late(rig: &Rig) {
    let (store, chain) = (rig.store().await, chain(&everywhere(&limits())));
    for late in [true, false] {
        let ask = ask(LeaseId::random(), 20, 30, LONG);
        if !late {
            done(&store.reserve(&chain, &ask).await.unwrap());
        }
        done(&store.cancel(&chain, ask.id).await.unwrap());
        assert_eq!(store.reserve(&chain, &ask).await.unwrap().status, Status::Buried);
        assert_eq!(store.settle(&chain, ask.id, &spent(1, 1)).await.unwrap().status, Status::Buried);
        assert_eq!(peek(&store, &chain).await, [0.0; 12], "late: {late}");
    }
    assert!(audit(&store).await.unwrap().is_balanced());
}

/// A lease past its deadline, reclaimed; the levels of tokens, requests and slots at one account.
async fn expired(rig: &Rig, store: &Store, dispatched: bool, policy: OnExpiry) -> (LeaseId, Vec<f64>) {
    let chain = chain(&everywhere(&limits()));
    let id = LeaseId::random();
    done(&store.reserve(&chain, &ask(id, 100, 500, SHORT)).await.unwrap());
    // A renewal before dispatch carries the prompt as checkpoint, and must not make expiry charge it.
    let renewal = Renewal { dispatched, ..renewal(id, (100, 500), 40, SHORT) };
    done(&store.renew(&chain, &renewal).await.unwrap());
    assert_eq!(store.expire(&chain, id, policy).await.unwrap().status, Status::NotDue);
    rig.pass(SHORT + Duration::from_millis(1)).await;
    let reclaimed = store.reclaim("acme", policy).await.unwrap();
    assert_eq!((reclaimed.leases, reclaimed.tokens), (1, 600.0));
    let audit = audit(store).await.unwrap();
    assert!(audit.is_balanced(), "{:#?}", audit.faults());
    assert_eq!((audit.live_leases, audit.expired_leases), (0, 1));
    (id, peek(store, &chain).await[..3].to_vec())
}

async fn before_dispatch_expiry_refunds_in_full(rig: &Rig) {
    let store = rig.store().await;
    assert_eq!(expired(rig, &store, false, CHARGE).await.1, [0.0, 0.0, 0.0]);
}

async fn after_dispatch_expiry_charges_the_last_checkpoint(rig: &Rig) {
    let store = rig.store().await;
    assert_eq!(expired(rig, &store, true, CHARGE).await.1, [140.0, 1.0, 0.0]);
    let audit = audit(&store).await.unwrap();
    let expect = Totals { reserved: 600.0, settled: 0.0, refunded: 460.0, expired: 140.0 };
    assert_eq!(totals(&audit), [expect; 4]);
}

async fn the_refund_policy_gives_a_dispatched_lease_back(rig: &Rig) {
    let store = rig.store().await;
    assert_eq!(expired(rig, &store, true, OnExpiry::Refund).await.1, [0.0, 0.0, 0.0]);
}

async fn one_late_settle_corrects_what_expiry_charged(rig: &Rig) {
    let store = rig.store().await;
    let chain = chain(&everywhere(&limits()));
    for (actual, level) in [(spent(100, 10), 110.0), (spent(100, 90), 300.0)] {
        let (id, levels) = expired(rig, &store, true, CHARGE).await;
        assert_eq!(levels[0], level - actual.tokens() + 140.0);
        assert_eq!(store.settle(&chain, id, &actual).await.unwrap().status, Status::Late);
        assert_eq!(peek(&store, &chain).await[0], level);
        assert_eq!(store.settle(&chain, id, &actual).await.unwrap().status, Status::Absent, "corrected once");
        let audit = audit(&store).await.unwrap();
        assert!(audit.is_balanced(), "{:#?}", audit.faults());
    }
}

async fn a_renewed_lease_does_not_expire(rig: &Rig) {
    let (store, chain) = (rig.store().await, chain(&everywhere(&limits())));
    let id = LeaseId::random();
    done(&store.reserve(&chain, &ask(id, 100, 500, SHORT)).await.unwrap());
    done(&store.renew(&chain, &renewal(id, (100, 500), 7, LONG)).await.unwrap());
    rig.pass(SHORT * 2).await;
    assert_eq!(store.reclaim("acme", CHARGE).await.unwrap().leases, 0);
    assert_eq!(peek(&store, &chain).await[..3], [600.0, 1.0, 1.0]);
}

async fn a_lost_lease_is_written_anew_only_when_asked(rig: &Rig) {
    let (store, chain) = (rig.store().await, chain(&everywhere(&limits())));
    let mut renewal = renewal(LeaseId::random(), (100, 500), 40, SHORT);
    assert_eq!(store.renew(&chain, &renewal).await.unwrap().status, Status::Absent);
    renewal.reassert = true;
    done(&store.renew(&chain, &renewal).await.unwrap());
    assert_eq!(peek(&store, &chain).await[..3], [600.0, 1.0, 1.0]);
    rig.pass(SHORT + Duration::from_millis(1)).await;
    store.reclaim("acme", CHARGE).await.unwrap();
    assert_eq!(peek(&store, &chain).await[..3], [140.0, 1.0, 0.0], "its checkpoint came with it");
    assert_eq!(store.renew(&chain, &renewal).await.unwrap().status, Status::Buried, "a tombstone forbids it");
}

async fn a_refusal_says_that_reclaim_may_help(rig: &Rig) {
    let (store, chain) = (rig.store().await, chain(&everywhere(&[tokens(100)])));
    done(&store.reserve(&chain, &ask(LeaseId::random(), 50, 50, SHORT)).await.unwrap());
    let next = ask(LeaseId::random(), 1, 0, LONG);
    let refused = store.reserve(&chain, &next).await.unwrap();
    assert_eq!((refused.status, refused.due), (Status::Full, false));
    rig.pass(SHORT + Duration::from_millis(1)).await;
    let refused = store.reserve(&chain, &next).await.unwrap();
    assert_eq!((refused.status, refused.due), (Status::Full, true));
    store.reclaim("acme", CHARGE).await.unwrap();
    done(&store.reserve(&chain, &next).await.unwrap());
}

async fn amending_resets_the_lease_to_undispatched(rig: &Rig) {
    let (store, chain) = (rig.store().await, chain(&everywhere(&limits())));
    let id = LeaseId::random();
    done(&store.reserve(&chain, &ask(id, 100, 500, LONG)).await.unwrap());
    done(&store.renew(&chain, &renewal(id, (100, 500), 40, LONG)).await.unwrap());
    done(&store.amend(&chain, &chain, &ask(id, 10, 20, SHORT)).await.unwrap());
    assert_eq!(peek(&store, &chain).await[..3], [30.0, 1.0, 1.0]);
    rig.pass(SHORT + Duration::from_millis(1)).await;
    store.reclaim("acme", CHARGE).await.unwrap();
    assert_eq!(peek(&store, &chain).await[..3], [0.0, 0.0, 0.0]);
}

async fn an_amend_refused_by_a_limit_never_used_before_keeps_the_old_hold(rig: &Rig) {
    let (store, old) = (rig.store().await, chain(&everywhere(&[tokens(1000)])));
    let new = chain(&everywhere(&[tokens(1000), requests(0)]));
    let id = LeaseId::random();
    done(&store.reserve(&old, &ask(id, 20, 30, LONG)).await.unwrap());
    for _ in 0..2 {
        let refused = store.amend(&old, &new, &ask(id, 1, 1, LONG)).await.unwrap();
        assert_eq!((refused.status, refused.levels), (Status::Full, [0.0, 0.0].repeat(4)));
        assert_eq!(peek(&store, &old).await, [50.0; 4]);
    }
}

async fn an_edited_quota_keeps_its_use(rig: &Rig) {
    let store = rig.store().await;
    let (before, after) = (chain(&everywhere(&[tokens(1000)])), chain(&everywhere(&[requests(9), tokens(60)])));
    done(&store.reserve(&before, &ask(LeaseId::random(), 20, 30, LONG)).await.unwrap());
    let refused = store.reserve(&after, &ask(LeaseId::random(), 5, 6, LONG)).await.unwrap();
    assert_eq!((refused.status, refused.levels), (Status::Full, [0.0, 50.0].repeat(4)), "the new limit, the old use");
    done(&store.reserve(&after, &ask(LeaseId::random(), 5, 5, LONG)).await.unwrap());
    assert_eq!(peek(&store, &before).await, [60.0; 4], "and back again");
}
