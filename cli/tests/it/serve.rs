//! `penstock serve` when it is asked to end.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::penstock::{Penstock, Running};

#[test]
fn answers_that_outlast_the_drain_are_cut() {
    let penstock = Penstock::new();
    // It takes calls and never answers.
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let (api, admin) = (free(), free());
    let yaml = format!(
        "listen: {api}\nadmin: {admin}\naccess_log: \"off\"\nlimits: {{ drain: 300ms }}\nmodels: [ {{ name: m, upstreams: \
         [ {{ name: a, url: \"http://{}/v1\" }} ] }} ]\nkeys: [ {{ secret: sk-1, org: acme }} ]\n",
        upstream.local_addr().expect("bound")
    );
    let file = penstock.file("gateway.yaml", yaml.as_bytes());
    let mut command = penstock.command();
    let child = command.args(["serve", "--config"]).arg(file).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut serve = Running(child);

    let _client = call(&api.to_string());
    // Open until the end: a closed connection would be an answer.
    let _upstream = accepted(&upstream);
    let asked = Instant::now();
    serve.signal("-TERM");
    assert_eq!(serve.end(Duration::from_secs(20)), Some(1));
    assert!(asked.elapsed() >= Duration::from_millis(300), "{:?}", asked.elapsed());
    let mut said = String::new();
    serve.0.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(said.contains("had not ended after 300ms (`limits.drain`)"), "{said}");
}

fn accepted(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("set");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match listener.accept() {
            Ok((socket, _)) => return socket,
            Err(error) => assert!(Instant::now() < deadline, "the call never came: {error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a call as soon as somebody listens.
fn call(address: &str) -> TcpStream {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match TcpStream::connect(address) {
            Ok(mut socket) => {
                let body = r#"{"model":"m","messages":[]}"#;
                let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-1";
                let call = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                socket.write_all(call.as_bytes()).expect("sent");
                return socket;
            }
            Err(error) => assert!(Instant::now() < deadline, "nobody listens on {address}: {error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}
