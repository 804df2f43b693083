//! The settlement truth table on the request path: what each end of a call costs, to the token.

use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use wire::{
    Usage,
    access::{Entry, Outcome},
};

use super::{
    rig::{Kind, Rig, Settings, chat, on_both_stores},
    upstream::{self, DONE, STOP, Step, USAGE, Upstream, chunk, stream, stream_head, text_event},
};

const STREAM: &str = ",\"stream\":true";
/// Nine prompt tokens and three of output.
const ANSWER: &str = "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"hello there\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"total_tokens\":12}}";

on_both_stores!(
    reported_usage_is_charged_and_the_rest_comes_back_at_once,
    the_budget_is_free_again_when_the_client_sees_the_end,
    an_explicit_zero_is_trusted,
    without_usage_our_own_count_is_charged_and_marked,
    a_client_that_leaves_a_stream_stops_the_upstream_and_pays_for_what_was_produced,
    a_client_that_leaves_before_an_answer_pays_for_what_was_probably_written,
    an_upstream_that_fails_before_the_first_byte_costs_nothing_not_even_the_request,
    an_unreachable_upstream_costs_nothing,
    another_upstream_answers_in_place_of_one_that_fails_and_the_call_counts_once,
    another_4xx_passes_through_keeps_the_request_and_returns_the_tokens,
    the_gateways_own_credentials_are_not_the_clients_problem,
    an_upstream_that_dies_in_a_stream_is_paid_for_what_it_delivered,
    a_refusal_at_one_level_takes_nothing_at_any,
    a_concurrency_slot_comes_back_on_every_way_out,
);

/// The one line of a rig that served one call.
async fn line(rig: &Rig) -> Entry {
    rig.lines(1).await.remove(0)
}

/// Requests used so far by the org of the key, as its next call sees it.
async fn requests_used(rig: &Rig) -> u64 {
    let refused = rig.chat(&chat(",\"max_tokens\":99999")).await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    let next = rig.chat(&chat(",\"max_tokens\":1")).await;
    1000 - next.number("x-ratelimit-remaining-requests") - 1
}

async fn reported_usage_is_charged_and_the_rest_comes_back_at_once(kind: Kind) {
    for (rest, steps) in
        [("", upstream::json(200, ANSWER)), (STREAM, stream(&[&text_event("hello there"), STOP, USAGE, DONE]))]
    {
        let upstream = Upstream::start(move |_| steps.clone()).await;
        let rig = Rig::on(kind, &upstream).await;
        assert_eq!(rig.chat(&chat(&format!("{rest},\"max_tokens\":50"))).await.status, 200);
        let line = line(&rig).await;
        let held = line.demand.expect("admitted");
        assert_eq!(held.max_output, 50);
        assert_eq!(rig.balance().await, (12, held.prompt + 50 - 12));
        assert_eq!(line.usage, Some(Usage { prompt: 9, completion: 3, cached: 0 }));
        assert_eq!((line.decision.outcome, line.estimated, line.stream), (Outcome::Finished, false, !rest.is_empty()));
    }
}

async fn the_budget_is_free_again_when_the_client_sees_the_end(kind: Kind) {
    let upstream = Upstream::start(|_| stream(&[&text_event("x"), STOP, USAGE, DONE])).await;
    let quotas = "quotas: [{ level: org, match: acme, limits: [{ tokens: 200, per: lifetime }] }]".to_owned();
    let rig = Rig::with(&upstream, Settings { quotas: Some(quotas), store: kind, ..Settings::default() }).await;
    for call in 0..3 {
        let mut socket = rig.open(&chat(&format!("{STREAM},\"max_tokens\":150"))).await;
        let mut bytes = Vec::new();
        while !String::from_utf8_lossy(&bytes).contains("[DONE]") {
            assert!(socket.read_buf(&mut bytes).await.expect("read") > 0);
        }
        assert!(bytes.starts_with(b"HTTP/1.1 200"), "call {call}: {}", String::from_utf8_lossy(&bytes));
        rig.balance().await;
    }
}

async fn an_explicit_zero_is_trusted(kind: Kind) {
    let zero =
        "{\"choices\":[{\"message\":{\"content\":\"hello\"}}],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}";
    let upstream = Upstream::start(move |_| upstream::json(200, zero)).await;
    let rig = Rig::on(kind, &upstream).await;
    rig.chat(&chat("")).await;
    assert_eq!(rig.balance().await.0, 0);
    assert!(!line(&rig).await.estimated);
}

async fn without_usage_our_own_count_is_charged_and_marked(kind: Kind) {
    let text = "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"hello there\"},\"finish_reason\":\"stop\"}]}";
    for (rest, steps) in
        [("", upstream::json(200, text)), (STREAM, stream(&[&text_event("hello"), &text_event(" there"), STOP, DONE]))]
    {
        let upstream = Upstream::start(move |_| steps.clone()).await;
        let rig = Rig::on(kind, &upstream).await;
        let answer = rig.chat(&chat(rest)).await;
        if rest.is_empty() {
            assert_eq!(answer.header("x-penstock-usage"), Some("estimated"));
        }
        let line = line(&rig).await;
        let prompt = line.demand.expect("admitted").prompt;
        assert_eq!(line.usage, Some(Usage { prompt, completion: 2, cached: 0 }), "hello there is two tokens");
        assert!(line.estimated);
        assert_eq!(rig.balance().await.0, prompt + 2);
    }
}

async fn a_client_that_leaves_a_stream_stops_the_upstream_and_pays_for_what_was_produced(kind: Kind) {
    for reset in [false, true] {
        let upstream = Upstream::start(|_| {
            let mut steps = vec![stream_head(), chunk(text_event("hello")), chunk(text_event(" there"))];
            steps.push(Step::AwaitClose);
            steps
        })
        .await;
        let rig = Rig::on(kind, &upstream).await;
        let mut socket = rig.open(&chat(&format!("{STREAM},\"max_tokens\":90000"))).await;
        let mut bytes = Vec::new();
        while !String::from_utf8_lossy(&bytes).contains(" there") {
            assert!(socket.read_buf(&mut bytes).await.expect("read") > 0);
        }
        if reset {
            socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).expect("a TCP socket");
        }
        let left = Instant::now();
        drop(socket);
        let line = line(&rig).await;
        let prompt = line.demand.expect("admitted").prompt;
        assert_eq!(rig.balance().await.0, prompt + 2);
        assert_eq!((line.decision.outcome, line.estimated), (Outcome::ClientDisconnected, true));
        let closed = upstream.closed(0).await;
        assert!(closed - left < Duration::from_secs(1), "{:?}", closed - left);
        assert_ne!(
            rig.open(&chat(&format!("{STREAM},\"max_tokens\":90000"))).await.read_u8().await.expect("admitted"),
            0
        );
    }
}

async fn a_client_that_leaves_before_an_answer_pays_for_what_was_probably_written(kind: Kind) {
    let upstream = Upstream::start(|_| vec![Step::AwaitClose]).await;
    let rig = Rig::on(kind, &upstream).await;
    let socket = rig.open(&chat(",\"max_tokens\":40")).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let left = Instant::now();
    drop(socket);
    let line = line(&rig).await;
    let usage = line.usage.expect("charged");
    // Before anything is learned: half a second to the first token, then 50 a second, and never more than was held.
    assert!((35..=40).contains(&usage.completion), "{usage:?}");
    assert_eq!((line.decision.outcome, line.estimated, line.status), (Outcome::ClientDisconnected, true, 499));
    assert_eq!(rig.balance().await.0, line.demand.expect("admitted").prompt + usage.completion);
    assert!(upstream.closed(0).await - left < Duration::from_secs(1));
}

async fn an_upstream_that_fails_before_the_first_byte_costs_nothing_not_even_the_request(kind: Kind) {
    let failures: [(&str, Vec<Step>, u16, &str); 6] = [
        (
            "500",
            upstream::json(500, "{\"error\":{\"message\":\"boom\",\"type\":\"x\",\"param\":null,\"code\":null}}"),
            502,
            "upstream_error",
        ),
        ("503", upstream::json(503, "down"), 502, "upstream_error"),
        ("429", upstream::with_headers(429, "retry-after: 7\r\n", "{}"), 429, "upstream_rate_limited"),
        ("reset", vec![Step::Reset], 502, "upstream_error"),
        ("cut head", vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-".to_vec()), Step::Close], 502, "upstream_error"),
        ("empty stream", vec![stream_head(), Step::Close], 502, "upstream_error"),
    ];
    for (name, steps, status, code) in failures {
        let upstream = Upstream::start(move |asked| match asked.json()["max_tokens"].as_u64() {
            Some(1) => upstream::json(200, ANSWER),
            _ => steps.clone(),
        })
        .await;
        let rig = Rig::on(kind, &upstream).await;
        let answer = rig.chat(&chat(STREAM)).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{name}: {}", answer.text());
        if name == "429" {
            assert_eq!(answer.header("retry-after"), Some("7"));
            assert!((7000..=7350).contains(&answer.number("retry-after-ms")), "{:?}", answer.headers);
        }
        assert_eq!(answer.header("x-should-retry"), Some("true"), "{name}");
        assert_eq!(rig.balance().await.0, 0, "{name}");
        assert_eq!(requests_used(&rig).await, 0, "{name}");
    }
}

async fn an_unreachable_upstream_costs_nothing(kind: Kind) {
    let upstream = Upstream::start(|_| vec![Step::Close]).await;
    let settings = Settings {
        upstreams: Some("[{ name: a, url: \"http://127.0.0.1:1/v1\" }]".into()),
        store: kind,
        ..Settings::default()
    };
    let rig = Rig::with(&upstream, settings).await;
    let answer = rig.chat(&chat("")).await;
    assert_eq!((answer.status, answer.code().as_str()), (502, "upstream_error"));
    assert!(answer.text().contains("upstream a cannot be reached"), "{}", answer.text());
    assert_eq!(rig.balance().await.0, 0);
}

async fn another_upstream_answers_in_place_of_one_that_fails_and_the_call_counts_once(kind: Kind) {
    let upstream = Upstream::start(|asked| match asked.headers.get("authorization").map(String::as_str) {
        Some("Bearer bad") => upstream::json(500, "{}"),
        _ => upstream::json(200, ANSWER),
    })
    .await;
    let url = upstream.url();
    let upstreams = format!(
        "[{{ name: bad, url: \"{url}\", api_key: bad, weight: 1000000 }}, {{ name: good, url: \"{url}\", api_key: good }}, {{ name: gone, url: \"http://127.0.0.1:1\", weight: 1000000 }}]"
    );
    let rig = Rig::with(&upstream, Settings { upstreams: Some(upstreams), store: kind, ..Settings::default() }).await;
    let answer = rig.chat(&chat("")).await;
    assert_eq!((answer.status, answer.header("x-penstock-upstream")), (200, Some("good")), "{}", answer.text());
    assert_eq!(rig.balance().await.0, 12);
    assert_eq!(requests_used(&rig).await, 1);
}

async fn another_4xx_passes_through_keeps_the_request_and_returns_the_tokens(kind: Kind) {
    let refusal = "{\"error\":{\"message\":\"no\",\"type\":\"invalid_request_error\",\"param\":\"max_tokens\",\"code\":\"unsupported_parameter\"}}";
    let upstream = Upstream::start(move |asked| match asked.json()["max_tokens"].as_u64() {
        Some(1) => upstream::json(200, ANSWER),
        _ => upstream::json(400, refusal),
    })
    .await;
    let rig = Rig::on(kind, &upstream).await;
    let answer = rig.chat(&chat(STREAM)).await;
    assert_eq!((answer.status, answer.text().as_str()), (400, refusal));
    assert_eq!(rig.balance().await.0, 0);
    assert_eq!(requests_used(&rig).await, 1);
}

async fn the_gateways_own_credentials_are_not_the_clients_problem(kind: Kind) {
    let upstream = Upstream::start(|_| upstream::json(401, "{\"error\":{\"message\":\"bad key sk-UP\"}}")).await;
    let answer = Rig::on(kind, &upstream).await.chat(&chat("")).await;
    assert_eq!((answer.status, answer.code().as_str()), (502, "upstream_error"));
    assert!(!answer.text().contains("sk-UP"), "{}", answer.text());
}

async fn an_upstream_that_dies_in_a_stream_is_paid_for_what_it_delivered(kind: Kind) {
    let upstream = Upstream::start(|_| {
        vec![
            stream_head(),
            chunk(text_event("hello")),
            chunk(text_event(" there")),
            Step::Wait(Duration::from_millis(20)),
            Step::Reset,
        ]
    })
    .await;
    let rig = Rig::on(kind, &upstream).await;
    rig.chat(&chat(STREAM)).await;
    let line = line(&rig).await;
    assert_eq!((line.decision.outcome, line.estimated), (Outcome::UpstreamDied, true));
    assert_eq!(rig.balance().await.0, line.demand.expect("admitted").prompt + 2);
}

async fn a_refusal_at_one_level_takes_nothing_at_any(kind: Kind) {
    let upstream = Upstream::start(|_| upstream::json(200, ANSWER)).await;
    let quotas = "quotas:\n  - { level: user, match: ana, limits: [{ requests: 100, per: lifetime }] }\n  - { level: app, match: web, limits: [{ tokens: 100000, per: lifetime }] }\n  - { level: global, limits: [{ tokens: 150, per: lifetime }] }".to_owned();
    let rig = Rig::with(&upstream, Settings { quotas: Some(quotas), store: kind, ..Settings::default() }).await;
    let first = rig.chat(&chat(",\"max_tokens\":120")).await;
    assert_eq!(first.status, 200);
    rig.balance().await;
    let refused = rig.chat(&chat(",\"max_tokens\":140")).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "insufficient_quota"), "{}", refused.text());
    assert!(refused.text().contains("global") && refused.text().contains("needed"), "{}", refused.text());
    assert_eq!(upstream.asked().len(), 1);
    let next = rig.chat(&chat(",\"max_tokens\":1")).await;
    assert_eq!(next.number("x-ratelimit-remaining-requests"), 98);
    assert_eq!(rig.lines(3).await[1].decision.level.as_deref(), Some("global"));
}

/// Twenty times each way of ending badly, with room for one call at a time.
async fn a_concurrency_slot_comes_back_on_every_way_out(kind: Kind) {
    let upstream = Upstream::start(|asked| match asked.json()["user"].as_str() {
        Some("stream") => vec![stream_head(), chunk(text_event("x")), Step::AwaitClose],
        Some("500") => upstream::json(500, "{}"),
        Some("reset") => vec![Step::Reset],
        _ => upstream::json(200, ANSWER),
    })
    .await;
    let quotas = "quotas: [{ level: user, match: ana, limits: [{ concurrency: 1 }] }]".to_owned();
    let rig = Rig::with(&upstream, Settings { quotas: Some(quotas), store: kind, ..Settings::default() }).await;
    for round in 0..20 {
        for way in ["stream", "500", "reset", "not json"] {
            let body = match way {
                "stream" => chat(&format!("{STREAM},\"user\":\"stream\"")),
                "not json" => "{".to_owned(),
                way => chat(&format!(",\"user\":\"{way}\"")),
            };
            let mut socket = rig.open(&body).await;
            let mut first = [0; 256];
            assert!(socket.read(&mut first).await.expect("read") > 0);
            drop(socket);
            rig.balance().await;
            assert_eq!(rig.chat(&chat("")).await.status, 200, "round {round} after {way}");
        }
    }
}
