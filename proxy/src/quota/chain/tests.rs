//! Which rules meet in a chain, and what limits that count the same become.

use std::time::Duration;

use super::*;
use crate::quota::holding::Holding;
use crate::quota::rule::{OnLimit, Pattern, Unit};

fn rule(level: Level, matcher: &str, models: &[&str], limits: Vec<Limit>) -> Rule {
    let pattern = |text: &&str| Pattern::new(text).unwrap();
    let models = models.iter().map(pattern).collect();
    let (matcher, ceilings, on_store_failure) = (pattern(&matcher), Ceilings::default(), OnStoreFailure::Closed);
    let (on_limit, holding) = (OnLimit::Reject, Holding::default());
    Rule { level, matcher, models, name: None, limits, ceilings, on_limit, on_store_failure, holding, shadow: false }
}

fn subject() -> Subject {
    Subject { org: Some("acme".into()), app: Some("web".into()), user: Some("ana".into()), tier: None }
}

fn minute(amount: u64) -> Vec<Limit> {
    vec![Limit::per(Unit::Tokens, amount, Duration::from_secs(60))]
}

#[test]
fn a_named_rule_replaces_the_default_of_its_level_and_all_others_add_up() {
    let rules = [
        rule(Level::Org, "*", &[], minute(1)),
        rule(Level::Org, "acme", &[], minute(2)),
        rule(Level::Org, "a*", &["big"], minute(3)),
        rule(Level::User, "*", &[], minute(4)),
    ];
    let amounts = |models: &[&str]| -> Vec<u64> {
        Chain::resolve(&rules, &subject(), models).limits.iter().map(|l| l.limit.amount).collect()
    };
    assert_eq!(amounts(&["small"]), [4, 2]);
    assert_eq!(amounts(&["big"]), [4, 2, 3]);
}

#[test]
fn identity_ignores_the_value_and_the_order_of_models() {
    let id = |rule: Rule| Chain::resolve(&[rule], &subject(), &["a"]).limits[0].terms.id;
    let base = id(rule(Level::Org, "*", &["a", "b"], minute(5)));
    assert_eq!(base, id(rule(Level::Org, "acme", &["b", "a"], minute(9))));
    assert_ne!(base, id(rule(Level::Org, "*", &["a"], minute(5))));
    let named = |models: &[&str]| Rule { name: Some("n".into()), ..rule(Level::Org, "*", models, minute(5)) };
    assert_eq!(id(named(&["a"])), id(named(&["a", "c"])));
}

#[test]
fn the_same_count_twice_is_one_account_with_the_stricter_limit() {
    let rules = [rule(Level::Org, "acme", &[], minute(9)), rule(Level::Org, "a*", &[], minute(3))];
    let chain = Chain::resolve(&rules, &subject(), &["m"]);
    assert_eq!(chain.limits.iter().map(|l| l.limit.amount).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_shadow_rule_replaces_nothing_and_keeps_its_count_when_it_comes_into_force() {
    let shadow = |rule| Rule { shadow: true, ..rule };
    let count = |rules: &[Rule]| -> Vec<(u64, bool, LimitId)> {
        let chain = Chain::resolve(rules, &subject(), &["m"]);
        chain.limits.iter().map(|l| (l.limit.amount, l.terms.shadow, l.terms.id)).collect()
    };
    let (default, named) = (rule(Level::Org, "*", &[], minute(9)), rule(Level::Org, "acme", &[], minute(3)));
    let id = count(std::slice::from_ref(&named))[0].2;
    let beside = count(&[shadow(named.clone()), default.clone()]);
    assert_eq!(beside.iter().map(|l| (l.0, l.1)).collect::<Vec<_>>(), [(9, false), (3, true)]);
    assert_ne!(beside[0].2, beside[1].2, "each drains at its own rate");
    assert_eq!(count(&[shadow(named.clone())]), [(3, true, id)], "alone it counts where it will be in force");
    assert_eq!(count(&[shadow(default.clone()), named.clone()]), [(3, false, id)]);
    assert_eq!(count(&[shadow(default), shadow(named)]), [(3, true, id)]);
}

#[test]
fn of_two_limits_that_differ_in_burst_both_apply_in_any_order() {
    let bucket = |amount, burst| Limit {
        unit: Unit::Tokens,
        amount,
        window: Window::Bucket { period: Duration::from_secs(60), burst },
    };
    for (a, b) in [((60_000, 60_000), (60_000, 1000)), ((60_000, 1000), (50_000, 50_000))] {
        for (a, b) in [(a, b), (b, a)] {
            let rules = [
                rule(Level::Org, "acme", &[], vec![bucket(a.0, a.1)]),
                rule(Level::Org, "a*", &[], vec![bucket(b.0, b.1)]),
            ];
            let chain = Chain::resolve(&rules, &subject(), &["m"]);
            let [limit] = &chain.limits[..] else { panic!("{:?}", chain.limits) };
            assert_eq!((limit.terms.cap, limit.limit.amount), (1000.0, a.0.min(b.0)));
            assert_eq!(limit.terms.rate, a.0.min(b.0) as f64 / 60e6);
        }
    }
}

#[test]
fn of_two_limits_that_share_a_count_the_stricter_policy_holds() {
    use OnStoreFailure::{Closed, Open, Slice};
    let with = |matcher, on_store_failure| Rule { on_store_failure, ..rule(Level::Org, matcher, &[], minute(5)) };
    for (a, b, expect) in [(Open, Closed, Closed), (Slice(0.1), Open, Slice(0.1)), (Slice(0.2), Slice(0.1), Slice(0.1))]
    {
        for rules in [[with("acme", a), with("a*", b)], [with("acme", b), with("a*", a)]] {
            assert_eq!(Chain::resolve(&rules, &subject(), &["m"]).limits[0].on_failure, expect);
        }
    }
}

#[test]
fn a_user_across_orgs_is_two_accounts() {
    let rules = [rule(Level::User, "ana", &[], minute(5))];
    let key = |org: &str| {
        let subject = Subject { org: Some(org.into()), ..subject() };
        Chain::resolve(&rules, &subject, &["m"]).accounts[0].key.clone()
    };
    assert_ne!(key("acme"), key("other"));
}
