//! Streams: whatever the cuts, the client gets the upstream's own events, and only those.

use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;

use super::{
    rig::{Rig, Settings, chat},
    upstream::{self, DONE, STOP, Step, USAGE, Upstream, chunk, stream, stream_end, stream_head, text_event},
};

const STREAM: &str = ",\"stream\":true";

#[tokio::test]
async fn events_survive_any_cut_of_the_bytes() {
    let events = [
        text_event("你好"),
        "data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\" 🌍 déjà\"}}]}\n\n".into(),
        STOP.into(),
        DONE.into(),
    ];
    let whole: Vec<u8> = events.concat().into_bytes();
    for size in [1, 7, 4096] {
        let bytes = whole.clone();
        let upstream = Upstream::start(move |_| {
            let mut steps = vec![stream_head()];
            steps.extend(bytes.chunks(size).map(chunk));
            steps.push(stream_end());
            steps
        })
        .await;
        let answer = Rig::start(&upstream).await.chat(&chat(STREAM)).await;
        assert_eq!(answer.body, whole, "pieces of {size}");
        assert_eq!(answer.streamed_text(), "你好 🌍 déjà");
    }
}

#[tokio::test]
async fn unasked_usage_is_hidden_and_asked_usage_is_shown_once() {
    for (options, shown) in [
        ("", 0),
        (",\"stream_options\":null", 0),
        (",\"stream_options\":{\"include_usage\":false}", 0),
        (",\"stream_options\":{\"include_usage\":true}", 1),
    ] {
        let upstream = Upstream::start(|_| {
            let with_null = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}],\"usage\":null}\n\n";
            stream(&[with_null, STOP, USAGE, DONE])
        })
        .await;
        let rig = Rig::start(&upstream).await;
        let answer = rig.chat(&chat(&format!("{STREAM}{options}"))).await;
        let events = answer.events();
        assert_eq!(events.iter().filter(|event| event.contains("\"choices\":[]")).count(), shown, "{options}");
        if shown == 0 {
            assert!(!answer.text().contains("usage"), "{options}: {}", answer.text());
        }
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
        assert_eq!(upstream.asked()[0].json()["stream_options"]["include_usage"], true, "{options}");
        assert_eq!(rig.balance().await.0, 12, "{options}");
    }
}

#[tokio::test]
async fn usage_on_the_finish_chunk_is_cut_out() {
    let last = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"x\":1,\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n";
    let upstream = Upstream::start(move |_| stream(&[&text_event("a"), last, DONE])).await;
    let rig = Rig::start(&upstream).await;
    let answer = rig.chat(&chat(STREAM)).await;
    assert_eq!(answer.events()[1], "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"x\":1}");
    assert_eq!(rig.balance().await.0, 10);
}

#[tokio::test]
async fn each_event_leaves_at_once_and_nothing_buffers_it() {
    let upstream = Upstream::start(|_| {
        let mut steps = vec![stream_head()];
        for _ in 0..4 {
            steps.push(chunk(text_event("x")));
            steps.push(Step::Wait(Duration::from_millis(300)));
        }
        steps.extend([chunk(STOP), chunk(DONE), stream_end()]);
        steps
    })
    .await;
    let rig = Rig::start(&upstream).await;
    let mut socket = rig.open(&chat(STREAM)).await;
    let start = Instant::now();
    let mut bytes = Vec::new();
    let mut arrivals = Vec::new();
    while socket.read_buf(&mut bytes).await.expect("read") > 0 {
        let seen = bytes.windows(9).filter(|nine| *nine == b"\"content\"").count();
        arrivals.resize_with(seen.max(arrivals.len()), || start.elapsed());
    }
    for (index, arrival) in arrivals.iter().enumerate() {
        assert!(*arrival < Duration::from_millis(300 * index as u64 + 200), "{arrivals:?}");
    }
    let head = String::from_utf8_lossy(&bytes).to_lowercase();
    for header in ["content-type: text/event-stream", "cache-control: no-cache", "x-accel-buffering: no"] {
        assert!(head.contains(header), "{header}");
    }
}

#[tokio::test]
async fn a_silent_upstream_is_covered_by_comments_between_events() {
    let upstream = Upstream::start(|_| {
        let event = text_event("whole");
        let (half, rest) = event.split_at(20);
        vec![
            stream_head(),
            Step::Wait(Duration::from_millis(900)),
            chunk(half),
            Step::Wait(Duration::from_millis(700)),
            chunk(rest),
            chunk(STOP),
            chunk(DONE),
            stream_end(),
        ]
    })
    .await;
    let settings = Settings { limits: "keepalive_interval: 300ms".into(), ..Settings::default() };
    let rig = Rig::with(&upstream, settings).await;
    let answer = rig.chat(&chat(STREAM)).await;
    let text = answer.text();
    assert!(text.matches(": keep-alive\n").count() >= 2, "{text}");
    assert!(!text.contains(": keep-alive\n\n"), "a blank line would be an empty event: {text}");
    assert_eq!(answer.streamed_text(), "whole");
}

#[tokio::test]
async fn an_upstream_that_dies_is_an_error_event_and_not_an_end() {
    for end in [Step::Close, Step::Reset] {
        let upstream = Upstream::start(move |_| {
            vec![stream_head(), chunk(text_event("half")), Step::Wait(Duration::from_millis(50)), end.clone()]
        })
        .await;
        let answer = Rig::start(&upstream).await.chat(&chat(STREAM)).await;
        let events = answer.events();
        assert_eq!(answer.streamed_text(), "half");
        assert!(events[1].contains("\"code\":\"upstream_died\""), "{events:?}");
        assert!(!answer.text().contains("[DONE]") && !answer.text().contains("finish_reason"));
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_done_is_whole_if_it_said_why_it_stopped() {
    let upstream = Upstream::start(|_| stream(&[&text_event("all"), STOP])).await;
    let rig = Rig::start(&upstream).await;
    let answer = rig.chat(&chat(STREAM)).await;
    assert_eq!(answer.body, [text_event("all").as_str(), STOP].concat().as_bytes());
    assert_eq!(rig.lines(1).await[0].decision.outcome, wire::access::Outcome::Finished);
}

#[tokio::test]
async fn a_last_event_without_its_blank_line_still_arrives() {
    let upstream = Upstream::start(|_| stream(&[&text_event("a"), STOP, "data: [DONE]"])).await;
    let answer = Rig::start(&upstream).await.chat(&chat(STREAM)).await;
    assert_eq!(answer.events().last().map(String::as_str), Some("[DONE]"));
}

#[tokio::test]
async fn chunks_that_have_arrived_leave_together() {
    let upstream = Upstream::start(|_| {
        let mut all = vec![];
        for index in 0..64 {
            let event = text_event(&format!("{index} "));
            all.extend_from_slice(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
        }
        vec![stream_head(), Step::Send(all), chunk(STOP), chunk(DONE), stream_end()]
    })
    .await;
    let rig = Rig::start(&upstream).await;
    let mut socket = rig.open(&chat(STREAM)).await;
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).await.expect("read");
    // HTTP chunks of our answer: one per write of the relay.
    let text = String::from_utf8_lossy(&bytes);
    let chunks =
        text.lines().filter(|line| !line.is_empty() && line.len() < 6 && u32::from_str_radix(line, 16).is_ok()).count();
    assert!(chunks < 20, "64 events left in {chunks} chunks");
    assert_eq!(super::rig::Answer::parse(&bytes).streamed_text().split(' ').count(), 65);
}

#[tokio::test]
async fn a_stream_whose_client_wants_a_whole_answer_is_still_relayed() {
    let upstream = Upstream::start(|asked| match asked.json()["stream"].as_bool() {
        Some(true) => upstream::json(200, "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}"),
        _ => stream(&[&text_event("a"), STOP, DONE]),
    })
    .await;
    let rig = Rig::start(&upstream).await;
    assert_eq!(rig.chat(&chat("")).await.streamed_text(), "a");
    assert_eq!(rig.chat(&chat(STREAM)).await.json()["usage"]["prompt_tokens"], 1);
}
