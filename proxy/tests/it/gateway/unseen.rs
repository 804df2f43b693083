//! What a call costs of whose answer little or nothing was seen: only what its own attempt may have produced.

use std::time::{Duration, Instant};

use tokio::{io::AsyncReadExt, net::TcpListener};
use wire::access::{Entry, Outcome};

use super::{
    rig::{Kind, Rig, Settings, chat, on_both_stores},
    upstream::{self, Step, Upstream, stream_end, stream_head},
};

const STREAM: &str = ",\"stream\":true";

on_both_stores!(
    a_stream_that_breaks_off_before_its_first_byte_costs_nothing_however_late,
    a_silent_stream_is_charged_for_what_was_probably_written,
    a_whole_answer_that_never_comes_is_charged_for_what_was_probably_written,
    a_client_that_leaves_before_the_request_was_sent_pays_nothing,
);

async fn line(rig: &Rig) -> Entry {
    rig.lines(1).await.remove(0)
}

fn with_upstreams(upstreams: String, store: Kind) -> Settings {
    Settings { upstreams: Some(upstreams), store, ..Settings::default() }
}

/// Requests that the org of the key has used of its 1000, as its next call sees it.
async fn requests_used(rig: &Rig) -> u64 {
    999 - rig.chat(&chat(STREAM)).await.number("x-ratelimit-remaining-requests")
}

#[tokio::test]
async fn whole_answers_teach_no_false_wait_for_the_first_token() {
    const ANSWER: &str = "{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":40}}";
    let upstream = Upstream::start(|asked| match asked.json()["user"].as_str() {
        Some("slow") => vec![Step::AwaitClose],
        _ => [vec![Step::Wait(Duration::from_millis(1100))], upstream::json(200, ANSWER)].concat(),
    })
    .await;
    let rig = Rig::start(&upstream).await;
    let body = chat("");
    let answers = futures_util::future::join_all((0..40).map(|_| rig.chat(&body))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    let socket = rig.open(&chat(",\"max_tokens\":90,\"user\":\"slow\"")).await;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    drop(socket);
    let line = rig.lines(41).await.remove(40);
    assert_eq!(line.decision.outcome, Outcome::ClientDisconnected);
    assert!(line.usage.expect("charged").completion >= 15, "{:?}", line.usage);
}

#[tokio::test]
async fn an_attempt_that_failed_is_not_paid_for_when_the_client_leaves_the_next() {
    let upstream = Upstream::start(|asked| match asked.headers["authorization"].as_str() {
        "Bearer slow" => [vec![Step::Wait(Duration::from_millis(1500))], upstream::json(503, "{}")].concat(),
        _ => vec![Step::AwaitClose],
    })
    .await;
    let url = upstream.url();
    let upstreams = format!(
        "[{{ name: slow, url: \"{url}\", api_key: slow, weight: 1000000 }}, {{ name: next, url: \"{url}\", api_key: next }}]"
    );
    let rig = Rig::with(&upstream, with_upstreams(upstreams, Kind::Memory)).await;
    let socket = rig.open(&chat("")).await;
    let end = Instant::now() + Duration::from_secs(10);
    while upstream.asked().len() < 2 {
        assert!(Instant::now() < end, "the second upstream was never asked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(socket);
    let line = line(&rig).await;
    assert_eq!((line.upstream.as_deref(), line.decision.outcome), (Some("next"), Outcome::ClientDisconnected));
    assert_eq!(line.usage.expect("asked").completion, 0, "the first attempt's time was charged");
}

async fn a_stream_that_breaks_off_before_its_first_byte_costs_nothing_however_late(kind: Kind) {
    for end in [Step::Reset, Step::Close, stream_end()] {
        let steps = vec![stream_head(), Step::Wait(Duration::from_millis(500)), end.clone()];
        let upstream = Upstream::start(move |_| steps.clone()).await;
        let rig = Rig::on(kind, &upstream).await;
        let answer = rig.chat(&chat(STREAM)).await;
        assert!(answer.status == 200 && answer.text().contains("upstream_died"), "{end:?}: {}", answer.text());
        assert_eq!(rig.balance().await.0, 0, "{end:?}");
        assert_eq!(requests_used(&rig).await, 0, "{end:?}");
        let line = rig.lines(2).await.remove(0);
        assert_eq!((line.decision.outcome, line.usage), (Outcome::UpstreamFailed, None), "{end:?}");
    }
}

async fn a_silent_stream_is_charged_for_what_was_probably_written(kind: Kind) {
    for client_leaves in [false, true] {
        let upstream = Upstream::start(|_| vec![stream_head(), Step::AwaitClose]).await;
        let limits = "idle_stream_timeout: 1s".to_owned();
        let rig = Rig::with(&upstream, Settings { limits, store: kind, ..Settings::default() }).await;
        let mut socket = rig.open(&chat(&format!("{STREAM},\"max_tokens\":90"))).await;
        if client_leaves {
            tokio::time::sleep(Duration::from_millis(900)).await;
        } else {
            socket.read_to_end(&mut Vec::new()).await.expect("ends");
        }
        drop(socket);
        let line = line(&rig).await;
        let outcome = if client_leaves { Outcome::ClientDisconnected } else { Outcome::UpstreamFailed };
        assert_eq!((line.decision.outcome, line.estimated), (outcome, true));
        let usage = line.usage.expect("charged");
        assert!((15..=90).contains(&usage.completion), "{usage:?}");
        assert_eq!(rig.balance().await.0, usage.prompt + usage.completion);
    }
}

async fn a_whole_answer_that_never_comes_is_charged_for_what_was_probably_written(kind: Kind) {
    let upstream = Upstream::start(|_| vec![Step::AwaitClose]).await;
    let limits = "response_timeout: 1s".to_owned();
    let rig = Rig::with(&upstream, Settings { limits, store: kind, ..Settings::default() }).await;
    assert_eq!(rig.chat(&chat(",\"max_tokens\":90")).await.status, 504);
    let line = line(&rig).await;
    assert_eq!((line.decision.outcome, line.estimated), (Outcome::UpstreamFailed, true));
    let usage = line.usage.expect("charged");
    assert!((15..=90).contains(&usage.completion), "{usage:?}");
    assert_eq!(rig.balance().await.0, usage.prompt + usage.completion);
    upstream.closed(0).await;
}

async fn a_client_that_leaves_before_the_request_was_sent_pays_nothing(kind: Kind) {
    // It takes connections and never answers the TLS handshake, so no request can be sent.
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let upstreams = format!("[{{ name: mute, url: \"https://{}/v1\" }}]", mute.local_addr().expect("bound"));
    let nobody = Upstream::start(|_| Vec::new()).await;
    let limits = "connect_timeout: 3s".to_owned();
    let rig = Rig::with(&nobody, Settings { limits, ..with_upstreams(upstreams, kind) }).await;
    let socket = rig.open(&chat("")).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    drop(socket);
    let line = line(&rig).await;
    assert_eq!((line.decision.outcome, line.usage), (Outcome::ClientDisconnected, None));
    assert_eq!(rig.balance().await.0, 0);
    assert_eq!(requests_used(&rig).await, 0);
}
