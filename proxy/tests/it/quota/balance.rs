//! What an operator reads in a store, and what a repair mends.

use std::time::Duration;

use proxy::quota::audit::{audit, repair};
use proxy::quota::balance::balances;
use proxy::quota::{Clock, LeaseId, Level, Limit, Rule, Unit};

use super::rig::*;

both!(accounts_have_the_names_and_balances_of_the_rules, the_oldest_lease_is_the_one_that_is_due_first);

const LONG: Duration = Duration::from_secs(60);

async fn accounts_have_the_names_and_balances_of_the_rules(rig: &Rig) {
    let bucket = Limit::per(Unit::Tokens, 6000, Duration::from_secs(60_000));
    let rules = vec![
        rule(Level::User, vec![bucket, Limit::lifetime(Unit::NanoUsd, 1_000_000)]),
        Rule { shadow: true, ..rule(Level::Org, vec![requests(1)]) },
    ];
    let quota = rig.quota(rules.clone()).await;
    let held = reserve(&quota, demand(1000, 500)).await.unwrap();
    reserve(&quota, demand(100, 200)).await.unwrap().settle(used(100, 50));
    let store = quota.store();
    let now = match rig.redis {
        Some(_) => Clock::Wall.now_us(),
        None => 1_780_315_200e6,
    };
    // The settle is on its way.
    let end = std::time::Instant::now() + LONG;
    while quota.stats().leases > 1 {
        assert!(std::time::Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let found = balances([&*chain(&rules)], &audit(store).await.unwrap(), now);
    let told: Vec<_> = found
        .values()
        .flat_map(|account| account.limits.iter().map(move |limit| (account, limit)))
        .map(|(account, limit)| {
            let shadow = if limit.shadow { " shadow" } else { "" };
            format!(
                "{} {} {}{shadow} {}/{}",
                account.level.as_str(),
                account.subject,
                limit.limit,
                limit.left,
                limit.most
            )
        })
        .collect();
    let money = 1_000_000 - PRICE.cost(1000, 500) - PRICE.cost(100, 50);
    assert_eq!(
        told,
        [
            "org acme requests/lifetime shadow 0/1".to_owned(),
            "user acme/web/ana tokens/60000s 4350/6000".to_owned(),
            format!("user acme/web/ana usd/lifetime {money}/1000000"),
        ]
    );
    drop(held);
    let none = balances([], &books(&quota).await, now);
    assert!(none.is_empty(), "nobody's accounts have no name: {none:?}");
}

async fn the_oldest_lease_is_the_one_that_is_due_first(rig: &Rig) {
    let (store, chain) = (rig.store().await, chain(&everywhere(&[tokens(1000)])));
    for (id, seconds) in [(1, 50), (2, 40), (3, 60)] {
        let ask = ask(LeaseId(id), 10, u64::from(id as u8), Duration::from_secs(seconds));
        done(&store.reserve(&chain, &ask).await.unwrap());
    }
    done(&store.renew(&chain, &renewal(LeaseId(2), (10, 2), 0, LONG)).await.unwrap());
    for account in audit(&store).await.unwrap().accounts.values() {
        let oldest = account.oldest.as_ref().unwrap();
        assert_eq!((account.leases, oldest.id, oldest.tokens, oldest.dispatched), (3, LeaseId(1), 11.0, false));
    }
}

#[tokio::test]
async fn a_leaked_hold_is_found_and_given_back_when_asked() {
    let rig = Rig::new(Kind::Redis);
    let (store, chain) = (rig.store().await, chain(&everywhere(&[tokens(1000), Limit::concurrency(5)])));
    let reserve = async |id| done(&store.reserve(&chain, &ask(LeaseId(id), 20, 30, LONG)).await.unwrap());
    reserve(1).await;
    reserve(2).await;
    assert!(audit(&store).await.unwrap().is_balanced());
    let mut connection = rig.redis.as_ref().unwrap().connection();
    let mut lose = |id| {
        let key = format!("ps1:{{acme}}:L:{}", LeaseId(id));
        let lost: i64 = redis::cmd("DEL").arg(key).query(&mut connection).unwrap();
        assert_eq!(lost, 1);
    };
    lose(1);

    let stale = audit(&store).await.unwrap();
    assert_eq!((stale.is_balanced(), stale.leaked(), stale.faults().len()), (false, 200.0, 4));
    assert!(stale.faults()[0].contains("leaked 50 tokens"), "{:?}", stale.faults());
    reserve(3).await;
    assert_eq!(repair(&store, &stale).await.unwrap(), Vec::<String>::new(), "used since: left alone");
    let fresh = audit(&store).await.unwrap();
    assert_eq!(repair(&store, &fresh).await.unwrap().len(), 4);
    let after = audit(&store).await.unwrap();
    assert!(after.is_balanced(), "{:?}", after.faults());
    for account in after.accounts.values() {
        assert_eq!((account.totals.reserved, account.totals.refunded, account.live_tokens), (150.0, 50.0, 100.0));
        assert!(account.concurrency.iter().all(|id| account.slots[id].0.level == 2.0), "{account:?}");
    }
    done(&store.settle(&chain, LeaseId(2), &spent(20, 5)).await.unwrap());
    assert!(audit(&store).await.unwrap().is_balanced(), "the books go on from there");

    // With the last holder lost only the rules tell which limit is concurrency.
    lose(3);
    let untold = audit(&store).await.unwrap();
    assert_eq!(repair(&store, &untold).await.unwrap().len(), 4);
    let mut told = audit(&store).await.unwrap();
    assert!(told.is_balanced());
    told.know([&*chain]);
    assert!(!told.is_balanced() && told.leaked() == 0.0);
    assert_eq!(repair(&store, &told).await.unwrap().len(), 4);
    assert_eq!(peek(&store, &chain).await, [25.0 + 50.0 + 50.0, 0.0].repeat(4), "levels of windows stay");
}
