//! Calls that wait for their turn: order, patience, bounds, and who is fair to whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use proxy::quota::{
    Chain, Clock, Level, Limit, OnLimit, Options, Patience, Quota, Refused, Reservation, Rule, Share, Store, Subject,
    Tier, Unit, Wait, Window,
};

use super::rig::*;

both!(
    a_call_waits_until_it_fits,
    a_turn_comes_at_once_where_its_room_was_made,
    a_call_that_fits_does_not_pass_one_that_waits,
    a_client_that_leaves_gives_up_its_place,
    a_queue_that_is_full_sheds,
    a_wait_that_would_be_too_long_is_refused_at_once_with_its_length,
    a_turn_that_does_not_come_in_time_is_refused,
    a_limit_that_does_not_queue_refuses_a_call_that_would_wait,
    a_premium_call_goes_before_all_others,
    a_tenant_that_sends_ten_times_as_much_is_served_as_much,
    as_many_calls_and_bytes_wait_as_may,
);

pub const PATIENT: Duration = Duration::from_secs(20);

pub fn queues(rule: Rule, most: Duration, depth: usize) -> Rule {
    Rule { on_limit: OnLimit::Queue(Wait { most, depth }), ..rule }
}

fn one_at_a_time() -> Vec<Rule> {
    vec![queues(rule(Level::Org, vec![Limit::concurrency(1)]), PATIENT, 100)]
}

/// With a clock that runs: who waits waits in earnest.
pub async fn running(rig: &Rig, rules: Vec<Rule>) -> Arc<Quota> {
    Quota::new(rules, store(rig).await, options())
}

async fn store(rig: &Rig) -> Store {
    if rig.redis.is_some() { rig.store().await } else { Store::memory(Clock::Wall) }
}

pub fn of_app(app: &str, tier: Option<(u8, &[f64])>) -> Subject {
    let of_rank = |(rank, shares): (u8, &[f64])| {
        let shares = shares.iter().map(|share| Share::new(*share)).collect();
        Arc::new(Tier { name: rank.to_string(), rank, kept: Share::NONE, shares })
    };
    Subject { app: Some(app.into()), tier: tier.map(of_rank), ..ana() }
}

/// Waits in a task of its own.
pub fn waiter(
    quota: &Arc<Quota>,
    chain: &Arc<Chain>,
    tokens: u64,
) -> tokio::task::JoinHandle<Result<Reservation, Refused>> {
    let (quota, chain) = (quota.clone(), chain.clone());
    tokio::spawn(async move { quota.reserve(&chain, demand(tokens, 0)).await })
}

pub async fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub fn waiting(quota: &Quota) -> u64 {
    quota.stats().queue_depth.iter().map(|(_, calls)| calls).sum()
}

pub async fn many_wait(quota: &Quota, calls: u64) {
    until(&format!("{calls} calls wait"), || waiting(quota) == calls).await;
}

async fn a_call_waits_until_it_fits(rig: &Rig) {
    let quota = running(rig, one_at_a_time()).await;
    let chain = quota.chain(&ana(), &["m"]);
    let first = quota.reserve(&chain, demand(5, 5)).await.unwrap();
    assert_eq!(first.queued(), Duration::ZERO);
    let second = waiter(&quota, &chain, 10);
    many_wait(&quota, 1).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert!(!second.is_finished());
    let freed = Instant::now();
    first.settle(used(5, 5));
    let second = second.await.unwrap().unwrap();
    assert!(freed.elapsed() < Duration::from_secs(1), "{:?}", freed.elapsed());
    assert!(second.queued() >= Duration::from_millis(30), "{:?}", second.queued());
    drop(second);
    let stats = quota.stats();
    assert_eq!((waiting(&quota), stats.queue_wait.buckets.iter().sum::<u64>()), (0, 1));
    levels(&books(&quota).await);
}

async fn a_turn_comes_at_once_where_its_room_was_made(rig: &Rig) {
    let quota = running(rig, one_at_a_time()).await;
    let chain = quota.chain(&ana(), &["m"]);
    let first = quota.reserve(&chain, demand(5, 5)).await.unwrap();
    let mut waiters: FuturesUnordered<_> = (0..60).map(|_| waiter(&quota, &chain, 10)).collect();
    many_wait(&quota, 60).await;
    let begin = Instant::now();
    drop(first);
    while let Some(next) = waiters.next().await {
        drop(next.unwrap().unwrap());
    }
    // Looking every 50 ms would take 3 s.
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
}

async fn a_call_that_fits_does_not_pass_one_that_waits(rig: &Rig) {
    let bucket = Limit { unit: Unit::Tokens, amount: 100, window: Window::Bucket { period: PATIENT, burst: 100 } };
    let rules = vec![queues(rule(Level::User, vec![bucket, Limit::concurrency(2)]), PATIENT, 100)];
    let quota = running(rig, rules).await;
    let chain = quota.chain(&ana(), &["m"]);
    let first = quota.reserve(&chain, demand(60, 0)).await.unwrap();
    let big = waiter(&quota, &chain, 90);
    many_wait(&quota, 1).await;
    let small = waiter(&quota, &chain, 1);
    many_wait(&quota, 2).await;
    tokio::time::sleep(Duration::from_millis(120)).await;
    assert!(!big.is_finished() && !small.is_finished());
    drop(first);
    let big = big.await.unwrap().unwrap();
    let small = small.await.unwrap().unwrap();
    drop((big, small));
    books(&quota).await;
}

async fn a_client_that_leaves_gives_up_its_place(rig: &Rig) {
    let quota = running(rig, one_at_a_time()).await;
    let chain = quota.chain(&ana(), &["m"]);
    let first = quota.reserve(&chain, demand(5, 5)).await.unwrap();
    let leaves = waiter(&quota, &chain, 10);
    many_wait(&quota, 1).await;
    let stays = waiter(&quota, &chain, 10);
    many_wait(&quota, 2).await;
    leaves.abort();
    assert!(leaves.await.unwrap_err().is_cancelled());
    many_wait(&quota, 1).await;
    drop(first);
    let stays = tokio::time::timeout(Duration::from_secs(5), stays).await.expect("its turn comes").unwrap().unwrap();
    drop(stays);
    assert_eq!(levels(&books(&quota).await), [0.0]);
}

async fn a_queue_that_is_full_sheds(rig: &Rig) {
    let quota = running(rig, vec![queues(rule(Level::Org, vec![Limit::concurrency(1)]), PATIENT, 2)]).await;
    let chain = quota.chain(&ana(), &["m"]);
    let first = quota.reserve(&chain, demand(5, 5)).await.unwrap();
    let waiters = [waiter(&quota, &chain, 1), waiter(&quota, &chain, 1)];
    many_wait(&quota, 2).await;
    let refused = refusal(quota.reserve(&chain, demand(1, 0)).await);
    assert!(refused.estimate && refused.retry_after.is_some() && !refused.never_fits, "{refused:?}");
    assert!(refused.to_string().contains("its queue is full"), "{refused}");
    drop(first);
    for waiter in waiters {
        drop(waiter.await.unwrap().unwrap());
    }
    books(&quota).await;
}

async fn a_wait_that_would_be_too_long_is_refused_at_once_with_its_length(rig: &Rig) {
    // 100 tokens in 2000 s: 60 come back in 1200 s, and a slow machine is no part of the answer.
    let long = Duration::from_secs(2000);
    let bucket = Limit { unit: Unit::Tokens, amount: 100, window: Window::Bucket { period: long, burst: 100 } };
    let quota = running(rig, vec![queues(rule(Level::Org, vec![bucket]), long, 100)]).await;
    let chain = quota.chain(&ana(), &["m"]);
    quota.reserve(&chain, demand(100, 0)).await.unwrap().settle(used(100, 0));
    books(&quota).await;
    let patience = |seconds| Patience { most: Some(Duration::from_secs(seconds)), bytes: 0 };
    let at_once = async |seconds| {
        let asked = quota.admit(&chain, demand(60, 0), patience(seconds));
        refusal(tokio::time::timeout(Duration::from_secs(20), asked).await.expect("it need not wait to know"))
    };
    let refused = at_once(900).await;
    let after = refused.retry_after.unwrap();
    assert!(refused.estimate && (1150..=1200).contains(&after.as_secs()), "{refused:?}");
    // Its place is given up; one that may wait does, and is ahead of the next.
    books(&quota).await;
    let waits = waiter(&quota, &chain, 40);
    many_wait(&quota, 1).await;
    let behind = at_once(1500).await;
    let after = behind.retry_after.unwrap();
    assert!((1950..=2000).contains(&after.as_secs()), "{behind:?}");
    waits.abort();
}

async fn a_turn_that_does_not_come_in_time_is_refused(rig: &Rig) {
    let quota = running(rig, vec![queues(rule(Level::Org, vec![Limit::concurrency(1)]), PATIENT, 100)]).await;
    let chain = quota.chain(&ana(), &["m"]);
    let first = quota.reserve(&chain, demand(5, 5)).await.unwrap();
    let begin = Instant::now();
    let most = Duration::from_millis(150);
    let refused = refusal(quota.admit(&chain, demand(1, 0), Patience { most: Some(most), bytes: 0 }).await);
    assert!(begin.elapsed() >= most && begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    let shed = refused.shed.unwrap();
    assert!(refused.estimate && shed.queued >= Duration::from_millis(140), "{refused:?}");
    drop(first);
    drop(quota.reserve(&chain, demand(1, 0)).await.unwrap());
    books(&quota).await;
}

async fn a_limit_that_does_not_queue_refuses_a_call_that_would_wait(rig: &Rig) {
    let mut rules = one_at_a_time();
    rules.push(rule(Level::User, vec![requests(1)]));
    let quota = running(rig, rules).await;
    let chain = quota.chain(&ana(), &["m"]);
    let first = quota.reserve(&chain, demand(5, 5)).await.unwrap();
    let refused = refusal(quota.reserve(&chain, demand(1, 0)).await);
    assert_eq!((refused.level, refused.shed), (Level::User, None));
    drop(first);
    books(&quota).await;
}

async fn a_premium_call_goes_before_all_others(rig: &Rig) {
    let quota = running(rig, one_at_a_time()).await;
    let shares: &[f64] = &[0.0, 0.05];
    let low = quota.chain(&of_app("web", Some((1, shares))), &["m"]);
    let premium = quota.chain(&of_app("bot", Some((0, shares))), &["m"]);
    let first = quota.reserve(&low, demand(5, 5)).await.unwrap();
    let mut lows = Vec::new();
    for calls in 1..=3 {
        lows.push(waiter(&quota, &low, 10));
        many_wait(&quota, calls).await;
    }
    let premium = waiter(&quota, &premium, 10);
    many_wait(&quota, 4).await;
    drop(first);
    let turn = premium.await.unwrap().unwrap();
    assert!(lows.iter().all(|low| !low.is_finished()), "it waited for the turn being filled and nothing else");
    drop(turn);
    for low in lows {
        drop(low.await.unwrap().unwrap());
    }
    books(&quota).await;
}

/// Both ask for more than there is all the while; what they ask for at most and what they use differ.
async fn a_tenant_that_sends_ten_times_as_much_is_served_as_much(rig: &Rig) {
    let quota = running(rig, vec![queues(rule(Level::Org, vec![Limit::concurrency(2)]), PATIENT, 100)]).await;
    let served = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    // 40 times the bound of the algorithm: twice what runs at a time.
    let enough = 40 * 2 * 80;
    let mut callers = tokio::task::JoinSet::new();
    // 60 calls at once against 6, of prompts 10 and outputs 10 of 30 held, against 4 and 6 of 10 held.
    for (tenant, calls, prompt, held, output) in [(0, 60, 10, 30, 10), (1, 6, 4, 10, 6)] {
        let chain = quota.chain(&of_app(["web", "bot"][tenant], None), &["m"]);
        for _ in 0..calls {
            let (quota, chain, served) = (quota.clone(), chain.clone(), served.clone());
            callers.spawn(async move {
                while served.iter().any(|tokens| tokens.load(Ordering::Relaxed) < enough) {
                    let call = quota.reserve(&chain, demand(prompt, held)).await.unwrap();
                    // Long enough that others of its tenant wait meanwhile.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    call.settle(used(prompt, output));
                    served[tenant].fetch_add(prompt + output, Ordering::Relaxed);
                }
            });
        }
    }
    until("both are served", || served.iter().all(|tokens| tokens.load(Ordering::Relaxed) >= enough)).await;
    let [web, bot] = served.each_ref().map(|tokens| tokens.load(Ordering::Relaxed) as f64);
    assert!((web / bot - 1.0).abs() <= 0.05, "{web} against {bot}");
    while callers.join_next().await.is_some() {}
    books(&quota).await;
}

async fn as_many_calls_and_bytes_wait_as_may(rig: &Rig) {
    let options = Options { waiting_calls: 2, waiting_bytes: 1000, ..options() };
    let quota = Quota::new(one_at_a_time(), store(rig).await, options);
    let chain = quota.chain(&ana(), &["m"]);
    let first = quota.reserve(&chain, demand(5, 5)).await.unwrap();
    let admit = |bytes| {
        let (quota, chain) = (quota.clone(), chain.clone());
        tokio::spawn(async move { quota.admit(&chain, demand(1, 0), Patience { most: None, bytes }).await })
    };
    let one = admit(900);
    many_wait(&quota, 1).await;
    let refused = refusal(admit(200).await.unwrap());
    assert!(refused.to_string().contains("as many waiting calls as it may"), "{refused}");
    let two = admit(100);
    many_wait(&quota, 2).await;
    refusal(admit(0).await.unwrap());
    drop(first);
    drop(one.await.unwrap().unwrap());
    drop(two.await.unwrap().unwrap());
    books(&quota).await;
}
