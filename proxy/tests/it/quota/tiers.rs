//! What a higher tier keeps of a limit is there for it, whatever lower tiers ask for, in every kind of window.

use std::time::Duration;

use jiff::tz::TimeZone;
use proxy::quota::{CalendarPeriod, Limit, Quota, Refused, Reservation, Subject, Unit, Window};

use super::rig::*;

both!(
    a_lower_tier_cannot_drain_what_a_higher_one_keeps,
    what_a_lower_tier_is_told_is_its_own_part,
    a_retry_of_a_lower_tier_fits_when_it_was_told,
    debt_of_a_window_is_forgiven_alike_to_all_tiers,
);

const DAY: Duration = Duration::from_secs(86_400);

async fn reserve_as(quota: &Quota, subject: &Subject, tokens: u64) -> Result<Reservation, Refused> {
    quota.reserve(&quota.chain(subject, &["m"]), demand(tokens, 0)).await
}

fn calendar(unit: Unit, amount: u64, period: CalendarPeriod) -> Limit {
    Limit { unit, amount, window: Window::Calendar { period, zone: TimeZone::UTC } }
}

async fn a_lower_tier_cannot_drain_what_a_higher_one_keeps(rig: &Rig) {
    let low = below(0.2);
    for limit in [
        Limit::per(Unit::Requests, 10, DAY),
        calendar(Unit::Requests, 10, CalendarPeriod::Day),
        requests(10),
        Limit::concurrency(10),
    ] {
        let quota = rig.quota(everywhere(std::slice::from_ref(&limit))).await;
        let mut held = Vec::new();
        while let Ok(reservation) = reserve_as(&quota, &low, 1).await {
            held.push(reservation);
        }
        assert_eq!(held.len(), 8, "{limit:?}");
        held.push(reserve_as(&quota, &ana(), 1).await.unwrap());
        held.push(reserve_as(&quota, &ana(), 1).await.unwrap());
        refusal(reserve_as(&quota, &ana(), 1).await);
        refusal(reserve_as(&quota, &low, 1).await);
        drop(held);
        books(&quota).await;
    }
}

async fn what_a_lower_tier_is_told_is_its_own_part(rig: &Rig) {
    let quota = rig.quota(everywhere(&[tokens(1000)])).await;
    let reservation = reserve_as(&quota, &below(0.25), 700).await.unwrap();
    let rate = reservation.rate().tokens.unwrap();
    assert_eq!((rate.limit, rate.remaining), (750, 50));
    let refused = refusal(reserve_as(&quota, &below(0.25), 51).await);
    assert_eq!((refused.needed, refused.left, refused.never_fits), (51, 50, false));
    let refused = refusal(reserve_as(&quota, &below(0.25), 751).await);
    assert!(refused.never_fits && refused.left == 750, "{refused:?}");
    assert_eq!(reserve_as(&quota, &ana(), 300).await.unwrap().rate().tokens.unwrap().remaining, 0);
}

async fn a_retry_of_a_lower_tier_fits_when_it_was_told(rig: &Rig) {
    let limit = Limit { unit: Unit::Tokens, amount: 7, window: Window::Bucket { period: DAY / 43_200, burst: 9 } };
    let quota = rig.quota(everywhere(&[limit])).await;
    let low = below(0.3);
    reserve_as(&quota, &low, 6).await.unwrap().settle(used(6, 0));
    books(&quota).await;
    let after = refusal(reserve_as(&quota, &low, 6).await).retry_after.unwrap();
    if rig.redis.is_none() {
        rig.pass(after - Duration::from_millis(1)).await;
        refusal(reserve_as(&quota, &low, 6).await);
        rig.pass(Duration::from_millis(1)).await;
    } else {
        rig.pass(after).await;
    }
    drop(reserve_as(&quota, &low, 6).await.unwrap_or_else(|error| panic!("{after:?} was not true: {error:?}")));
}

async fn debt_of_a_window_is_forgiven_alike_to_all_tiers(rig: &Rig) {
    // 25 used of 10 a second: 15 are owed in the next one and 5 in that after it, whoever looks first.
    let scenario = async |attempt| {
        let mut rules = everywhere(&[calendar(Unit::Tokens, 10, CalendarPeriod::Second)]);
        rules.iter_mut().for_each(|rule| rule.name = Some(format!("attempt-{attempt}")));
        let quota = rig.quota(rules).await;
        reserve_as(&quota, &ana(), 5).await.unwrap().settle(used(5, 20));
        books(&quota).await;
        rig.pass(Duration::from_secs(2)).await;
        let low = below(0.4);
        let mut fits = Vec::new();
        for (who, tokens) in [(&low, 1), (&low, 1), (&ana(), 4), (&ana(), 1)] {
            fits.push(reserve_as(&quota, who, tokens).await);
        }
        fits.iter().map(Result::is_ok).collect::<Vec<_>>()
    };
    assert_eq!(rig.in_seconds(2, scenario).await, [true, false, true, false]);
}
