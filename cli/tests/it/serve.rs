//! `penstock serve` when it is asked to end.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
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

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port")
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

#[cfg(target_os = "linux")]
#[test]
fn code_on_huge_pages_serves_and_stays_where_the_loader_put_it_when_switched_off() {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let possible = !setting.is_empty() && !setting.contains("[never]");
    for (switch, moves) in [("on", possible), ("off", false)] {
        let penstock = Penstock::new();
        let (api, admin) = (free(), free());
        let yaml = format!(
            "listen: {api}\nadmin: {admin}\nmodels: [ {{ name: m, upstreams: [ {{ name: a, url: \"http://{api}/v1\" }} \
             ] }} ]\nkeys: [ {{ secret: sk-1, org: acme }} ]\n"
        );
        let file = penstock.file("gateway.yaml", yaml.as_bytes());
        let mut command = penstock.command();
        let command = command.env("PENSTOCK_HUGE_TEXT", switch).args(["serve", "--config"]).arg(file);
        let serve = Running(command.spawn().expect("it starts"));
        let mut answer = [0; 12];
        call(&api.to_string()).read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 502", "its upstream is itself, which knows no empty key");

        let maps = std::fs::read_to_string(format!("/proc/{}/maps", serve.0.id())).expect("it runs");
        let of_no_file = |line: &&str| line.contains(" r-xp ") && line.contains(" 00:00 0 ") && !line.contains('[');
        assert_eq!(maps.lines().any(|line| of_no_file(&line)), moves, "{switch}: {maps}");
    }
}
