//! The gateway under test, and a client that sends and reads raw HTTP/1.1.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use proxy::{
    Config, Proxy, StartError, config,
    quota::{Clock, Options, Quota, RedisOptions, Store},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

use super::upstream::Upstream;
use crate::quota::redis_server::RedisServer;

/// A key, and limits that no test of something else meets.
const KEYS: &str = "keys: [{ secret: K, user: ana, app: web, org: acme }]";
const QUOTAS: &str = "quotas: [{ level: org, match: acme, limits: [{ tokens: 100000, per: lifetime }, { requests: 1000, per: lifetime }] }]";

pub struct Rig {
    pub address: SocketAddr,
    pub quota: Arc<Quota>,
    pub proxy: Arc<Proxy>,
    /// The configuration it was started with.
    pub text: String,
    log: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<bool>>,
    /// Outlives the quota, which speaks to it.
    _redis: Option<RedisServer>,
}

#[derive(Clone, Copy, Debug, Default)]
pub enum Kind {
    #[default]
    Memory,
    /// The embedded store with its journal, whose leases outlive the process.
    Journal,
    Redis,
}

impl Kind {
    /// Generous times: on a busy machine a slow answer is not what a test is about.
    async fn store(self, folder: &Path) -> (Store, Option<RedisServer>) {
        match self {
            Self::Memory => (Store::memory(Clock::Wall), None),
            Self::Journal => (Store::journalled(folder, Clock::Wall).expect("an empty folder"), None),
            Self::Redis => {
                let server = RedisServer::start();
                (redis(&server.url()).await, Some(server))
            }
        }
    }
}

async fn redis(url: &str) -> Store {
    let options = RedisOptions {
        timeout: Duration::from_secs(5),
        start_timeout: Duration::from_secs(10),
        ..RedisOptions::default()
    };
    Store::redis(url, options).await.expect("Redis is there")
}

/// Runs each test on both stores.
macro_rules! on_both_stores {
    ($($name:ident),* $(,)?) => {
        mod in_memory {
            $(#[tokio::test] async fn $name() { super::$name(super::Kind::Memory).await })*
        }
        mod on_redis {
            $(#[tokio::test] async fn $name() { super::$name(super::Kind::Redis).await })*
        }
    };
}
pub(super) use on_both_stores;

/// What a test may set; the rest is as in production.
#[derive(Clone, Default)]
pub struct Settings {
    /// Lines of the model besides name and upstreams.
    pub model: String,
    /// In place of one upstream named `a`.
    pub upstreams: Option<String>,
    pub limits: String,
    pub quotas: Option<String>,
    pub store: Kind,
    /// A store that others use as well, in place of one of its own.
    pub redis: Option<String>,
    pub lease_ttl: Option<Duration>,
}

impl Rig {
    pub async fn start(upstream: &Upstream) -> Self {
        Self::with(upstream, Settings::default()).await
    }

    pub async fn on(store: Kind, upstream: &Upstream) -> Self {
        Self::with(upstream, Settings { store, ..Settings::default() }).await
    }

    pub async fn with(upstream: &Upstream, settings: Settings) -> Self {
        let log = tempfile::tempdir().expect("a folder");
        let one = format!("[{{ name: a, url: \"{}\", api_key: UP }}]", upstream.url());
        let text = format!(
            "access_log: {}\nlimits: {{ {} }}\nmodels:\n  - {{ name: m, aliases: [alias], default_max_tokens: 100, {} upstreams: {} }}\n{KEYS}\n{}\n",
            log.path().join("access.jsonl").display(),
            settings.limits,
            settings.model,
            settings.upstreams.unwrap_or(one),
            settings.quotas.as_deref().unwrap_or(QUOTAS),
        );
        let config = checked(&text);
        let (store, redis) = match &settings.redis {
            Some(url) => (redis(url).await, None),
            None => settings.store.store(&log.path().join("ledger")).await,
        };
        let defaults = Options::default();
        let options = Options { lease_ttl: settings.lease_ttl.unwrap_or(defaults.lease_ttl), ..defaults };
        let quota = Quota::new(config.quotas.clone(), store, options);
        let proxy = Proxy::new(&config, quota.clone()).expect("a valid configuration starts");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move { drop(stopped.await) };
        let served = tokio::spawn(proxy.clone().serve(listener, shutdown, Duration::from_secs(5)));
        Self { address, quota, proxy, text, log, stop: Some(stop), served: Some(served), _redis: redis }
    }

    /// Puts an edited configuration in force.
    pub fn edit(&self, from: &str, to: &str) -> Result<(), StartError> {
        assert!(self.text.contains(from), "{from} in {}", self.text);
        self.proxy.reload(&checked(&self.text.replace(from, to)))
    }

    /// Stops accepting; true if every call ended within the drain.
    pub async fn drain(&mut self) -> bool {
        self.stop.take().expect("drained once").send(()).expect("the server runs");
        self.served.take().expect("drained once").await.expect("the server does not panic")
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the gateway accepts")
    }

    /// Sends a call and leaves reading to the test.
    pub async fn open(&self, body: &str) -> TcpStream {
        let mut socket = self.connect().await;
        socket.write_all(&request("POST", "/v1/chat/completions", &[KEY], body)).await.expect("sent");
        socket
    }

    pub async fn chat(&self, body: &str) -> Answer {
        self.send(&request("POST", "/v1/chat/completions", &[KEY], body)).await
    }

    pub async fn send(&self, request: &[u8]) -> Answer {
        let mut socket = self.connect().await;
        socket.write_all(request).await.expect("sent");
        Answer::read(&mut socket).await
    }

    /// The `count` lines of the access log, waited for.
    pub async fn lines(&self, count: usize) -> Vec<wire::access::Entry> {
        let path = self.log.path().join("access.jsonl");
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<_> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            if lines.len() >= count || Instant::now() > end {
                assert_eq!(lines.len(), count, "{text}");
                return lines;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until nothing is held; then (settled, refunded) tokens.
    pub async fn balance(&self) -> (u64, u64) {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let stats = self.quota.stats();
            if stats.leases == 0 {
                assert_eq!((stats.held, stats.leaked()), (0, 0));
                return (stats.settled, stats.refunded);
            }
            assert!(Instant::now() < end, "a lease is still held: {stats:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn checked(text: &str) -> Config {
    config::check(text, "test.yaml", &HashMap::new()).unwrap_or_else(|problems| panic!("{text}\n{problems:#?}"))
}

pub const KEY: (&str, &str) = ("authorization", "Bearer K");

/// A chat with `rest` after its messages.
pub fn chat(rest: &str) -> String {
    format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]{rest}}}")
}

/// A request on a connection of its own.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if method == "POST" {
        head.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
    }
    format!("{head}\r\n{body}").into_bytes()
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    /// Reads to the end of the connection.
    pub async fn read(socket: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        tokio::time::timeout(Duration::from_secs(30), socket.read_to_end(&mut bytes))
            .await
            .expect("in time")
            .expect("read");
        Self::parse(&bytes)
    }

    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| {
            panic!("no head in {:?}", String::from_utf8_lossy(bytes));
        });
        let head = std::str::from_utf8(&bytes[..end]).expect("a head is text");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status line");
        let header = |line: &str| line.split_once(':').map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_owned()));
        let headers: HashMap<String, String> = lines.filter_map(header).collect();
        let raw = &bytes[end + 4..];
        let chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
        Self { status, body: if chunked { dechunk(raw) } else { raw.to_vec() }, headers }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.header(name).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {:?}", self.headers))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("the body is UTF-8")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// `error.code` of the envelope.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or("none").to_owned()
    }

    /// Payloads of the events, in order.
    pub fn events(&self) -> Vec<String> {
        let mut decoder = wire::sse::Decoder::new(1 << 20);
        decoder.push(&self.body);
        let mut events = Vec::new();
        while let Ok(Some(event)) = decoder.next_event() {
            events.extend(event.data().map(|data| String::from_utf8(data.to_vec()).expect("UTF-8")));
        }
        assert!(decoder.pending().is_empty(), "half an event at the end");
        events
    }

    /// The joined `delta.content` of a stream.
    pub fn streamed_text(&self) -> String {
        let content = |event: &String| {
            let chunk: Value = serde_json::from_str(event).ok()?;
            Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned())
        };
        self.events().iter().filter_map(content).collect()
    }
}

fn dechunk(mut raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = raw.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..end]).expect("a size").trim(), 16).expect("a size");
        if size == 0 {
            return out;
        }
        out.extend_from_slice(&raw[end + 2..end + 2 + size]);
        raw = &raw[end + 4 + size..];
    }
    panic!("the chunked body has no end")
}
