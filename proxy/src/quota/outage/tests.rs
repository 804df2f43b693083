//! Who is admitted without the store, and what is owed for it afterwards.

use std::time::Duration;

use super::*;
use crate::quota::holding::Holding;
use crate::quota::rule::{Ceilings, Limit, OnLimit, Pattern, Rule, Subject};

fn rule(level: Level, limit: Limit, on_store_failure: OnStoreFailure) -> Rule {
    let (matcher, ceilings, on_limit) = (Pattern::any(), Ceilings::default(), OnLimit::Reject);
    let (models, limits, holding) = (vec![], vec![limit], Holding::default());
    Rule { level, matcher, models, name: None, limits, ceilings, on_limit, on_store_failure, holding, shadow: false }
}

fn tokens(amount: u64) -> Limit {
    Limit::lifetime(Unit::Tokens, amount)
}

fn chain(rules: &[Rule], user: &str) -> Arc<Chain> {
    let subject = Subject { org: Some("acme".into()), app: Some("web".into()), user: Some(user.into()), tier: None };
    Arc::new(Chain::resolve(rules, &subject, &["m"]))
}

fn down() -> StoreError {
    StoreError::Timeout(Duration::from_millis(50))
}

fn need(tokens: u64) -> Amounts {
    Amounts::held(tokens, 0, 0)
}

const SLICE: OnStoreFailure = OnStoreFailure::Slice(0.05);

#[test]
fn one_closed_limit_closes_the_chain_and_open_ones_count_nothing() {
    let outage = Outage::new(10);
    let open = rule(Level::User, tokens(1), OnStoreFailure::Open);
    let closed = rule(Level::Global, tokens(1_000_000), OnStoreFailure::Closed);
    let both = chain(&[open.clone(), closed], "ana");
    assert!(matches!(outage.admit(&both, need(1), 1, down()), Err(Refused::Store(error)) if error == down()));
    assert!(outage.admit(&chain(&[open], "ana"), need(1000), 1, down()).is_ok());
}

#[test]
fn what_is_only_counted_closes_no_chain_and_has_no_slice() {
    let outage = Outage::new(10);
    for policy in [OnStoreFailure::Closed, SLICE] {
        let shadow = Rule { shadow: true, ..rule(Level::User, tokens(1), policy) };
        outage.admit(&chain(std::slice::from_ref(&shadow), "ana"), need(1000), 1, down()).expect("nothing is in force");
        let beside = [shadow, rule(Level::Org, tokens(1000), SLICE)];
        outage.admit(&chain(&beside, "ana"), need(20), 1, down()).expect("within the slice of the org");
    }
    let closed = [
        Rule { shadow: true, ..rule(Level::User, tokens(1), OnStoreFailure::Open) },
        rule(Level::Org, tokens(9), OnStoreFailure::Closed),
    ];
    assert!(
        outage.admit(&chain(&closed, "ana"), need(1), 1, down()).is_err(),
        "a rule in force stays closed beside it"
    );
}

#[test]
fn users_share_the_slice_of_their_org_and_a_refusal_takes_nothing() {
    let outage = Outage::new(10);
    let rules = [rule(Level::User, tokens(1000), SLICE), rule(Level::Org, tokens(1200), SLICE)];
    let (ana, bob) = (chain(&rules, "ana"), chain(&rules, "bob"));
    outage.admit(&ana, need(50), 1, down()).expect("50 of each");
    let refused = outage.admit(&bob, need(11), 1, down()).expect_err("the org has 10 left");
    assert!(matches!(&refused, Refused::Store(StoreError::SliceSpent(what)) if what.contains("org acme")));
    outage.admit(&bob, need(10), 1, down()).expect("what was refused took nothing of the user's slice");
    assert_eq!(outage.figures(true).exhausted, 1);
}

#[test]
fn calls_beyond_the_capacity_are_shed() {
    let outage = Outage::new(1);
    let chain = chain(&[rule(Level::User, tokens(1), OnStoreFailure::Open)], "ana");
    let ticket = outage.admit(&chain, need(1), 1, down()).expect("room for one");
    assert!(matches!(outage.admit(&chain, need(1), 1, down()), Err(Refused::Overloaded)));
    outage.ended(&ticket, &Amounts::default());
    assert!(outage.is_settled(), "a refund owes nothing");
    outage.admit(&chain, need(1), 1, down()).expect("room again");
}

#[test]
fn an_amend_that_does_not_fit_leaves_the_call_where_it_is() {
    let outage = Outage::new(10);
    let chain = chain(&[rule(Level::User, tokens(1000), SLICE)], "ana");
    let mut ticket = outage.admit(&chain, need(30), 1, down()).expect("30 of 50");
    assert!(outage.amend(&mut ticket, &chain, need(51), 1).is_err());
    assert_eq!(ticket.need, need(30));
    outage.amend(&mut ticket, &chain, need(50), 1).expect("its own 30 come back first");
    outage.ended(&ticket, &Amounts::used(1, 7, 0, 0));
    assert_eq!(outage.figures(true).owed, 7);
}

#[test]
fn debts_of_one_chain_are_merged() {
    let outage = Outage::new(10);
    let chain = chain(&[rule(Level::User, tokens(1), OnStoreFailure::Open)], "ana");
    for _ in 0..100 {
        let ticket = outage.admit(&chain, need(10), 1, down()).expect("open");
        outage.ended(&ticket, &Amounts::used(1, 5, 0, 3));
    }
    let debts = outage.take(10);
    assert_eq!(debts.iter().map(|debt| debt.used).collect::<Vec<_>>(), [Amounts::used(100, 500, 0, 300)]);
    assert!(!outage.is_settled(), "taken is not charged");
    outage.charged(&debts[0]);
    assert!(outage.is_settled());
}
