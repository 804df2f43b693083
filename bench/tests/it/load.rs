//! The load generator against servers that stall, fail and stream.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use bench::{
    load::{self, Arrivals, Target, Window},
    mock::{Ending, Fault, Mock, Options, Settings},
};

fn window(warmup_ms: u64, measured_ms: u64) -> Window {
    Window {
        warmup: Duration::from_millis(warmup_ms),
        measured: Duration::from_millis(measured_ms),
        timeout: Duration::from_secs(5),
    }
}

fn mock(settings: Settings) -> Mock {
    Mock::start(Options { settings, ..Options::default() }).unwrap()
}

fn plain(address: SocketAddr) -> Target {
    Target::post(address, "/v1/chat/completions", &[], r#"{"model":"m","messages":[]}"#, false)
}

fn stream(address: SocketAddr) -> Target {
    Target::post(address, "/v1/chat/completions", &[], r#"{"model":"m","stream":true}"#, true)
}

/// Answers at once, except that nothing leaves it from `stall_from` for `stall`, whatever the connection.
fn stalling_server(stall_from: Instant, stall: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            thread::spawn(move || answer_all(connection.unwrap(), stall_from, stall));
        }
    });
    address
}

fn answer_all(mut connection: TcpStream, stall_from: Instant, stall: Duration) {
    let mut request = [0; 4096];
    // A request of this test fits one read.
    while connection.read(&mut request).is_ok_and(|n| n > 0) {
        let now = Instant::now();
        if now >= stall_from {
            thread::sleep((stall_from + stall).saturating_duration_since(now));
        }
        if connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_err() {
            return;
        }
    }
}

#[test]
fn a_stall_counts_against_every_request_that_was_due_in_it() {
    let server = stalling_server(Instant::now() + Duration::from_millis(500), Duration::from_millis(500));
    let outcome = load::open(&[plain(server)], 100.0, Arrivals::Fixed, window(0, 2000), &[]).unwrap();
    let totals = &outcome.totals[0];
    // 50 of 200 requests were due while it stalled and waited 0 to 500 ms, evenly: a tenth waited over 300 ms.
    assert_eq!((totals.ok, totals.errors()), (200, 0));
    let p90 = totals.e2e.quantile_ms(0.9).unwrap();
    assert!(p90 > 250.0 && p90 < 420.0, "{p90}");
    assert!(totals.e2e.quantile_ms(0.5).unwrap() < 100.0);
}

#[test]
fn targets_take_turns_and_warm_up_does_not_count() {
    let (a, b) = (mock(Settings::default()), mock(Settings { status: 503, ..Settings::default() }));
    let targets = [plain(a.address()), plain(b.address())];
    let outcome = load::open(&targets, 100.0, Arrivals::Fixed, window(200, 500), &[std::process::id()]).unwrap();
    assert_eq!((outcome.totals[0].ok, outcome.totals[1].ok), (50, 0));
    assert_eq!(outcome.totals[1].failures.get("status 503"), Some(&50));
    assert_eq!((a.stats().requests, b.stats().requests), (70, 70));
    assert!(outcome.costs[0].rss_bytes > 0);
}

#[test]
fn a_closed_loop_keeps_its_connections() {
    let mock = mock(Settings { delay_ms: 10, ..Settings::default() });
    let outcome = load::closed(&plain(mock.address()), 4, window(0, 500), &[]).unwrap();
    assert_eq!(mock.stats().connections, 4);
    // Four at a time, each over 10 ms: never more than 50 each.
    assert!(outcome.totals[0].ok > 40 && outcome.totals[0].ok <= 200, "{}", outcome.totals[0].ok);
    assert_eq!(outcome.totals[0].errors(), 0);
}

#[test]
fn keys_are_used_in_turn() {
    let mock = mock(Settings::default());
    let keys = ["a".to_owned(), "b".to_owned()];
    let target = Target::post(mock.address(), "/v1/chat/completions", &keys, "{}", false);
    load::open(&[target], 100.0, Arrivals::Fixed, window(0, 100), &[]).unwrap();
    let seen: Vec<String> = mock.requests().iter().map(|r| r.header("authorization").unwrap().to_owned()).collect();
    assert_eq!(seen.len(), 10);
    assert_eq!(seen.iter().filter(|header| *header == "Bearer a").count(), 5);
}

#[test]
fn a_stream_is_measured_chunk_by_chunk() {
    let settings = Settings { chunks: 10, ttft_ms: 30, itl_ms: 10, stamp: true, ..Settings::default() };
    let mock = mock(settings);
    let outcome = load::open(&[stream(mock.address())], 20.0, Arrivals::Fixed, window(0, 500), &[]).unwrap();
    let totals = &outcome.totals[0];
    assert_eq!((totals.ok, totals.chunks, totals.itl.count(), totals.transit.count()), (10, 100, 90, 100));
    assert!(totals.ttft.quantile_ms(0.0).unwrap() >= 29.9, "{:?}", totals.ttft.quantile_ms(0.0));
    assert!(totals.itl.mean_ms().unwrap() > 8.0 && totals.itl.mean_ms().unwrap() < 14.0);
    assert_eq!(totals.streams_without_usage, 10, "nobody asked for it");
}

#[test]
fn broken_answers_are_errors_by_name() {
    let die = Fault::Die { after_chunks: 2, ending: Ending::Fin };
    let mock = mock(Settings { fault: Some(die), ..Settings::default() });
    let outcome = load::open(&[stream(mock.address())], 50.0, Arrivals::Fixed, window(0, 100), &[]).unwrap();
    assert_eq!(outcome.totals[0].failures.get("closed before the end of the answer"), Some(&5));
    let silent = Window { timeout: Duration::from_millis(50), ..window(0, 100) };
    mock.set(Settings { fault: Some(Fault::Silence), ..Settings::default() });
    let outcome = load::open(&[stream(mock.address())], 50.0, Arrivals::Fixed, silent, &[]).unwrap();
    assert_eq!(outcome.totals[0].failures.get("timed out"), Some(&5));
}

#[test]
fn a_watched_process_that_is_gone_is_an_error() {
    let mock = mock(Settings::default());
    let gone = load::open(&[plain(mock.address())], 50.0, Arrivals::Fixed, window(0, 50), &[u32::MAX]);
    assert!(gone.is_err());
}
