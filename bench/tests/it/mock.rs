//! Each scripted behaviour of the mock, as a client on a raw socket sees it.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use bench::mock::{Ended, Ending, Fault, Mock, Options, Settings, Step, UsageMode};
use serde_json::{Value, json};

use crate::raw::{End, body, chat, connect, data, post, read_all};

const PLAIN: &str = r#"{"model":"m","messages":[]}"#;
const STREAM: &str = r#"{"model":"m","messages":[],"stream":true}"#;
const STREAM_USAGE: &str = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;

fn mock(settings: Settings) -> Mock {
    Mock::start(Options { settings, ..Options::default() }).unwrap()
}

fn three() -> Settings {
    Settings { chunks: 3, ..Settings::default() }
}

/// Waits for the mock to notice, as it does on its own thread.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_whole_answer_reports_usage() {
    let mock = mock(three());
    let (answer, _) = chat(mock.address(), "", PLAIN);
    let answer: Value = serde_json::from_str(body(&answer)).unwrap();
    assert_eq!(answer["choices"][0]["message"]["content"], " tok tok tok");
    assert_eq!(answer["usage"]["total_tokens"], 27);
}

#[test]
fn a_stream_reports_usage_only_when_asked() {
    let mock = mock(three());
    let (quiet, _) = chat(mock.address(), "", STREAM);
    assert!(!quiet.contains("usage"), "{quiet}");
    assert_eq!(data(&quiet).len(), 3 + 1 + 1);
    let (asked, _) = chat(mock.address(), "", STREAM_USAGE);
    let events = data(&asked);
    assert_eq!(events.len(), 3 + 1 + 1 + 1);
    assert!(events[..4].iter().all(|event| event.contains(r#""usage":null"#)), "{events:?}");
    let usage: Value = serde_json::from_str(&events[4]).unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(3)));
    assert_eq!(events[5], "[DONE]");
}

#[test]
fn usage_may_be_missing_zero_unasked_or_on_the_finish_chunk() {
    let mock = mock(three());
    let usages = |mode: UsageMode, request: &str| -> Vec<Value> {
        mock.set(Settings { usage: mode, ..three() });
        let (answer, _) = chat(mock.address(), "", request);
        let parsed = data(&answer).into_iter().filter_map(|event| serde_json::from_str::<Value>(&event).ok());
        parsed.filter(|event| event["usage"].is_object()).collect()
    };
    assert_eq!(usages(UsageMode::Missing, STREAM_USAGE).len(), 0);
    assert_eq!(usages(UsageMode::Zero, STREAM_USAGE)[0]["usage"]["total_tokens"], 0);
    assert_eq!(usages(UsageMode::Unasked, STREAM)[0]["usage"]["total_tokens"], 27);
    let on_finish = usages(UsageMode::OnFinish, STREAM_USAGE);
    assert_eq!((on_finish.len(), &on_finish[0]["choices"][0]["finish_reason"]), (1, &json!("stop")));
    assert_eq!(usages(UsageMode::OnFinish, STREAM).len(), 0);
}

#[test]
fn max_tokens_truncates_and_says_length() {
    let mock = mock(Settings::default());
    let (answer, _) = chat(mock.address(), "", r#"{"max_tokens":2,"stream":true}"#);
    let events = data(&answer);
    assert_eq!(events.len(), 2 + 1 + 1);
    assert!(events[2].contains(r#""finish_reason":"length""#), "{events:?}");
}

#[test]
fn errors_carry_status_and_retry_after() {
    let mock = mock(Settings::default());
    mock.push(Settings { status: 429, retry_after: Some("7".into()), ..Settings::default() });
    let (answer, _) = chat(mock.address(), "", PLAIN);
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after: 7\r\n"), "{answer}");
    assert!(body(&answer).contains("rate_limit_exceeded"));
    let (answer, _) = chat(mock.address(), "", PLAIN);
    assert!(answer.starts_with("HTTP/1.1 200"), "pushed settings serve one request: {answer}");
}

#[test]
fn header_and_body_patch_one_request() {
    let mock = mock(Settings::default());
    let (answer, _) = chat(mock.address(), "x-mock: {\"status\":503}\r\n", PLAIN);
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let (answer, _) = chat(mock.address(), "", r#"{"x_mock":{"chunks":1,"chunk_text":"\"é"}}"#);
    assert!(answer.contains(r#""content":"\"é""#), "{answer}");
    let (answer, _) = chat(mock.address(), "", r#"{"x_mock":{"chunkz":1}}"#);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("chunkz"), "{answer}");
}

#[test]
fn a_stream_dies_by_fin_or_reset_after_so_many_chunks() {
    for (ending, expect) in [(Ending::Fin, End::Closed), (Ending::Reset, End::Reset)] {
        let mock = mock(Settings { fault: Some(Fault::Die { after_chunks: 2, ending }), ..Settings::default() });
        let (answer, end) = chat(mock.address(), "", STREAM);
        assert_eq!((data(&answer).len(), end), (2, expect));
        assert!(!answer.ends_with("0\r\n\r\n"), "no clean end of the chunked body");
        eventually("it is on record as broken by the mock", || {
            mock.requests()[0].ended == Some(Ended::Died) && mock.requests()[0].chunks == 2
        });
    }
}

#[test]
fn a_stream_may_hang_until_the_client_leaves() {
    let fault = Some(Fault::Die { after_chunks: 2, ending: Ending::Hang });
    let mock = mock(Settings { fault, ..Settings::default() });
    let (answer, end) = chat(mock.address(), "", STREAM);
    assert_eq!((data(&answer).len(), end), (2, End::Silent));
    eventually("the client's leaving is seen", || mock.requests()[0].ended == Some(Ended::ClientLeft));
}

#[test]
fn silence_lasts_until_the_client_leaves() {
    let mock = mock(Settings { fault: Some(Fault::Silence), ..Settings::default() });
    let mut stream = connect(mock.address());
    stream.write_all(post("/v1/chat/completions", "", PLAIN).as_bytes()).unwrap();
    assert_eq!(read_all(&mut stream), (String::new(), End::Silent));
    assert_eq!(mock.requests()[0].ended, None);
    drop(stream);
    eventually("the client's leaving is seen", || mock.requests()[0].ended == Some(Ended::ClientLeft));
    assert_eq!(mock.stats().in_flight, 0);
}

#[test]
fn an_answer_is_cut_at_any_byte() {
    for (after_bytes, ending, expect) in [
        (0, Ending::Fin, End::Closed),
        (0, Ending::Reset, End::Reset),
        (20, Ending::Fin, End::Closed),
        (20, Ending::Hang, End::Silent),
        (200, Ending::Fin, End::Closed),
    ] {
        let mock = mock(Settings { fault: Some(Fault::Cut { after_bytes, ending }), ..Settings::default() });
        let (answer, end) = chat(mock.address(), "", PLAIN);
        assert_eq!((answer.len() as u64, end), (after_bytes, expect), "{ending:?}");
    }
}

#[test]
fn a_script_replaces_the_stream_byte_for_byte() {
    let script = vec![Step::Send("data: a\r".into()), Step::WaitMs(30), Step::Send("\n\r\n: é\n\n".into())];
    let mock = mock(Settings { script, ..Settings::default() });
    let began = Instant::now();
    let (answer, _) = chat(mock.address(), "", STREAM);
    assert!(began.elapsed() >= Duration::from_millis(30));
    assert_eq!(dechunk(body(&answer).as_bytes()), "data: a\r\n\r\n: é\n\n".as_bytes());
}

#[test]
fn pieces_cut_every_frame() {
    let script = vec![Step::Send("data: é\n\n".into())];
    let mock = mock(Settings { script, pieces: Some(1), ..Settings::default() });
    let mut stream = connect(mock.address());
    stream.write_all(post("/v1/chat/completions", "connection: close\r\n", STREAM).as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let start = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(dechunk(&answer[start..]), "data: é\n\n".as_bytes());
    assert_eq!(answer[start..].windows(3).filter(|w| *w == b"1\r\n").count(), "data: é\n\n".len());
}

/// The bytes of a chunked body whose chunks are complete.
fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = body.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        out.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
    }
    out
}

#[test]
fn an_endless_stream_stops_at_a_reader_that_does_not_read() {
    let settings = Settings { endless: true, chunk_text: "x".repeat(1000), ..Settings::default() };
    let mock = Mock::start(Options { settings, send_buffer: Some(64 * 1024), ..Options::default() }).unwrap();
    let mut stream = connect(mock.address());
    socket2::SockRef::from(&stream).set_recv_buffer_size(64 * 1024).unwrap();
    stream.write_all(post("/v1/chat/completions", "", STREAM).as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let stalled = mock.requests()[0].bytes_written;
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(mock.requests()[0].bytes_written, stalled, "nothing moves without a reader");
    assert!(stalled > 10_000, "{stalled}");
    let mut buffer = vec![0; 4 << 20];
    stream.read_exact(&mut buffer).unwrap();
    eventually("everything moves with one", || mock.requests()[0].bytes_written >= 4 << 20);
}

#[test]
fn paced_chunks_do_not_drift() {
    let settings = Settings { chunks: 101, ttft_ms: 20, itl_ms: 5, ..Settings::default() };
    let mock = mock(settings);
    let began = Instant::now();
    chat(mock.address(), "", STREAM);
    let took = began.elapsed();
    // Due at 20 + 100 * 5 ms. Sleeping 5 ms takes 6 with this timer, so waits that added up would need 100 more.
    assert!(took >= Duration::from_millis(520) && took < Duration::from_millis(600), "{took:?}");
}

#[test]
fn records_hold_what_was_sent() {
    let mock = mock(Settings::default());
    chat(mock.address(), "authorization: Bearer k\r\n", PLAIN);
    let seen = &mock.requests()[0];
    assert_eq!((seen.path.as_str(), seen.header("authorization")), ("/v1/chat/completions", Some("Bearer k")));
    assert_eq!(seen.json()["model"], "m");
    assert_eq!(seen.ended, Some(Ended::Finished));
}

#[test]
fn the_control_endpoints_do_what_the_handle_does() {
    let mock = mock(Settings::default());
    let call = |request: String| {
        let mut stream = connect(mock.address());
        stream.write_all(request.replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1).as_bytes()).unwrap();
        read_all(&mut stream).0
    };
    call(post("/settings", "", r#"{"chunks":1}"#).replacen("POST", "PUT", 1));
    call(post("/next", "", r#"{"chunks":2}"#));
    let counts: Vec<usize> = (0..2).map(|_| data(&chat(mock.address(), "", STREAM).0).len()).collect();
    assert_eq!(counts, [2 + 2, 1 + 2]);
    let stats: Value = serde_json::from_str(body(&call("GET /stats HTTP/1.1\r\nhost: m\r\n\r\n".into()))).unwrap();
    assert_eq!(stats["requests"], 2);
    let seen: Value = serde_json::from_str(body(&call("GET /requests HTTP/1.1\r\nhost: m\r\n\r\n".into()))).unwrap();
    assert_eq!(seen[1]["ended"], "finished");
    call("DELETE /requests HTTP/1.1\r\nhost: m\r\n\r\n".into());
    assert!(mock.requests().is_empty());
}

#[test]
fn the_other_endpoints_answer_too() {
    let mock = mock(three());
    let call = |request: String| {
        let mut stream = connect(mock.address());
        stream.write_all(request.as_bytes()).unwrap();
        read_all(&mut stream).0
    };
    let close = "connection: close\r\n";
    let models = call(format!("GET /v1/models HTTP/1.1\r\nhost: m\r\n{close}\r\n"));
    assert!(body(&models).contains(r#""id":"mock-model""#), "{models}");
    let missing = call(format!("GET /v1/models/none HTTP/1.1\r\nhost: m\r\n{close}\r\n"));
    assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
    let vectors = call(post("/v1/embeddings", close, r#"{"input":["a","b"]}"#));
    let vectors: Value = serde_json::from_str(body(&vectors)).unwrap();
    assert_eq!((vectors["data"].as_array().unwrap().len(), &vectors["usage"]["prompt_tokens"]), (2, &json!(24)));
    let text = call(post("/v1/completions", close, r#"{"prompt":"a","stream":true}"#));
    assert!(data(&text)[0].contains(r#""text":" tok""#), "{text}");
}
