//! What the mock saw: counters, and the last requests with how each one ended. Bounded: the oldest record goes first.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use bytes::Bytes;
use http::request::Parts;
use serde::{Deserialize, Serialize};

use super::line::Line;

/// How an exchange ended, as the mock saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The whole answer was handed to the connection.
    Finished,
    /// The client closed, or the connection broke, before that.
    ClientLeft,
    /// The mock broke it, as it was told.
    Died,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// From 0, in order of arrival.
    pub seq: u64,
    pub connection: u64,
    pub method: String,
    pub path: String,
    /// Names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// Milliseconds since the mock started.
    pub arrived_ms: f64,
    pub ended_ms: Option<f64>,
    /// `None` while the exchange runs.
    pub ended: Option<Ended>,
    /// Content chunks handed to the connection.
    pub chunks: u64,
    /// Bytes of this exchange that the kernel took.
    pub bytes_written: u64,
}

impl Record {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; `null` when it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    pub connections: u64,
    pub open_connections: u64,
    pub requests: u64,
    pub in_flight: u64,
    pub finished: u64,
    pub client_left: u64,
    pub died: u64,
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    connections_closed: AtomicU64,
    requests: AtomicU64,
    finished: AtomicU64,
    client_left: AtomicU64,
    died: AtomicU64,
}

#[derive(Debug)]
pub struct Log {
    started: Instant,
    counters: Counters,
    /// Most records kept; 0 keeps none, for speed.
    capacity: usize,
    records: Mutex<VecDeque<Arc<Mutex<Live>>>>,
}

/// A record and where its bytes go.
#[derive(Debug)]
struct Live {
    record: Record,
    line: Arc<Line>,
    written_before: u64,
}

impl Log {
    pub fn new(capacity: usize) -> Self {
        Self { started: Instant::now(), counters: Counters::default(), capacity, records: Mutex::default() }
    }

    pub fn connected(&self) -> u64 {
        self.counters.connections.fetch_add(1, Relaxed)
    }

    pub fn disconnected(&self) {
        self.counters.connections_closed.fetch_add(1, Relaxed);
    }

    pub fn stats(&self) -> Stats {
        let c = &self.counters;
        let [connections, closed, requests, finished, client_left, died] =
            [&c.connections, &c.connections_closed, &c.requests, &c.finished, &c.client_left, &c.died]
                .map(|counter| counter.load(Relaxed));
        Stats {
            connections,
            open_connections: connections.saturating_sub(closed),
            requests,
            in_flight: requests.saturating_sub(finished + client_left + died),
            finished,
            client_left,
            died,
        }
    }

    pub fn records(&self) -> Vec<Record> {
        let lives: Vec<_> = lock(&self.records).iter().cloned().collect();
        lives.iter().map(|live| lock(live).snapshot()).collect()
    }

    pub fn forget(&self) {
        lock(&self.records).clear();
    }

    /// Counts a request, and writes it down if records are kept.
    pub fn arrived(self: &Arc<Self>, connection: u64, line: &Arc<Line>, parts: &Parts, body: &Bytes) -> Exchange {
        let seq = self.counters.requests.fetch_add(1, Relaxed);
        let live = (self.capacity > 0).then(|| {
            let record = Record {
                seq,
                connection,
                method: parts.method.to_string(),
                path: parts.uri.path_and_query().map_or(String::new(), ToString::to_string),
                headers: parts
                    .headers
                    .iter()
                    .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
                    .collect(),
                body: String::from_utf8_lossy(body).into_owned(),
                arrived_ms: self.elapsed_ms(),
                ended_ms: None,
                ended: None,
                chunks: 0,
                bytes_written: 0,
            };
            let live = Arc::new(Mutex::new(Live { record, line: line.clone(), written_before: line.written() }));
            let mut records = lock(&self.records);
            if records.len() == self.capacity {
                records.pop_front();
            }
            records.push_back(live.clone());
            live
        });
        Exchange { log: self.clone(), live, chunks: 0, ended: None }
    }

    fn elapsed_ms(&self) -> f64 {
        self.started.elapsed().as_secs_f64() * 1e3
    }
}

impl Live {
    /// A later exchange on the same connection never adds to one that has ended.
    fn snapshot(&self) -> Record {
        let mut record = self.record.clone();
        if record.ended.is_none() {
            record.bytes_written = self.line.written().saturating_sub(self.written_before);
        }
        record
    }
}

/// One request and its answer. Dropped without [`Exchange::end`], the client has left.
#[derive(Debug)]
pub struct Exchange {
    log: Arc<Log>,
    live: Option<Arc<Mutex<Live>>>,
    chunks: u64,
    ended: Option<Ended>,
}

impl Exchange {
    pub fn chunk(&mut self) {
        self.chunks += 1;
        if let Some(live) = &self.live {
            lock(live).record.chunks = self.chunks;
        }
    }

    /// The first end counts.
    pub fn end(&mut self, ended: Ended) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(ended);
        let counters = &self.log.counters;
        let counter = match ended {
            Ended::Finished => &counters.finished,
            Ended::ClientLeft => &counters.client_left,
            Ended::Died => &counters.died,
        };
        counter.fetch_add(1, Relaxed);
        if let Some(live) = &self.live {
            let mut live = lock(live);
            live.record.bytes_written = live.line.written().saturating_sub(live.written_before);
            live.record.ended = Some(ended);
            live.record.ended_ms = Some(self.log.elapsed_ms());
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.end(Ended::ClientLeft);
    }
}

/// A panic elsewhere does not make a record wrong.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
