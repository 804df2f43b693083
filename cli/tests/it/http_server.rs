//! A file server that can break off, forget its validator, or change the file: what a download must survive.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

#[derive(Clone)]
pub struct Served {
    pub body: Vec<u8>,
    pub etag: Option<&'static str>,
    /// Close the connection after this many bytes of the body, as often as the list says.
    pub cuts: Vec<usize>,
    pub status: &'static str,
}

pub struct HttpServer {
    pub url: String,
    served: Arc<Mutex<Served>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

#[derive(Clone, Debug, Default)]
pub struct Request {
    pub range: Option<String>,
    pub if_range: Option<String>,
}

impl Served {
    pub fn new(body: &[u8]) -> Self {
        Self { body: body.to_vec(), etag: Some("\"one\""), cuts: Vec::new(), status: "200 OK" }
    }
}

impl HttpServer {
    pub fn start(served: Served) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/files/tiny.gguf", listener.local_addr().expect("an address"));
        let served = Arc::new(Mutex::new(served));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (for_thread, log) = (served.clone(), requests.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.expect("a connection"), &for_thread, &log);
            }
        });
        Self { url, served, requests }
    }

    pub fn serve(&self, served: Served) {
        *self.served.lock().expect("not poisoned") = served;
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("not poisoned").clone()
    }
}

fn answer(mut stream: TcpStream, served: &Mutex<Served>, log: &Mutex<Vec<Request>>) {
    let request = read_request(&stream);
    let (head, body) = respond(&request, &mut served.lock().expect("not poisoned"));
    log.lock().expect("not poisoned").push(request);
    // A client that goes away early is part of some tests.
    drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)));
}

fn read_request(stream: &TcpStream) -> Request {
    let mut request = Request::default();
    for line in BufReader::new(stream).lines() {
        let line = line.expect("a line");
        match line.to_ascii_lowercase().split_once(": ") {
            Some(("range", value)) => request.range = Some(value.to_owned()),
            Some(("if-range", value)) => request.if_range = Some(value.to_owned()),
            _ if line.is_empty() => break,
            _ => {}
        }
    }
    request
}

fn respond(request: &Request, served: &mut Served) -> (String, Vec<u8>) {
    let whole = served.body.len();
    let same = request.if_range.is_none() || request.if_range.as_deref() == served.etag;
    let start = request.range.as_deref().filter(|_| same).map(|range| {
        range.strip_prefix("bytes=").and_then(|r| r.strip_suffix('-')).expect("bytes=N-").parse::<usize>().expect("N")
    });
    let status = if start.is_some() { "206 Partial Content" } else { served.status };
    let from = start.unwrap_or(0);
    let mut head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n", whole - from);
    if start.is_some() {
        head.push_str(&format!("content-range: bytes {from}-{}/{whole}\r\n", whole - 1));
    }
    if let Some(etag) = served.etag {
        head.push_str(&format!("etag: {etag}\r\n"));
    }
    head.push_str("\r\n");
    let mut body = served.body[from..].to_vec();
    if !served.cuts.is_empty() {
        body.truncate(served.cuts.remove(0));
    }
    (head, body)
}
