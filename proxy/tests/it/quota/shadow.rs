//! Rules in shadow: counted to the token, and in nobody's way.

use std::time::Duration;

use proxy::quota::{Ceilings, Level, Limit, Quota, Rule, Unit};

use super::rig::*;

both!(
    a_shadow_limit_counts_and_never_refuses,
    a_refused_call_is_in_no_shadow_count,
    rules_are_exchanged_and_use_stays,
    an_amended_call_is_judged_anew,
);

fn shadow(rule: Rule) -> Rule {
    Rule { shadow: true, ..rule }
}

fn told(quota: &Quota) -> Vec<(Level, String, u64)> {
    let refusals = quota.stats().shadow_refusals;
    refusals.into_iter().map(|((level, limit), count)| (level, limit, count)).collect()
}

async fn a_shadow_limit_counts_and_never_refuses(rig: &Rig) {
    let minute = Limit::per(Unit::Tokens, 60, Duration::from_secs(6000));
    let tight = Rule { ceilings: Ceilings { tokens: Some(35), nano_usd: None }, ..rule(Level::Org, vec![minute]) };
    let zero = rule(Level::User, vec![requests(0), Limit::concurrency(0)]);
    let quota = rig.quota(vec![shadow(tight), shadow(zero)]).await;
    for expect in [&["requests/lifetime", "concurrency"][..], &["requests/lifetime", "concurrency", "tokens/6000s"]] {
        let reservation = reserve(&quota, demand(10, 25)).await.unwrap();
        let limits: Vec<&str> = reservation.shadowed().iter().map(|by| by.limit.as_str()).collect();
        assert_eq!((limits.as_slice(), reservation.rate().tokens), (expect, None));
        reservation.settle(used(10, 25));
        books(&quota).await;
    }
    let reservation = reserve(&quota, demand(10, 26)).await.unwrap();
    assert_eq!(reservation.shadowed()[0].limit, "max_request/tokens");
    drop(reservation);
    books(&quota).await;
    let chain = quota.chain(&ana(), &["m"]);
    let levels = peek(quota.store(), &chain).await;
    assert_eq!(levels[..2], [2.0, 0.0]);
    // Less what has refilled meanwhile, on a real clock.
    assert!((levels[2] - 70.0).abs() < 0.5, "{levels:?}");
    assert_eq!(
        told(&quota),
        [
            (Level::User, "concurrency".to_owned(), 3),
            (Level::User, "requests/lifetime".to_owned(), 3),
            (Level::Org, "max_request/tokens".to_owned(), 1),
            (Level::Org, "tokens/6000s".to_owned(), 2),
        ]
    );
    assert!(quota.stats().refusals.is_empty());
}

async fn a_refused_call_is_in_no_shadow_count(rig: &Rig) {
    let quota = rig.quota(vec![rule(Level::Org, vec![tokens(50)]), shadow(rule(Level::User, vec![tokens(10)]))]).await;
    reserve(&quota, demand(10, 30)).await.unwrap().settle(used(10, 30));
    books(&quota).await;
    let refused = refusal(reserve(&quota, demand(10, 30)).await);
    assert_eq!((refused.level, refused.needed, refused.left), (Level::Org, 40, 10));
    assert_eq!(told(&quota), [(Level::User, "tokens/lifetime".to_owned(), 1)]);
    assert_eq!(peek(quota.store(), &quota.chain(&ana(), &["m"])).await, [40.0, 40.0]);
}

async fn rules_are_exchanged_and_use_stays(rig: &Rig) {
    let quota = rig.quota(vec![rule(Level::Org, vec![tokens(100)])]).await;
    let held = reserve(&quota, demand(20, 40)).await.unwrap();
    let mut others = Vec::new();
    for (rules, left) in [
        (vec![rule(Level::Org, vec![tokens(70)])], Some(10)),
        (vec![shadow(rule(Level::Org, vec![tokens(70)]))], None),
        (vec![], None),
        (vec![rule(Level::Org, vec![tokens(100)]), rule(Level::User, vec![tokens(1000)])], Some(9)),
    ] {
        quota.adopt(rules);
        match left {
            Some(left) => assert_eq!(refusal(reserve(&quota, demand(1, 30)).await).left, left),
            None => others.push(reserve(&quota, demand(1, 30)).await.unwrap()),
        }
    }
    drop(others);
    held.settle(used(20, 5));
    let audit = books(&quota).await;
    assert!(audit.is_balanced(), "{:?}", audit.faults());
    assert_eq!(peek(quota.store(), &quota.chain(&ana(), &["m"])).await, [0.0, 25.0], "it ended on its own chain");
}

async fn an_amended_call_is_judged_anew(rig: &Rig) {
    let quota = rig.quota(vec![shadow(rule(Level::Org, vec![tokens(50)]))]).await;
    let chain = quota.chain(&ana(), &["m"]);
    let mut reservation = reserve(&quota, demand(10, 40)).await.unwrap();
    assert!(reservation.shadowed().is_empty());
    reservation.amend(&chain, demand(11, 40)).await.unwrap();
    assert_eq!(reservation.shadowed().len(), 1);
    reservation.settle(used(1, 1));
    assert_eq!(levels(&books(&quota).await), [2.0]);
}
