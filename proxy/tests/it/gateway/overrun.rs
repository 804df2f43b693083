//! Streams that go on beyond what was held for them: debt by default, an honest end where a rule says `overrun: stop`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wire::{Usage, access::Outcome};

use super::{
    rig::{Answer, KEY, Kind, Rig, Settings, chat, on_both_stores, request},
    upstream::{DONE, STOP, Step, USAGE, Upstream, chunk, stream, stream_end, stream_head, text_event},
};

on_both_stores!(
    a_stream_is_ended_when_its_budget_is_spent_and_not_a_token_later,
    the_made_up_end_looks_like_the_upstreams_own,
    an_end_names_each_open_choice_and_no_other,
    completions_are_ended_in_their_own_shape,
    usage_is_shown_when_it_was_asked_for_and_is_what_was_charged,
    a_burst_that_arrives_at_once_is_held_back_at_the_line,
    a_stream_within_its_hold_asks_for_nothing_and_stays_as_it_is,
    by_default_a_stream_goes_on_and_its_debt_waits,
    a_limit_that_charges_does_not_end_a_stream_that_another_would_stop_later,
    an_answer_that_ends_by_itself_beyond_its_hold_is_not_cut,
    a_whole_answer_is_charged_whatever_it_used,
);

const STREAM: &str = ",\"stream\":true";

/// A word is one token: this many of them, one per event, until the gateway has had enough.
fn words(count: usize) -> Vec<Step> {
    let mut steps = vec![stream_head()];
    steps.extend((0..count).map(|_| chunk(text_event(" word"))));
    steps.push(Step::AwaitClose);
    steps
}

fn quotas(limit: &str, rest: &str) -> Option<String> {
    Some(format!("quotas: [{{ level: org, match: acme, limits: [{{ {limit}, per: lifetime }}]{rest} }}]"))
}

async fn stopping(kind: Kind, upstream: &Upstream, tokens: u64) -> Rig {
    let quotas = quotas(&format!("tokens: {tokens}"), ", overrun: stop");
    Rig::with(upstream, Settings { quotas, store: kind, ..Settings::default() }).await
}

fn parsed(events: &[String]) -> Vec<Value> {
    events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect()
}

fn finishes(answer: &Answer) -> Vec<(u64, String)> {
    let chunks = parsed(&answer.events());
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().cloned().unwrap_or_default());
    choices
        .filter_map(|choice| Some((choice["index"].as_u64()?, choice["finish_reason"].as_str()?.to_owned())))
        .collect()
}

async fn a_stream_is_ended_when_its_budget_is_spent_and_not_a_token_later(kind: Kind) {
    // What is held at first, and what of the budget it leaves: less than a step, several, nothing.
    for (cap, budget) in [(8, 60), (40, 150), (100, 117), (100, 110)] {
        let upstream = Upstream::start(|_| words(1000)).await;
        let rig = stopping(kind, &upstream, budget).await;
        let began = Instant::now();
        let answer = rig.chat(&chat(&format!("{STREAM},\"max_tokens\":{cap}"))).await;
        if answer.status == 429 {
            assert!(cap + 8 > budget, "{}", answer.text());
            continue;
        }
        let line = rig.lines(1).await.remove(0);
        let prompt = line.demand.expect("admitted").prompt;
        let words = answer.streamed_text().matches("word").count() as u64;
        assert_eq!(prompt + words, budget + 1, "the event that crosses the line is the last: {cap} of {budget}");
        assert_eq!(rig.balance().await.0, budget + 1);
        assert_eq!(finishes(&answer), [(0, "length".to_owned())]);
        assert_eq!(answer.events().last().map(String::as_str), Some("[DONE]"));
        assert_eq!(line.usage, Some(Usage { prompt, completion: words, cached: 0 }));
        assert_eq!((line.decision.outcome, line.estimated, line.status), (Outcome::Stopped, true, 200));
        assert_eq!(
            (line.decision.level.as_deref(), line.decision.limit.as_deref()),
            (Some("org"), Some("tokens/lifetime"))
        );
        let closed = upstream.closed(0).await;
        assert!(closed - began < Duration::from_secs(3), "{:?}", closed - began);
        assert_eq!(rig.chat(&chat(",\"max_tokens\":1")).await.status, 429, "nothing is left for the next call");
    }
}

async fn the_made_up_end_looks_like_the_upstreams_own(kind: Kind) {
    let event = "data: {\"id\":\"chatcmpl-\\u00e9\",\"object\":\"chat.completion.chunk\",\"created\":17,\"model\":\"m-1\",\"system_fingerprint\":null,\"x\":1,\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"}}]}\n\n";
    let upstream = Upstream::start(move |_| {
        let mut steps = vec![stream_head()];
        steps.extend((0..100).map(|_| chunk(event)));
        steps.push(Step::AwaitClose);
        steps
    })
    .await;
    let answer = stopping(kind, &upstream, 60).await.chat(&chat(&format!("{STREAM},\"max_tokens\":20"))).await;
    let text = answer.text();
    let (own, end) = text.split_at(text.rfind(event).expect("its own events") + event.len());
    assert_eq!(own.replace(event, ""), "", "what the upstream sent stays as it was");
    assert_eq!(
        end,
        "data: {\"id\":\"chatcmpl-\\u00e9\",\"object\":\"chat.completion.chunk\",\"created\":17,\"model\":\"m-1\",\"system_fingerprint\":null,\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n"
    );
}

async fn an_end_names_each_open_choice_and_no_other(kind: Kind) {
    let upstream = Upstream::start(|_| {
        let of = |index: u64, rest: Value| {
            format!(
                "data: {}\n\n",
                json!({"choices": [{"index": index, "delta": rest["delta"], "finish_reason": rest["finish_reason"]}]})
            )
        };
        let mut steps = vec![stream_head(), chunk(of(1, json!({"delta": {"content": "x"}})))];
        steps.push(chunk(of(1, json!({"delta": {}, "finish_reason": "stop"}))));
        steps.extend((0..100).map(|_| chunk(of(0, json!({"delta": {"content": " word"}})))));
        steps.push(Step::AwaitClose);
        steps
    })
    .await;
    let rig = stopping(kind, &upstream, 60).await;
    let answer = rig.chat(&chat(&format!("{STREAM},\"max_tokens\":10,\"n\":3"))).await;
    let expect = [(1, "stop"), (0, "length"), (2, "length")].map(|(index, why)| (index, why.to_owned()));
    assert_eq!(finishes(&answer), expect);
}

async fn completions_are_ended_in_their_own_shape(kind: Kind) {
    let upstream = Upstream::start(|_| {
        let event =
            "data: {\"id\":\"c\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" word\"}]}\n\n";
        let mut steps = vec![stream_head()];
        steps.extend((0..100).map(|_| chunk(event)));
        steps.push(Step::AwaitClose);
        steps
    })
    .await;
    let rig = stopping(kind, &upstream, 60).await;
    let body = format!("{{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":20{STREAM}}}");
    let answer = rig.send(&request("POST", "/v1/completions", &[KEY], &body)).await;
    let last = parsed(&answer.events()).pop().expect("a chunk");
    let choice = json!({"index": 0, "text": "", "logprobs": null, "finish_reason": "length"});
    assert_eq!(last, json!({"id": "c", "object": "text_completion", "choices": [choice]}));
    assert_eq!(rig.balance().await.0, 61);
}

async fn usage_is_shown_when_it_was_asked_for_and_is_what_was_charged(kind: Kind) {
    let upstream = Upstream::start(|_| words(100)).await;
    let rig = stopping(kind, &upstream, 60).await;
    let options = "\"stream_options\":{\"include_usage\":true}";
    let answer = rig.chat(&chat(&format!("{STREAM},{options},\"max_tokens\":20"))).await;
    let line = rig.lines(1).await.remove(0);
    let used = line.usage.expect("charged");
    let mut chunks = parsed(&answer.events());
    let usage = chunks.pop().expect("a usage chunk");
    assert_eq!(usage["choices"], json!([]));
    let expect = json!({"prompt_tokens": used.prompt, "completion_tokens": used.completion, "total_tokens": 61});
    assert_eq!(usage["usage"], expect);
    assert_eq!(chunks.pop().expect("a finish")["usage"], Value::Null);
    assert_eq!(rig.balance().await.0, 61);
}

async fn a_burst_that_arrives_at_once_is_held_back_at_the_line(kind: Kind) {
    let upstream = Upstream::start(|_| {
        let mut all = Vec::new();
        for _ in 0..5000 {
            let event = text_event(" word");
            all.extend_from_slice(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
        }
        vec![stream_head(), Step::Send(all), Step::AwaitClose]
    })
    .await;
    let rig = stopping(kind, &upstream, 400).await;
    let answer = rig.chat(&chat(&format!("{STREAM},\"max_tokens\":100"))).await;
    assert_eq!(finishes(&answer), [(0, "length".to_owned())]);
    assert_eq!(rig.balance().await.0, 401);
}

async fn a_stream_within_its_hold_asks_for_nothing_and_stays_as_it_is(kind: Kind) {
    let events: Vec<String> = (0..20).map(|_| text_event(" word")).chain([STOP.into(), DONE.into()]).collect();
    let whole = events.concat();
    let upstream = Upstream::start(move |_| {
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        stream(&events)
    })
    .await;
    let rig = stopping(kind, &upstream, 1000).await;
    let answer = rig.chat(&chat(&format!("{STREAM},\"max_tokens\":20"))).await;
    assert_eq!(answer.text(), whole);
    let extend = rig.quota.stats().store.into_iter().find(|op| op.operation.as_str() == "extend").expect("listed");
    assert_eq!(extend.buckets.iter().sum::<u64>(), 0, "no store was asked");
    assert_eq!(rig.lines(1).await[0].decision.outcome, Outcome::Finished);
}

async fn by_default_a_stream_goes_on_and_its_debt_waits(kind: Kind) {
    let upstream = Upstream::start(|_| {
        let mut steps = words(300);
        steps.pop();
        steps.extend([chunk(STOP), chunk(DONE), stream_end()]);
        steps
    })
    .await;
    let quotas = quotas("tokens: 60", "");
    let rig = Rig::with(&upstream, Settings { quotas, store: kind, ..Settings::default() }).await;
    let answer = rig.chat(&chat(&format!("{STREAM},\"max_tokens\":20"))).await;
    assert_eq!(answer.streamed_text().matches("word").count(), 300);
    assert!(rig.balance().await.0 > 300);
    assert_eq!(rig.chat(&chat(",\"max_tokens\":1")).await.status, 429);
}

async fn a_limit_that_charges_does_not_end_a_stream_that_another_would_stop_later(kind: Kind) {
    let upstream = Upstream::start(|_| words(300)).await;
    let quotas = "quotas:\n  - { level: user, match: ana, limits: [{ tokens: 40, per: lifetime }] }\n  - { level: org, match: acme, limits: [{ output_tokens: 90, per: lifetime }], overrun: stop }";
    let settings = Settings { quotas: Some(quotas.to_owned()), store: kind, ..Settings::default() };
    let rig = Rig::with(&upstream, settings).await;
    let answer = rig.chat(&chat(&format!("{STREAM},\"max_tokens\":20"))).await;
    assert_eq!(answer.streamed_text().matches("word").count(), 91);
    assert_eq!(rig.lines(1).await[0].decision.limit.as_deref(), Some("output_tokens/lifetime"));
}

/// The last text crosses the line and says that it is the last: there is nothing to stop.
async fn an_answer_that_ends_by_itself_beyond_its_hold_is_not_cut(kind: Kind) {
    let last =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word word\"},\"finish_reason\":\"stop\"}]}\n\n";
    let upstream = Upstream::start(move |_| stream(&[&text_event(" word"), last, USAGE, DONE])).await;
    let rig = stopping(kind, &upstream, 11).await;
    let answer = rig.chat(&chat(&format!("{STREAM},\"max_tokens\":1"))).await;
    assert_eq!(answer.text(), [&text_event(" word"), last, DONE].concat());
    assert_eq!(rig.balance().await.0, 12);
    assert_eq!(rig.lines(1).await[0].decision.outcome, Outcome::Finished);
}

async fn a_whole_answer_is_charged_whatever_it_used(kind: Kind) {
    let body =
        "{\"choices\":[{\"message\":{\"content\":\"x\"}}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":500}}";
    let upstream = Upstream::start(move |_| super::upstream::json(200, body)).await;
    let rig = stopping(kind, &upstream, 60).await;
    assert_eq!(rig.chat(&chat(",\"max_tokens\":20")).await.status, 200);
    assert_eq!(rig.balance().await.0, 509);
}
