//! Between the upstream and the client: a slow reader holds little memory, a client that leaves stops the upstream,
//! and the bytes of a stream are the upstream's own.

use std::time::{Duration, Instant};

use bench::mock::{Ended, Mock, Options, Settings, UsageMode};
use serde_json::{Value, json};
use tests::{Config, Gateway, sockets, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What one slow reader of a fast stream may make the gateway hold.
const HELD: u64 = 256 * 1024;

fn call(stream: bool) -> Value {
    json!({"model": "mock-model", "messages": [{"role": "user", "content": "hi"}], "stream": stream})
}

fn mock(settings: Settings) -> Mock {
    Mock::start(Options { settings, ..Options::default() }).expect("a mock")
}

async fn gateway(mock: &Mock) -> Gateway {
    Config::new().model("mock-model", &mock.url()).key("sk-ana", "acme/web/ana").start().await
}

/// A streaming call on a bare socket, whose reads the test controls.
async fn bare_stream(gateway: &Gateway) -> TcpStream {
    let mut socket = TcpStream::connect(gateway.address()).await.expect("the gateway accepts");
    let body = call(true).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer sk-ana\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await.expect("the request is sent");
    socket
}

/// An endless stream of events of about 4 KiB, so that framing is a small part of the bytes.
fn flood() -> Settings {
    Settings { endless: true, chunk_text: "x".repeat(4096), ignore_max_tokens: true, ..Settings::default() }
}

fn written(mock: &Mock) -> u64 {
    mock.requests().iter().map(|request| request.bytes_written).sum()
}

/// What the gateway itself holds: read from the upstream's socket and not yet given to the client's. Looked at again
/// until nothing moved meanwhile.
async fn held(mock: &Mock, gateway: &Gateway, read_by_client: u64) -> u64 {
    until(Duration::from_secs(5), "a moment in which no byte moves", async || {
        let before = written(mock);
        let upstream = sockets::towards_clients(mock.address());
        let client = sockets::towards_clients(gateway.address());
        let still = written(mock) == before && sockets::towards_clients(gateway.address()) == client;
        let read_by_gateway = before.saturating_sub(upstream.leaving + upstream.unread);
        still.then(|| read_by_gateway.saturating_sub(read_by_client + client.leaving + client.unread))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_a_fast_stream_holds_at_most_256_kib() {
    let mock = mock(flood());
    let gateway = gateway(&mock).await;
    let mut socket = bare_stream(&gateway).await;
    let mut read_by_client = 0;
    let mut piece = vec![0; 16 * 1024];
    // Slow, not stopped: 16 KiB every 50 ms, against an upstream that would send a gigabyte in that time.
    for _ in 0..60 {
        read_by_client += socket.read(&mut piece).await.expect("the stream goes on") as u64;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let held = held(&mock, &gateway, read_by_client).await;
        assert!(held <= HELD, "the gateway holds {held} bytes after {read_by_client} were read");
    }
    assert!(read_by_client > 500_000, "the reader was starved: {read_by_client} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_stop_stop_the_upstream_and_bound_the_memory() {
    const READERS: u64 = 64;
    let mock = mock(flood());
    let gateway = gateway(&mock).await;
    // The first few fill what the process has once: tables that are loaded lazily, the allocator's arenas.
    let mut readers = stopped_readers(&gateway, 8).await;
    let (before, held_before) = (gateway.process.rss(), held(&mock, &gateway, 0).await);
    readers.extend(stopped_readers(&gateway, READERS).await);
    let full = written(&mock);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(written(&mock), full, "the upstream still sends to readers that stopped");
    let held = held(&mock, &gateway, 0).await - held_before;
    let grown = gateway.process.rss().saturating_sub(before);
    assert!(held <= READERS * HELD, "each of {READERS} readers makes the gateway hold {} bytes", held / READERS);
    assert!(grown <= READERS * HELD, "each of {READERS} readers costs {} bytes of memory", grown / READERS);
}

/// Streams that are asked for and never read, once all buffers on the way are full.
async fn stopped_readers(gateway: &Gateway, count: u64) -> Vec<TcpStream> {
    let mut readers = Vec::new();
    for _ in 0..count {
        readers.push(bare_stream(gateway).await);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    readers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cancels_the_upstream_within_a_second() {
    let slow = Settings { chunks: 1000, itl_ms: 100, ..Settings::default() };
    let silent = Settings { delay_ms: 60_000, ..Settings::default() };
    // In the middle of a stream, before its first event, and while a whole answer is awaited.
    for (settings, stream, events) in [(slow, true, 3), (silent.clone(), true, 0), (silent, false, 0)] {
        let mock = mock(settings);
        let gateway = gateway(&mock).await;
        let client = gateway.client("sk-ana");
        let calling = tokio::spawn(async move {
            let mut answer = client.stream_chat(&call(stream)).await;
            for _ in 0..events {
                answer.next().await.expect("an open stream").expect("an event");
            }
            answer
        });
        until(Duration::from_secs(5), "the call to reach the upstream", async || mock.requests().pop()).await;
        if events > 0 {
            drop(calling.await.expect("three events arrive"));
        } else {
            calling.abort();
        }
        let left = Instant::now();
        let ended = until(Duration::from_secs(5), "the upstream call to end", async || mock.requests()[0].ended).await;
        assert_eq!(ended, Ended::ClientLeft, "stream: {stream}");
        assert!(left.elapsed() < Duration::from_secs(1), "cancelled after {:?}", left.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_forwarded_byte_for_byte() {
    for usage in [UsageMode::Reported, UsageMode::Missing, UsageMode::OnFinish] {
        let mock = mock(Settings { usage, pieces: Some(7), ..Settings::default() });
        let gateway = gateway(&mock).await;
        let mut asked = call(true);
        asked["stream_options"] = json!({"include_usage": true});
        let direct = tests::Client::new(mock.url().trim_end_matches("/v1"), None).chat(&asked).await;
        let relayed = gateway.client("sk-ana").chat(&asked).await;
        assert_eq!(relayed.text(), direct.text(), "{usage:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_that_nobody_asked_for_is_hidden_and_still_charged() {
    let mock = mock(Settings { prompt_tokens: 11, completion_tokens: Some(222), ..Settings::default() });
    let gateway = gateway(&mock).await;
    let events = gateway.client("sk-ana").stream_chat(&call(true)).await.all().await;
    for event in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(event).expect("a JSON chunk");
        assert_eq!(chunk["choices"].as_array().map(Vec::len), Some(1), "{event}");
        assert!(chunk.get("usage").is_none_or(Value::is_null), "{event}");
    }
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    assert_eq!(mock.requests()[0].json()["stream_options"]["include_usage"], true);
    until(Duration::from_secs(5), "the settlement", async || {
        (gateway.metric("penstock_quota_settled_tokens_total", "").await == 233.0).then_some(())
    })
    .await;
}
