//! The bare proxy changes nothing that passes through it.

use std::{
    net::{SocketAddr, TcpListener},
    thread,
};

use bench::{
    mock::{Ending, Fault, Mock, Options, Settings},
    raw_proxy,
};

use crate::raw::{End, body, chat, data};

fn proxy_to(upstream: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || raw_proxy::run(listener, upstream, 1));
    address
}

#[test]
fn bodies_headers_and_status_pass_both_ways() {
    let mock = Mock::start(Options::default()).unwrap();
    let proxy = proxy_to(mock.address());
    let (direct, _) = chat(mock.address(), "", "{}");
    let (proxied, _) = chat(proxy, "x-mock: {\"headers\":{\"x-test\":\"1\"}}\r\nx-own: yes\r\n", "{}");
    assert_eq!(body(&proxied), body(&direct));
    assert!(proxied.contains("x-test: 1"), "{proxied}");
    assert_eq!(mock.requests()[1].header("x-own"), Some("yes"));
    let (error, _) = chat(proxy, "x-mock: {\"status\":429,\"retry_after\":\"3\"}\r\n", "{}");
    assert!(error.starts_with("HTTP/1.1 429") && error.contains("retry-after: 3"), "{error}");
    let (stream, _) = chat(proxy, "", r#"{"stream":true}"#);
    assert_eq!(data(&stream).len(), 32 + 1 + 1);
}

#[test]
fn a_cut_stream_stays_cut_and_a_dead_upstream_is_502() {
    let fault = Some(Fault::Die { after_chunks: 2, ending: Ending::Reset });
    let mock =
        Mock::start(Options { settings: Settings { fault, ..Settings::default() }, ..Options::default() }).unwrap();
    let proxy = proxy_to(mock.address());
    let (answer, end) = chat(proxy, "", r#"{"stream":true}"#);
    assert_eq!((data(&answer).len(), end), (2, End::Closed));
    assert!(!answer.ends_with("0\r\n\r\n"), "the cut shows");
    drop(mock);
    assert!(chat(proxy, "", "{}").0.starts_with("HTTP/1.1 502"));
}
