//! The life of a call, by the rows of the settlement truth table.

use std::time::Duration;

use proxy::quota::account::Totals;
use proxy::quota::{CalendarPeriod, Ceilings, Demand, Level, Limit, Outcome, Price, Rule, Unit, Window};
use wire::{Metered, Usage};

use super::rig::*;

both!(
    the_example_holds_3000_uses_2200_and_gives_800_back_at_all_four_levels,
    each_ending_charges_what_the_truth_table_says,
    a_drop_before_dispatch_refunds_and_after_it_charges_what_was_streamed,
    a_refusal_at_any_level_takes_nothing_at_any,
    a_concurrency_slot_comes_back_on_every_way_out,
    an_overrun_is_charged_and_the_debt_waits,
    amending_moves_the_hold_or_keeps_the_old_one,
    a_candidate_without_limits_can_give_way_to_one_with,
    what_can_never_fit_is_refused_without_a_retry,
    a_key_without_rules_is_admitted_and_counted,
    headers_show_the_limit_with_the_least_remaining,
    refusals_name_the_level_the_need_and_what_is_left,
    absurd_numbers_neither_wrap_nor_pass,
);

async fn the_example_holds_3000_uses_2200_and_gives_800_back_at_all_four_levels(rig: &Rig) {
    let quota = rig.quota(everywhere(&[tokens(10_000)])).await;
    let reservation = reserve(&quota, demand(2000, 1000)).await.unwrap();
    let held = proxy::quota::audit::audit(quota.store()).await.unwrap();
    assert_eq!(levels(&held), [3000.0; 4]);
    reservation.settle(used(2000, 200));
    let after = books(&quota).await;
    assert_eq!(levels(&after), [2200.0; 4]);
    assert_eq!(totals(&after), [Totals { reserved: 3000.0, settled: 2200.0, refunded: 800.0, expired: 0.0 }; 4]);
    let stats = quota.stats();
    assert_eq!((stats.reserved, stats.settled, stats.refunded, stats.held), (3000, 2200, 800, 0));
}

async fn each_ending_charges_what_the_truth_table_says(rig: &Rig) {
    let estimated = |prompt, completion| Outcome::Used {
        metered: Metered::Estimated(Usage { prompt, completion, cached: 0 }),
        nano_usd: PRICE.cost(prompt, completion),
    };
    // (outcome, tokens, requests, nano-USD charged)
    let rows = [
        (used(20, 5), 25.0, 1.0, 6000.0),
        (used(0, 0), 0.0, 1.0, 0.0),
        (estimated(20, 7), 27.0, 1.0, 7200.0),
        (Outcome::Refund, 0.0, 0.0, 0.0),
        (Outcome::Rejected, 0.0, 1.0, 0.0),
    ];
    for (at, (outcome, tokens_used, requests_used, nano_usd)) in rows.into_iter().enumerate() {
        let limits = [tokens(1000), requests(10), Limit::lifetime(Unit::NanoUsd, 1_000_000), Limit::concurrency(3)];
        // A name per row: fresh accounts on the same store.
        let name = |rule| proxy::quota::Rule { name: Some(format!("row-{at}")), ..rule };
        let rules: Vec<_> = everywhere(&limits).into_iter().map(name).collect();
        let quota = rig.quota(rules).await;
        let mut reservation = reserve(&quota, demand(20, 100)).await.unwrap();
        reservation.dispatched();
        reservation.settle(outcome);
        books(&quota).await;
        let chain = quota.chain(&ana(), &["m"]);
        let expect = [tokens_used, requests_used, nano_usd, 0.0].repeat(4);
        assert_eq!(peek(quota.store(), &chain).await, expect, "{outcome:?}");
    }
}

async fn a_drop_before_dispatch_refunds_and_after_it_charges_what_was_streamed(rig: &Rig) {
    let quota = rig.quota(everywhere(&[tokens(1000)])).await;
    drop(reserve(&quota, demand(100, 500)).await.unwrap());
    assert_eq!(levels(&books(&quota).await), [0.0; 4]);
    let mut reservation = reserve(&quota, demand(100, 500)).await.unwrap();
    reservation.dispatched();
    reservation.streamed(37);
    drop(reservation);
    assert_eq!(levels(&books(&quota).await), [137.0; 4]);
}

async fn a_refusal_at_any_level_takes_nothing_at_any(rig: &Rig) {
    for tight in Level::ALL {
        let amount = |level| if level == tight { 50 } else { 1000 };
        let named =
            |level| proxy::quota::Rule { name: Some(format!("{tight:?}")), ..rule(level, vec![tokens(amount(level))]) };
        let quota = rig.quota(Level::ALL.map(named).to_vec()).await;
        reserve(&quota, demand(10, 30)).await.unwrap().settle(used(10, 20));
        books(&quota).await;
        let refused = refusal(reserve(&quota, demand(10, 20)).await);
        assert_eq!((refused.level, refused.needed, refused.left), (tight, 30, 20));
        let chain = quota.chain(&ana(), &["m"]);
        assert_eq!(peek(quota.store(), &chain).await, [30.0; 4], "{tight:?}");
    }
}

async fn a_concurrency_slot_comes_back_on_every_way_out(rig: &Rig) {
    let quota = rig.quota(everywhere(&[Limit::concurrency(1)])).await;
    let endings: [fn(proxy::quota::Reservation); 5] = [
        |reservation| reservation.settle(used(1, 1)),
        |reservation| reservation.settle(Outcome::Refund),
        |reservation| reservation.settle(Outcome::Rejected),
        drop,
        |mut reservation| reservation.dispatched(),
    ];
    for end in endings {
        let reservation = reserve(&quota, demand(1, 1)).await.unwrap();
        let refused = refusal(reserve(&quota, demand(1, 1)).await);
        assert!(refused.estimate && refused.retry_after.is_some(), "{refused:?}");
        end(reservation);
        assert_eq!(levels(&books(&quota).await), [0.0; 4]);
    }
}

async fn an_overrun_is_charged_and_the_debt_waits(rig: &Rig) {
    let quota = rig.quota(everywhere(&[tokens(100)])).await;
    reserve(&quota, demand(5, 5)).await.unwrap().settle(used(5, 9000));
    let after = books(&quota).await;
    assert_eq!(levels(&after), [9005.0; 4]);
    let refused = refusal(reserve(&quota, demand(1, 0)).await);
    assert_eq!((refused.left, refused.insufficient, refused.retry_after), (0, true, None));
    assert_eq!(quota.stats().overrun, 8995);
}

async fn amending_moves_the_hold_or_keeps_the_old_one(rig: &Rig) {
    let small = proxy::quota::Rule {
        models: vec![proxy::quota::Pattern::new("small").unwrap()],
        ..rule(Level::User, vec![tokens(40)])
    };
    let quota = rig.quota(vec![rule(Level::Org, vec![tokens(100), requests(1)]), small]).await;
    let (big, small) = (quota.chain(&ana(), &["big"]), quota.chain(&ana(), &["small"]));
    let mut reservation = quota.reserve(&big, demand(50, 30)).await.unwrap();
    let refused = refusal(reservation.amend(&small, demand(20, 21)).await.map(|()| unreachable!("41 do not fit 40")));
    assert!(refused.never_fits && refused.model_bound, "{refused:?}");
    assert_eq!(peek(quota.store(), &small).await, [0.0, 80.0, 1.0], "the old hold stands");
    reservation.amend(&small, demand(10, 20)).await.unwrap();
    assert_eq!(peek(quota.store(), &small).await, [30.0, 30.0, 1.0], "one request, not two");
    reservation.settle(used(10, 5));
    assert_eq!(levels(&books(&quota).await).iter().sum::<f64>(), 15.0 + 15.0 + 1.0);
}

async fn a_candidate_without_limits_can_give_way_to_one_with(rig: &Rig) {
    let paid = proxy::quota::Rule {
        models: vec![proxy::quota::Pattern::new("paid").unwrap()],
        ..rule(Level::Org, vec![tokens(100)])
    };
    let quota = rig.quota(vec![paid]).await;
    let (free, paid) = (quota.chain(&ana(), &["free"]), quota.chain(&ana(), &["paid"]));
    let mut reservation = quota.reserve(&free, demand(50, 900)).await.unwrap();
    reservation.amend(&paid, demand(50, 30)).await.unwrap();
    assert_eq!(peek(quota.store(), &paid).await, [80.0]);
    reservation.amend(&free, demand(50, 900)).await.unwrap();
    assert_eq!(peek(quota.store(), &paid).await, [0.0]);
    reservation.settle(used(1, 1));
    assert_eq!(levels(&books(&quota).await), [0.0]);
}

async fn what_can_never_fit_is_refused_without_a_retry(rig: &Rig) {
    let mut rules = everywhere(&[Limit::per(Unit::Tokens, 100, Duration::from_secs(60))]);
    rules[0].ceilings = Ceilings { tokens: Some(60), nano_usd: Some(20_000) };
    let quota = rig.quota(rules).await;
    let over_ceiling = refusal(reserve(&quota, demand(11, 50)).await);
    assert_eq!((over_ceiling.limit.as_str(), over_ceiling.left), ("max_request/tokens", 60));
    let over_money = refusal(reserve(&quota, demand(0, 50)).await);
    assert_eq!((over_money.limit.as_str(), over_money.needed), ("max_request/usd", 30_000));
    let quota = rig.quota(everywhere(&[Limit::per(Unit::Tokens, 100, Duration::from_secs(60))])).await;
    let over_burst = refusal(reserve(&quota, demand(1, 100)).await);
    assert!(over_burst.never_fits && over_burst.retry_after.is_none(), "{over_burst:?}");
}

async fn a_key_without_rules_is_admitted_and_counted(rig: &Rig) {
    let quota = rig.quota(vec![]).await;
    let reservation = reserve(&quota, demand(10, 20)).await.unwrap();
    assert_eq!((reservation.rate().tokens, quota.stats().held), (None, 30));
    reservation.settle(used(10, 5));
    let audit = books(&quota).await;
    assert!(audit.accounts.is_empty() && audit.live_leases == 0);
    assert_eq!((quota.stats().settled, quota.stats().refunded), (15, 15));
}

async fn headers_show_the_limit_with_the_least_remaining(rig: &Rig) {
    let minute = Duration::from_secs(60);
    let rules = vec![
        rule(Level::User, vec![Limit::per(Unit::Tokens, 6000, minute), Limit::per(Unit::OutputTokens, 900, minute)]),
        rule(Level::Org, vec![Limit::per(Unit::Tokens, 100_000, minute), Limit::per(Unit::Requests, 50, minute)]),
        rule(Level::Global, vec![Limit::concurrency(3), Limit::lifetime(Unit::NanoUsd, 10_000_000)]),
    ];
    let quota = rig.quota(rules).await;
    let reservation = reserve(&quota, demand(1000, 500)).await.unwrap();
    let rate = *reservation.rate();
    let (tokens, requests) = (rate.tokens.unwrap(), rate.requests.unwrap());
    assert_eq!((tokens.limit, tokens.remaining), (900, 400), "output tokens bind before all tokens");
    assert_eq!((requests.limit, requests.remaining), (50, 49));
    let seconds = tokens.reset.unwrap().as_secs_f64();
    assert!((seconds - 500.0 / 15.0).abs() < 0.01, "until empty of use: {seconds}");
    assert_eq!(quota.chain(&ana(), &["m"]).rate(), rate, "remembered for answers that never reach the store");
}

async fn refusals_name_the_level_the_need_and_what_is_left(rig: &Rig) {
    let quota = rig.quota(vec![rule(Level::Org, vec![Limit::per(Unit::Tokens, 600, Duration::from_secs(60))])]).await;
    let _held = reserve(&quota, demand(100, 400)).await.unwrap();
    let refused = refusal(reserve(&quota, demand(100, 400)).await);
    assert_eq!(
        (refused.level, refused.subject.as_str(), refused.limit.as_str()),
        (Level::Org, "acme", "tokens/minute")
    );
    assert_eq!((refused.needed, refused.insufficient, refused.model_bound), (500, false, false));
    assert!(refused.left.abs_diff(100) <= 1, "{refused:?}");
    assert!(refused.to_string().contains("tokens/minute of org acme: needed 500, left 10"), "{refused}");
    assert_eq!(quota.stats().refusals[&(Level::Org, "tokens/minute".to_owned())], 1);
}

async fn absurd_numbers_neither_wrap_nor_pass(rig: &Rig) {
    let limits = [tokens(1000), Limit::lifetime(Unit::NanoUsd, 1 << 53), requests(0)];
    for (limit, input, output) in [
        (&limits[0], u64::MAX, 1),
        (&limits[0], 1, i64::MAX as u64),
        (&limits[0], u64::MAX, u64::MAX),
        (&limits[1], u64::MAX, u64::MAX),
        (&limits[2], 0, 0),
    ] {
        let quota = rig.quota(everywhere(std::slice::from_ref(limit))).await;
        let price = Price { input: u64::MAX, output: u64::MAX };
        assert!(refusal(reserve(&quota, Demand::new(input, output, price)).await).never_fits);
    }
    let quota = rig.quota(everywhere(&limits[..1])).await;
    reserve(&quota, demand(1, 1)).await.unwrap().settle(used(u64::MAX, u64::MAX));
    assert!(books(&quota).await.is_balanced(), "debt beyond any limit still balances");
    assert_eq!(refusal(reserve(&quota, demand(1, 1)).await).left, 0);
    // More time than a server can count, until a debt is paid or a burst refilled.
    let day = Duration::from_secs(86400);
    let calendar = Window::Calendar { period: CalendarPeriod::Day, zone: jiff::tz::TimeZone::UTC };
    let slow = |window| Limit { unit: Unit::Tokens, amount: 1000, window };
    let bucket = |burst| Window::Bucket { period: day, burst };
    for (index, window) in [bucket(1 << 52), bucket(1000), calendar].into_iter().enumerate() {
        let name = Some(format!("absurd {index}"));
        let quota = rig.quota(vec![Rule { name, ..rule(Level::App, vec![slow(window)]) }]).await;
        reserve(&quota, demand(1, 1)).await.unwrap().settle(used(u64::MAX, u64::MAX));
        assert!(books(&quota).await.is_balanced());
        assert_eq!(refusal(reserve(&quota, demand(1, 1)).await).left, 0);
    }
}
