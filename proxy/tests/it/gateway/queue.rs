//! Calls that wait for their turn, as a client and an operator see it.

use std::time::{Duration, Instant};

use super::{
    rig::{Answer, KEY, Kind, Rig, Settings, chat, on_both_stores, request},
    upstream::{self, Step, Upstream},
};

on_both_stores!(
    a_call_waits_for_the_one_before_it_and_says_how_long,
    a_client_says_how_long_it_may_wait,
    a_client_that_leaves_while_it_waits_is_in_the_log,
);

const OK: &str = "{\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":5}}";
const QUOTAS: &str = "tiers: [{ name: premium }, { name: standard }]\nquotas:\n  - level: org\n    match: acme\n    \
    limits: [{ concurrency: 1 }]\n    on_limit: { queue: { max_wait: 10s, depth: 5 } }";

/// An upstream that takes its time.
async fn slow(store: Kind, time: Duration) -> (Rig, Upstream) {
    let upstream = Upstream::start(move |_| [vec![Step::Wait(time)], upstream::json(200, OK)].concat()).await;
    let settings = Settings { store, quotas: Some(QUOTAS.into()), ..Settings::default() };
    (Rig::with(&upstream, settings).await, upstream)
}

async fn send(rig: &Rig, headers: &[(&str, &str)]) -> Answer {
    rig.send(&request("POST", "/v1/chat/completions", &[&[KEY], headers].concat(), &chat(""))).await
}

async fn a_call_waits_for_the_one_before_it_and_says_how_long(store: Kind) {
    let (rig, _upstream) = slow(store, Duration::from_millis(200)).await;
    let get = super::ops::admin(&rig).await;
    let calls = [(); 3].map(|()| send(&rig, &[]));
    let waiting = async {
        let end = Instant::now() + Duration::from_secs(5);
        while !get("/metrics").await.text().lines().any(|line| line == "penstock_queue_depth{tier=\"standard\"} 2") {
            assert!(Instant::now() < end, "two wait");
        }
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(calls), waiting);
    assert!(answers.iter().all(|answer| answer.status == 200));
    let lines = rig.lines(3).await;
    let mut queued: Vec<f64> = lines.iter().map(|line| line.timing.queued_ms).collect();
    queued.sort_by(f64::total_cmp);
    assert!(queued[0] == 0.0 && queued[1] >= 100.0 && queued[2] >= 250.0, "{queued:?}");
    for line in &lines {
        assert!(line.timing.overhead_ms < 150.0, "waiting is no overhead: {:?}", line.timing);
        assert!(line.timing.e2e_ms >= line.timing.queued_ms + 150.0, "{:?}", line.timing);
        assert_eq!(line.who.tier.as_deref(), Some("standard"));
    }
    let text = get("/metrics").await.text();
    for line in ["penstock_queue_depth{tier=\"standard\"} 0", "penstock_queue_wait_seconds_count 2"] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    rig.balance().await;
}

async fn a_client_says_how_long_it_may_wait(store: Kind) {
    let (rig, _upstream) = slow(store, Duration::from_millis(600)).await;
    let first = send(&rig, &[]);
    tokio::pin!(first);
    tokio::select! { _ = &mut first => panic!("it takes its time"), () = tokio::time::sleep(Duration::from_millis(150)) => {} }
    for header in [("x-penstock-deadline-ms", "60"), ("x-stainless-timeout", "1.06")] {
        let begin = Instant::now();
        let refused = send(&rig, &[header]).await;
        assert!(begin.elapsed() < Duration::from_millis(400), "{header:?}");
        assert_eq!((refused.status, refused.code().as_str()), (429, "rate_limit_exceeded"));
        assert_eq!(refused.header("x-penstock-retry"), Some("estimate"));
        assert!(refused.number("retry-after-ms") >= 1000, "{:?}", refused.headers);
        assert!(refused.text().contains("did not come within the time that it may wait"), "{}", refused.text());
    }
    let odd = send(&rig, &[("x-penstock-deadline-ms", "soon")]).await;
    assert_eq!((odd.status, odd.code().as_str()), (400, "invalid_request"));
    assert_eq!(first.await.status, 200);
    rig.balance().await;
}

async fn a_client_that_leaves_while_it_waits_is_in_the_log(store: Kind) {
    let (rig, upstream) = slow(store, Duration::from_millis(500)).await;
    let first = send(&rig, &[]);
    tokio::pin!(first);
    tokio::select! { _ = &mut first => panic!("it takes its time"), () = tokio::time::sleep(Duration::from_millis(100)) => {} }
    let leaves = rig.open(&chat("")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(leaves);
    assert_eq!(first.await.status, 200);
    assert_eq!(rig.chat(&chat("")).await.status, 200, "its place is nobody's");
    let lines = rig.lines(3).await;
    let outcomes: Vec<(u16, bool)> = lines.iter().map(|line| (line.status, line.usage.is_some())).collect();
    assert_eq!(outcomes, [(499, false), (200, true), (200, true)]);
    assert_eq!(upstream.asked().len(), 2);
    rig.balance().await;
}
