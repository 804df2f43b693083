//! `hold: calibrated`: calls hold what their like have used, and get more while they stream.

use std::time::Duration;

use serde_json::Value;
use wire::access::Outcome;

use super::{
    rig::{Kind, Rig, Settings, chat, on_both_stores},
    upstream::{self, DONE, STOP, Step, Upstream, chunk, stream_end, stream_head, text_event},
};

on_both_stores!(
    calls_hold_what_their_like_have_used_once_enough_have_ended,
    a_stream_gets_more_before_it_needs_it,
    a_stream_that_is_refused_more_goes_on_as_debt_up_to_its_cap,
    with_stop_a_stream_that_is_refused_more_ends_at_once,
    a_whole_answer_beyond_its_hold_is_charged,
    answers_that_were_stopped_teach_that_they_are_long,
    ceilings_are_for_what_a_call_asks_for_and_not_for_what_it_holds,
);

/// What answers have used while the gateway learned, and what a call then holds of it: a bucket's end.
const USED: u64 = 20;
const HELD: u64 = 21;
const PROMPT: u64 = 8;
const STREAM: &str = ",\"stream\":true,\"max_tokens\":1000";

/// Whole answers of as many tokens as the call's `user` says; streams of as many words as its `seed` says.
async fn upstream() -> Upstream {
    Upstream::start(|asked| {
        let body = asked.json();
        if body["stream"] != Value::Bool(true) {
            let used = body["user"].as_str().map_or(USED, |used| used.parse().expect("a number"));
            let usage = format!("{{\"prompt_tokens\":{PROMPT},\"completion_tokens\":{used}}}");
            let answer = format!("{{\"choices\":[{{\"message\":{{\"content\":\"x\"}}}}],\"usage\":{usage}}}");
            return upstream::json(200, &answer);
        }
        let mut steps = vec![stream_head()];
        for _ in 0..body["seed"].as_u64().expect("how many") {
            steps.extend([chunk(text_event(" word")), Step::Wait(Duration::from_millis(1))]);
        }
        steps.extend([chunk(STOP), chunk(DONE), stream_end()]);
        steps
    })
    .await
}

/// A gateway that has seen enough answers.
async fn taught(kind: Kind, upstream: &Upstream, limits: &str, rest: &str) -> Rig {
    let quotas = Some(format!("quotas: [{{ level: org, match: acme, limits: [{limits}], hold: calibrated{rest} }}]"));
    let rig = Rig::with(upstream, Settings { quotas, store: kind, ..Settings::default() }).await;
    for _ in 0..200 {
        assert_eq!(rig.chat(&chat(",\"max_tokens\":30")).await.status, 200);
    }
    let spent = rig.balance().await.0;
    assert_eq!(spent, 200 * (PROMPT + USED));
    rig
}

/// A lifetime budget with so many tokens left after the lessons.
fn left(tokens: u64) -> String {
    format!("{{ tokens: {}, per: lifetime }}", 200 * (PROMPT + USED) + tokens)
}

fn words(text: &str) -> u64 {
    text.matches(" word").count() as u64
}

async fn calls_hold_what_their_like_have_used_once_enough_have_ended(kind: Kind) {
    let upstream = upstream().await;
    let rig = taught(kind, &upstream, &left(100), "").await;
    assert_eq!(rig.chat(&chat(",\"max_tokens\":5000")).await.status, 200, "the worst case has no room");
    let lines = rig.lines(201).await;
    let held = |at: usize| lines[at].demand.map(|demand| (demand.max_output, demand.held_output)).expect("admitted");
    assert_eq!((held(0), held(199)), ((30, None), (30, None)), "until then the worst case is held");
    assert_eq!(held(200), (5000, Some(HELD)));
}

async fn a_stream_gets_more_before_it_needs_it(kind: Kind) {
    let upstream = upstream().await;
    let rig = taught(kind, &upstream, &left(500), "").await;
    let answer = rig.chat(&chat(&format!("{STREAM},\"seed\":200"))).await;
    assert_eq!(words(&answer.text()), 200);
    assert!(!answer.text().contains("length"));
    let before = 200 * (PROMPT + USED);
    assert_eq!(rig.balance().await.0, before + PROMPT + 200);
    let stats = rig.quota.stats();
    assert_eq!(stats.overrun, 0, "all of it was held before the end");
    let asked = stats.store.iter().find(|op| op.operation.as_str() == "extend").expect("listed");
    assert!((10..=15).contains(&asked.buckets.iter().sum::<u64>()), "{asked:?}");
}

async fn a_stream_that_is_refused_more_goes_on_as_debt_up_to_its_cap(kind: Kind) {
    for (rest, cap) in [("", 2.0), (", hold_cap: 1.5", 1.5), (", hold_cap: 1", 1.0)] {
        let upstream = upstream().await;
        let rig = taught(kind, &upstream, &left(PROMPT + HELD), rest).await;
        let answer = rig.chat(&chat(&format!("{STREAM},\"seed\":200"))).await;
        let end = (HELD as f64 * cap) as u64 + 1;
        assert_eq!(words(&answer.text()), end, "{cap} times the hold, and the event that crosses it");
        assert!(answer.text().contains("\"finish_reason\":\"length\""));
        assert_eq!(rig.balance().await.0, 200 * (PROMPT + USED) + PROMPT + end);
        let line = rig.lines(201).await.remove(200);
        assert_eq!(
            (line.decision.outcome, line.decision.limit.as_deref()),
            (Outcome::Stopped, Some("tokens/lifetime"))
        );
        assert_eq!(rig.chat(&chat(",\"max_tokens\":1")).await.status, 429, "the debt waits");
    }
}

async fn with_stop_a_stream_that_is_refused_more_ends_at_once(kind: Kind) {
    let upstream = upstream().await;
    let rig = taught(kind, &upstream, &left(100), ", overrun: stop").await;
    let answer = rig.chat(&chat(&format!("{STREAM},\"seed\":200"))).await;
    assert_eq!(words(&answer.text()), 100 - PROMPT + 1);
    assert!(answer.text().contains("\"finish_reason\":\"length\""));
}

async fn a_whole_answer_beyond_its_hold_is_charged(kind: Kind) {
    let upstream = upstream().await;
    let rig = taught(kind, &upstream, &left(PROMPT + HELD), "").await;
    assert_eq!(rig.chat(&chat(",\"max_tokens\":900,\"user\":\"700\"")).await.status, 200);
    assert_eq!(rig.balance().await.0, 200 * (PROMPT + USED) + PROMPT + 700);
    assert_eq!(rig.chat(&chat(",\"max_tokens\":1")).await.status, 429);
}

async fn answers_that_were_stopped_teach_that_they_are_long(kind: Kind) {
    let upstream = upstream().await;
    let rig = taught(kind, &upstream, &left(10), "").await;
    for _ in 0..2 {
        // Room for what is held, and for no more.
        let room = rig.balance().await.0 + PROMPT + HELD;
        rig.edit(&left(10), &format!("{{ tokens: {room}, per: lifetime }}")).expect("it can be loaded");
        let stopped = rig.chat(&chat(&format!("{STREAM},\"seed\":200"))).await;
        assert!(stopped.text().contains("\"finish_reason\":\"length\""), "{}", stopped.text());
    }
    rig.edit(&left(10), &left(100_000)).expect("it can be loaded");
    rig.chat(&chat(",\"max_tokens\":1000")).await;
    let held = rig.lines(203).await[202].demand.and_then(|demand| demand.held_output).expect("calibrated");
    // Of 200 answers one may exceed the hold, and of the newest, which weigh more, not even two.
    assert!((2 * HELD + 1..=2 * HELD + 6).contains(&held), "{held}");
}

async fn ceilings_are_for_what_a_call_asks_for_and_not_for_what_it_holds(kind: Kind) {
    let upstream = upstream().await;
    let limits = format!("{}, {{ max_request: {{ tokens: 60 }} }}", left(1000));
    let rig = taught(kind, &upstream, &limits, "").await;
    let refused = rig.chat(&chat(",\"max_tokens\":100")).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "request_too_large"), "{}", refused.text());
    assert_eq!(rig.chat(&chat(",\"max_tokens\":50")).await.status, 200);
}
