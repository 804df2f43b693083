//! Accounts whose rules come and go: what an account forgets, and when.

use std::time::Duration;

use proxy::quota::audit::audit;
use proxy::quota::{Chain, LeaseId, Level, Limit, Rule, Store, Unit, Window};

use super::rig::*;

both!(
    an_account_outlives_any_number_of_rules,
    what_nobody_touched_for_three_months_is_forgotten_when_another_rule_comes,
);

const DAY: Duration = Duration::from_secs(86400);

fn one(name: &str, limit: Limit) -> std::sync::Arc<Chain> {
    chain(&[Rule { name: Some(name.to_owned()), ..rule(Level::Org, vec![limit]) }])
}

async fn spend(store: &Store, chain: &std::sync::Arc<Chain>, tokens: u64) {
    let id = LeaseId::random();
    done(&store.reserve(chain, &ask(id, tokens, 0, Duration::from_secs(60))).await.unwrap());
    done(&store.settle(chain, id, &spent(tokens, 0)).await.unwrap());
}

async fn an_account_outlives_any_number_of_rules(rig: &Rig) {
    let store = rig.store().await;
    let generation = |number: usize| one(&format!("rule {number}"), Limit::per(Unit::Tokens, 1000, DAY));
    let lifetime = one("lifetime", tokens(1000));
    spend(&store, &lifetime, 100).await;
    for number in 0..300 {
        spend(&store, &generation(number), 10).await;
        rig.pass(Duration::from_millis(1)).await;
    }
    let account = audit(&store).await.unwrap().accounts.into_values().next().unwrap();
    assert_eq!(account.slots.values().filter(|(slot, _)| slot.level > 0.0).count(), 255);
    assert_eq!(account.totals.settled, 3100.0, "what was counted stays counted");
    assert_eq!(peek(&store, &generation(0)).await, [0.0], "the stalest goes first");
    for kept in [60, 299] {
        let level = peek(&store, &generation(kept)).await[0];
        assert!((9.0..=10.0).contains(&level), "rule {kept}: {level}");
    }
    assert_eq!(peek(&store, &lifetime).await, [100.0], "use that no window gives back goes last");
}

async fn what_nobody_touched_for_three_months_is_forgotten_when_another_rule_comes(rig: &Rig) {
    let store = rig.store().await;
    let slow = Limit { unit: Unit::Tokens, amount: 1, window: Window::Bucket { period: DAY, burst: 1000 } };
    for (days, left) in [(91, 409.0), (93, 0.0)] {
        let (old, new) = (one(&format!("old {days}"), slow.clone()), one("new", tokens(1000)));
        spend(&store, &old, 500).await;
        match &rig.redis {
            None => rig.pass(DAY * days).await,
            Some(_) => age(rig, &old.accounts()[0].key, DAY * days),
        }
        spend(&store, &new, 1).await;
        let level = peek(&store, &old).await[0];
        assert!((level - left).abs() < 0.1, "{days} days: {level}");
    }
}

/// As if the first slot of the account had been touched that long ago.
fn age(rig: &Rig, key: &str, by: Duration) {
    let mut raw = rig.redis.as_ref().unwrap().connection();
    let mut packed: Vec<u8> = redis::cmd("GET").arg(key).query(&mut raw).unwrap();
    let at = 2 + 8 * usize::from(packed[1]) + 8 * 6;
    let then = f64::from_le_bytes(packed[at..at + 8].try_into().unwrap()) - by.as_micros() as f64;
    packed[at..at + 8].copy_from_slice(&then.to_le_bytes());
    redis::cmd("SET").arg(key).arg(packed).exec(&mut raw).unwrap();
}
