//! Buckets and calendar windows against a moving clock: refill, roll-over, debt, and retries that come true.

use std::time::Duration;

use jiff::tz::TimeZone;
use proxy::quota::store::Status;
use proxy::quota::{CalendarPeriod, LeaseId, Level, Limit, Rule, Unit, Window};

use super::rig::*;

both!(
    a_retry_after_the_promised_time_is_admitted,
    a_calendar_window_starts_at_zero,
    a_refund_after_roll_over_changes_nothing,
    an_overrun_after_roll_over_is_charged_to_the_current_window,
    debt_of_a_window_carries_into_the_next,
    steady_use_below_the_rate_is_never_refused,
);

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

fn per_second(unit: Unit, amount: u64) -> Limit {
    Limit { unit, amount, window: Window::Calendar { period: CalendarPeriod::Second, zone: TimeZone::UTC } }
}

/// One calendar limit of the org, on accounts of this attempt's own.
fn second_of(unit: Unit, amount: u64, attempt: usize) -> Vec<Rule> {
    let name = Some(format!("attempt-{attempt}"));
    vec![Rule { name, ..rule(Level::Org, vec![per_second(unit, amount)]) }]
}

async fn a_retry_after_the_promised_time_is_admitted(rig: &Rig) {
    // A rate whose refill never comes out even, and slow enough for a busy machine: 7 tokens in 3 s.
    let bucket = Limit { unit: Unit::Tokens, amount: 7, window: Window::Bucket { period: SECOND * 3, burst: 9 } };
    let minute = Limit {
        unit: Unit::Tokens,
        amount: 9,
        window: Window::Calendar { period: CalendarPeriod::Minute, zone: TimeZone::UTC },
    };
    // A minute is too long to wait for in earnest.
    let limits = if rig.redis.is_none() { vec![bucket, minute] } else { vec![bucket] };
    for limit in limits {
        let quota = rig.quota(everywhere(&[limit])).await;
        for _ in 0..2 {
            reserve(&quota, demand(4, 5)).await.unwrap().settle(used(4, 5));
            books(&quota).await;
            let refused = refusal(reserve(&quota, demand(4, 5)).await);
            let after = refused.retry_after.unwrap();
            assert!(!refused.estimate && after <= LONG, "{refused:?}");
            rig.pass(after - Duration::from_millis(1)).await;
            if rig.redis.is_none() {
                refusal(reserve(&quota, demand(4, 5)).await);
            }
            rig.pass(Duration::from_millis(1)).await;
            let admitted = reserve(&quota, demand(4, 5)).await;
            admitted.unwrap_or_else(|error| panic!("{after:?} was not true: {error:?}")).settle(used(0, 0));
            books(&quota).await;
        }
    }
}

async fn a_calendar_window_starts_at_zero(rig: &Rig) {
    let (refused, rate) = rig
        .in_seconds(1, async |attempt| {
            let quota = rig.quota(second_of(Unit::Requests, 2, attempt)).await;
            for _ in 0..2 {
                reserve(&quota, demand(1, 1)).await.unwrap().settle(used(1, 1));
            }
            let refused = reserve(&quota, demand(1, 1)).await;
            rig.pass(SECOND).await;
            let rate = reserve(&quota, demand(1, 1)).await.map(|reservation| *reservation.rate());
            (refused, rate)
        })
        .await;
    let refused = refusal(refused);
    assert!(!refused.insufficient && refused.retry_after.unwrap() <= SECOND, "{refused:?}");
    let rate = rate.unwrap().requests.unwrap();
    assert_eq!((rate.limit, rate.remaining), (2, 1));
    assert!(rate.reset.unwrap() <= SECOND);
}

async fn a_refund_after_roll_over_changes_nothing(rig: &Rig) {
    let store = rig.store().await;
    let seen = rig
        .in_seconds(1, async |attempt| {
            let chain = chain(&second_of(Unit::Tokens, 100, attempt));
            let (old, new) = (LeaseId::random(), LeaseId::random());
            done(&store.reserve(&chain, &ask(old, 50, 50, LONG)).await.unwrap());
            rig.pass(SECOND).await;
            done(&store.reserve(&chain, &ask(new, 20, 20, LONG)).await.unwrap());
            done(&store.settle(&chain, old, &spent(1, 0)).await.unwrap());
            let first = peek(&store, &chain).await;
            done(&store.settle(&chain, new, &spent(20, 0)).await.unwrap());
            [first, peek(&store, &chain).await].concat()
        })
        .await;
    assert_eq!(seen, [40.0, 20.0], "99 tokens of a dead window are not free tokens of this one");
    let audit = proxy::quota::audit::audit(&store).await.unwrap();
    assert!(audit.is_balanced(), "{:#?}", audit.faults());
}

async fn an_overrun_after_roll_over_is_charged_to_the_current_window(rig: &Rig) {
    let store = rig.store().await;
    let seen = rig
        .in_seconds(1, async |attempt| {
            let (chain, id) = (chain(&second_of(Unit::Tokens, 100, attempt)), LeaseId::random());
            done(&store.reserve(&chain, &ask(id, 5, 5, LONG)).await.unwrap());
            rig.pass(SECOND).await;
            done(&store.settle(&chain, id, &spent(5, 9000)).await.unwrap());
            peek(&store, &chain).await
        })
        .await;
    assert_eq!(seen, [8995.0]);
}

async fn debt_of_a_window_carries_into_the_next(rig: &Rig) {
    let store = rig.store().await;
    let seen = rig
        .in_seconds(2, async |attempt| {
            let (chain, id) = (chain(&second_of(Unit::Tokens, 100, attempt)), LeaseId::random());
            done(&store.reserve(&chain, &ask(id, 5, 5, LONG)).await.unwrap());
            done(&store.settle(&chain, id, &spent(5, 245)).await.unwrap());
            rig.pass(SECOND).await;
            let refused = store.reserve(&chain, &ask(LeaseId::random(), 1, 0, LONG)).await.unwrap();
            rig.pass(SECOND).await;
            (refused.status, refused.levels, peek(&store, &chain).await)
        })
        .await;
    assert_eq!(seen, (Status::Full, vec![150.0], vec![50.0]));
}

async fn steady_use_below_the_rate_is_never_refused(rig: &Rig) {
    let bucket = Limit { unit: Unit::Tokens, amount: 1000, window: Window::Bucket { period: SECOND, burst: 20 } };
    let quota = rig.quota(everywhere(&[bucket])).await;
    for _ in 0..180 {
        rig.pass(Duration::from_millis(11)).await;
        reserve(&quota, demand(5, 5)).await.unwrap().settle(used(5, 5));
    }
}

#[tokio::test]
async fn a_clock_that_goes_back_neither_refills_nor_empties() {
    let server = super::redis_server::RedisServer::start();
    let store = patient(&server.url()).await;
    let bucket = Limit { unit: Unit::Tokens, amount: 600, window: Window::Bucket { period: LONG, burst: 100 } };
    let chain = chain(&[rule(Level::Org, vec![bucket])]);
    done(&store.reserve(&chain, &ask(LeaseId::random(), 50, 10, LONG)).await.unwrap());
    // As if another server had written it with a clock two minutes ahead.
    let mut raw = server.connection();
    let key = &chain.accounts()[0].key;
    let mut packed: Vec<u8> = redis::cmd("GET").arg(key).query(&mut raw).unwrap();
    let at = packed.len() - 8;
    let ahead = f64::from_le_bytes(packed[at..].try_into().unwrap()) + 120e6;
    packed[at..].copy_from_slice(&ahead.to_le_bytes());
    redis::cmd("SET").arg(key).arg(packed).exec(&mut raw).unwrap();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(peek(&store, &chain).await, [60.0]);
    }
}
