//! A client that hides nothing: it sends bytes, and tells what came back and how the connection ended.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Closed,
    Reset,
    /// Nothing for the time allowed.
    Silent,
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    stream
}

pub fn post(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: mock\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// One chat request; the connection closes after the answer.
pub fn chat(address: SocketAddr, headers: &str, body: &str) -> (String, End) {
    let mut stream = connect(address);
    stream
        .write_all(post("/v1/chat/completions", &format!("connection: close\r\n{headers}"), body).as_bytes())
        .unwrap();
    read_all(&mut stream)
}

pub fn read_all(stream: &mut TcpStream) -> (String, End) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    let end = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break End::Closed,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break End::Reset,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break End::Silent,
            Err(error) => panic!("unexpected: {error}"),
        }
    };
    (String::from_utf8(bytes).unwrap(), end)
}

/// The payloads of the `data:` lines.
pub fn data(answer: &str) -> Vec<String> {
    answer.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
}

pub fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a complete head").1
}
