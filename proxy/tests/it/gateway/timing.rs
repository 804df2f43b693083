//! Deadlines and the drain: silence ends, life does not.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wire::access::Outcome;

use super::{
    rig::{Rig, Settings, chat},
    upstream::{DONE, STOP, Step, Upstream, chunk, stream_end, stream_head, text_event},
};

const STREAM: &str = ",\"stream\":true";

fn short() -> Settings {
    Settings {
        limits: "response_timeout: 600ms, idle_stream_timeout: 500ms, keepalive_interval: 10s".into(),
        ..Settings::default()
    }
}

#[tokio::test]
async fn a_long_stream_is_not_cut_by_any_total() {
    let upstream = Upstream::start(|_| {
        let mut steps = vec![stream_head()];
        for _ in 0..6 {
            steps.extend([chunk(text_event("x")), Step::Wait(Duration::from_millis(300))]);
        }
        steps.extend([chunk(STOP), chunk(DONE), stream_end()]);
        steps
    })
    .await;
    let answer = Rig::with(&upstream, short()).await.chat(&chat(STREAM)).await;
    assert_eq!(answer.streamed_text(), "xxxxxx");
    assert!(answer.text().ends_with(DONE));
}

#[tokio::test]
async fn a_stream_that_falls_silent_ends_with_an_error_event() {
    let upstream = Upstream::start(|_| vec![stream_head(), Step::AwaitClose]).await;
    let rig = Rig::with(&upstream, short()).await;
    let start = Instant::now();
    let answer = rig.chat(&chat(STREAM)).await;
    assert!((400..1500).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!(answer.status, 200);
    assert!(answer.events()[0].contains("upstream_died"), "{}", answer.text());
    assert_eq!(rig.lines(1).await[0].decision.outcome, Outcome::UpstreamFailed);
}

#[tokio::test]
async fn an_upstream_that_never_answers_is_a_504_and_is_not_asked_again() {
    let upstream = Upstream::start(|_| vec![Step::AwaitClose]).await;
    let rig = Rig::with(&upstream, short()).await;
    let start = Instant::now();
    let answer = rig.chat(&chat("")).await;
    assert_eq!((answer.status, answer.code().as_str()), (504, "upstream_timeout"));
    assert!((500..1500).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!(upstream.asked().len(), 1);
    assert!(rig.lines(1).await[0].estimated, "what was sent may have been worked on");
}

#[tokio::test]
async fn a_request_head_that_never_ends_is_cut_off() {
    let upstream = Upstream::start(|_| vec![Step::Close]).await;
    let rig = Rig::with(&upstream, Settings { limits: "header_timeout: 300ms".into(), ..Settings::default() }).await;
    let mut socket = rig.connect().await;
    socket.write_all(b"POST /v1/chat").await.expect("sent");
    let start = Instant::now();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.expect("closed");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_a_408() {
    let upstream = Upstream::start(|_| vec![Step::Close]).await;
    let rig = Rig::with(&upstream, short()).await;
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer K\r\ncontent-length: 100\r\n\r\n{";
    let answer = rig.send(head.as_bytes()).await;
    assert_eq!((answer.status, answer.code().as_str()), (408, "request_timeout"));
}

#[tokio::test]
async fn a_body_that_trickles_has_one_deadline() {
    let upstream = Upstream::start(|_| vec![Step::Close]).await;
    let rig = Rig::with(&upstream, Settings { limits: "body_timeout: 600ms".into(), ..Settings::default() }).await;
    let mut socket = rig.connect().await;
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer K\r\ncontent-length: 100\r\n\r\n";
    socket.write_all(head.as_bytes()).await.expect("sent");
    let start = Instant::now();
    let (mut reader, mut writer) = socket.into_split();
    let trickle = tokio::spawn(async move {
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let mut line = [0; 12];
    reader.read_exact(&mut line).await.expect("answered");
    trickle.abort();
    assert_eq!(&line, b"HTTP/1.1 408");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test]
async fn bodies_beyond_the_budget_of_all_are_shed() {
    let upstream = Upstream::start(|_| vec![Step::AwaitClose]).await;
    let limits = "body: 8KiB, body_budget: 8KiB, body_timeout: 400ms".to_owned();
    let rig = Rig::with(&upstream, Settings { limits, ..Settings::default() }).await;
    let held = rig.open(&chat(&format!(",\"user\":\"{}\"", "x".repeat(7000)))).await;
    while upstream.asked().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let large = chat(&format!(",\"user\":\"{}\"", "x".repeat(3000)));
    let shed = rig.chat(&large).await;
    assert_eq!((shed.status, shed.code().as_str()), (503, "overloaded"));
    drop(held);
    rig.balance().await;
    let _next = rig.open(&large).await;
    let end = Instant::now() + Duration::from_secs(5);
    while upstream.asked().len() < 2 {
        assert!(Instant::now() < end, "the budget did not come back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_drain_lets_running_streams_end_and_takes_no_new_calls() {
    let upstream = Upstream::start(|_| {
        let mut steps = vec![stream_head(), chunk(text_event("a")), Step::Wait(Duration::from_millis(500))];
        steps.extend([chunk(text_event("b")), chunk(STOP), chunk(DONE), stream_end()]);
        steps
    })
    .await;
    let mut rig = Rig::start(&upstream).await;
    let mut socket = rig.open(&chat(STREAM)).await;
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains("\"a\"") {
        assert!(socket.read_buf(&mut bytes).await.expect("read") > 0);
    }
    let address = rig.address;
    let reader = tokio::spawn(async move {
        socket.read_to_end(&mut bytes).await.expect("read");
        super::rig::Answer::parse(&bytes)
    });
    assert!(rig.drain().await, "the stream ended within the drain");
    assert_eq!(reader.await.expect("read").streamed_text(), "ab");
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the port is closed");
    assert!(rig.proxy.ready().is_err());
    assert!(rig.balance().await.1 > 0, "the rest of the hold came back");
}

#[tokio::test]
async fn a_client_that_stops_reading_for_good_is_cut_off_and_settled() {
    let upstream = Upstream::start(|_| {
        let mut steps = vec![stream_head()];
        steps.extend(std::iter::repeat_n(chunk(text_event(&"x ".repeat(2000))), 4000));
        steps.push(Step::AwaitClose);
        steps
    })
    .await;
    let rig = Rig::with(&upstream, short()).await;
    let _unread = rig.open(&chat(STREAM)).await;
    let line = rig.lines(1).await.remove(0);
    assert_eq!(line.decision.outcome, Outcome::ClientDisconnected);
    assert!(line.usage.expect("charged").completion > 100);
    rig.balance().await;
}
