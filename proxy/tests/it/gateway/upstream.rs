//! An upstream that does exactly what its script says, byte by byte, and records what it was asked.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

#[derive(Clone, Debug)]
pub enum Step {
    Send(Vec<u8>),
    Wait(Duration),
    /// Ends the connection with FIN.
    Close,
    /// Ends it with RST.
    Reset,
    /// Waits until the gateway closes, and notes when.
    AwaitClose,
}

#[derive(Clone, Debug)]
pub struct Asked {
    pub line: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// The gateway's end of the connection.
    pub from: SocketAddr,
    /// When the gateway closed the connection while the script waited for it.
    pub closed: Option<Instant>,
}

impl Asked {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the gateway sends JSON")
    }
}

type Script = Arc<dyn Fn(&Asked) -> Vec<Step> + Send + Sync>;

#[derive(Clone)]
pub struct Upstream {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Upstream {
    pub async fn start(script: impl Fn(&Asked) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let upstream = Self { address: listener.local_addr().expect("bound"), asked: Arc::default() };
        let (script, asked): (Script, _) = (Arc::new(script), upstream.asked.clone());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(connection(socket, script.clone(), asked.clone()));
            }
        });
        upstream
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("not poisoned").clone()
    }

    /// When the gateway closed the connection of a script that waits for that; it may be about to.
    pub async fn closed(&self, at: usize) -> Instant {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            if let Some(closed) = self.asked().get(at).and_then(|asked| asked.closed) {
                return closed;
            }
            assert!(Instant::now() < end, "the upstream was never cancelled");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn connection(mut socket: TcpStream, script: Script, log: Arc<Mutex<Vec<Asked>>>) {
    socket.set_nodelay(true).expect("a TCP socket");
    while let Some(asked) = request(&mut socket).await {
        let place = {
            let mut log = log.lock().expect("not poisoned");
            log.push(asked.clone());
            log.len() - 1
        };
        for step in script(&asked) {
            match step {
                Step::Send(bytes) => {
                    if socket.write_all(&bytes).await.is_err() {
                        log.lock().expect("not poisoned")[place].closed = Some(Instant::now());
                        return;
                    }
                }
                Step::Wait(duration) => tokio::time::sleep(duration).await,
                Step::Close => return,
                Step::Reset => {
                    socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).expect("a TCP socket");
                    return;
                }
                Step::AwaitClose => {
                    let mut rest = [0; 1024];
                    while socket.read(&mut rest).await.is_ok_and(|read| read > 0) {}
                    log.lock().expect("not poisoned")[place].closed = Some(Instant::now());
                    return;
                }
            }
        }
    }
}

/// Head and body by Content-Length: the gateway never sends any other framing.
async fn request(socket: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).expect("a head is text");
    let mut lines = head.lines();
    let line = lines.next()?.to_owned();
    let header =
        |line: &str| line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    let headers: HashMap<String, String> = lines.filter_map(header).collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().expect("a number"));
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if socket.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Asked { line, headers, body, from: socket.peer_addr().ok()?, closed: None })
}

/// A whole answer.
pub fn json(status: u16, body: &str) -> Vec<Step> {
    with_headers(status, "", body)
}

pub fn with_headers(status: u16, headers: &str, body: &str) -> Vec<Step> {
    let length = body.len();
    vec![Step::Send(
        format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )
        .into_bytes(),
    )]
}

/// The head of a stream.
pub fn stream_head() -> Step {
    Step::Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec())
}

/// Bytes of a stream as one HTTP chunk.
pub fn chunk(bytes: impl AsRef<[u8]>) -> Step {
    let bytes = bytes.as_ref();
    let mut out = format!("{:x}\r\n", bytes.len()).into_bytes();
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
    Step::Send(out)
}

/// The end of a stream that ended well.
pub fn stream_end() -> Step {
    Step::Send(b"0\r\n\r\n".to_vec())
}

/// One event with a piece of text.
pub fn text_event(text: &str) -> String {
    let text = serde_json::to_string(text).expect("a text");
    format!("data: {{\"id\":\"c\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{text}}}}}]}}\n\n")
}

pub const STOP: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
pub const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"total_tokens\":12}}\n\n";
pub const DONE: &str = "data: [DONE]\n\n";

/// A stream of these events, each in its own chunk, that ends well.
pub fn stream(events: &[&str]) -> Vec<Step> {
    let mut steps = vec![stream_head()];
    steps.extend(events.iter().map(chunk));
    steps.push(stream_end());
    steps
}
