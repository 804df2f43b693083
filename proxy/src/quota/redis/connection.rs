//! The typed commands of one connection to the server. Its health, its waits and its breaker are in `redis/line.rs`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{Cmd, FromRedisValue};

use super::RedisOptions;
use super::address::RedisAddress;
use super::cluster::{self, Cluster};
use super::detour::{Asked, Unserved, Way};
use super::line::{self, Beat, Line, Voice};
use super::script::{Call, SCRIPTS, deadlines_key, gateways_key, lease_key};
use super::slot_map::slot_of;
use crate::quota::identity::GLOBAL_TAG;
use crate::quota::lease::LeaseId;
use crate::quota::store::StoreError;

/// Our own clock: only an estimate of the server's, which decides.
pub fn local_now_us() -> f64 {
    #[expect(clippy::disallowed_methods, reason = "a first guess at the server's clock, corrected by every answer")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_micros() as f64)
}

/// To a server, or to all nodes of a Cluster.
#[derive(Clone, Debug)]
pub struct Connection {
    lines: Lines,
    timeout: Duration,
}

#[derive(Clone, Debug)]
enum Lines {
    One(Arc<Line>),
    Cluster(Arc<Cluster>),
}

impl Connection {
    /// Bounded by `start_timeout`; afterwards each call is bounded by `timeout`.
    pub async fn open(address: RedisAddress, options: RedisOptions, voice: Voice) -> Result<Self, StoreError> {
        let RedisOptions { timeout, start_timeout, .. } = options;
        let lines = match address {
            RedisAddress::Server(address) => {
                let dialled = address.dial(start_timeout).await?;
                Lines::One(Arc::new(Line::new(address, timeout, voice, Ok(dialled))))
            }
            RedisAddress::Cluster(seeds) => {
                let cluster = Cluster::new(*seeds, timeout, voice);
                cluster.open(start_timeout).await?;
                Lines::Cluster(Arc::new(cluster))
            }
        };
        Ok(Self { lines, timeout })
    }

    /// To a server that did not answer at the start: down until the watcher reaches it.
    pub fn absent(address: RedisAddress, options: RedisOptions, voice: Voice, error: StoreError) -> Self {
        let timeout = options.timeout;
        let lines = match address {
            RedisAddress::Server(address) => Lines::One(Arc::new(Line::new(address, timeout, voice, Err(error)))),
            RedisAddress::Cluster(seeds) => Lines::Cluster(Arc::new(Cluster::new(*seeds, timeout, voice))),
        };
        Self { lines, timeout }
    }

    /// Keeps the connection alive until it is dropped.
    pub fn watch(&self) {
        match &self.lines {
            Lines::One(line) => drop(tokio::spawn(line::watch(Arc::downgrade(line)))),
            Lines::Cluster(cluster) => drop(tokio::spawn(cluster::watch(Arc::downgrade(cluster)))),
        }
    }

    /// From here on this process is one of the gateways that share the server.
    pub fn join(&self) {
        let name = LeaseId::random().to_string();
        match &self.lines {
            Lines::One(line) => line.beats(Beat { key: gateways_key(GLOBAL_TAG), name: Some(name) }),
            Lines::Cluster(cluster) => cluster.join(name),
        }
    }

    pub fn gateways(&self) -> usize {
        match &self.lines {
            Lines::One(line) => line.gateways(),
            Lines::Cluster(cluster) => cluster.gateways(),
        }
    }

    pub fn health(&self) -> Result<(), StoreError> {
        match &self.lines {
            Lines::One(line) => line.health(),
            Lines::Cluster(cluster) => cluster.health(),
        }
    }

    pub fn serves(&self, key: &str) -> bool {
        match &self.lines {
            Lines::One(line) => line.health().is_ok(),
            Lines::Cluster(cluster) => cluster.line(slot_of(key)).is_ok_and(|line| line.health().is_ok()),
        }
    }

    pub fn serves_some(&self) -> bool {
        self.lines().iter().any(|line| line.health().is_ok())
    }

    /// One script may touch the keys of several orgs.
    pub fn is_one_server(&self) -> bool {
        matches!(self.lines, Lines::One(_))
    }

    async fn script<T: FromRedisValue>(&self, call: Call, bound: Duration) -> Result<T, StoreError> {
        match &self.lines {
            Lines::One(line) => line.ask(&Asked::Script(call), Way::Usual, bound).await.map_err(alone),
            Lines::Cluster(cluster) => cluster.ask(slot_of(call.key()), &Asked::Script(call), bound).await,
        }
    }

    /// `key`: one of those that the command names.
    async fn command<T: FromRedisValue>(&self, key: &str, command: Cmd) -> Result<T, StoreError> {
        self.command_within(key, command, self.timeout).await
    }

    async fn command_within<T: FromRedisValue>(
        &self,
        key: &str,
        command: Cmd,
        bound: Duration,
    ) -> Result<T, StoreError> {
        match &self.lines {
            Lines::One(line) => line.ask(&Asked::Command(command), Way::Usual, bound).await.map_err(alone),
            Lines::Cluster(cluster) => cluster.ask(slot_of(key), &Asked::Command(command), bound).await,
        }
    }

    pub async fn call(&self, call: Call) -> Result<Vec<u8>, StoreError> {
        self.script(call, self.timeout).await
    }

    /// Of a script that answers for several.
    pub async fn call_all(&self, call: Call) -> Result<Vec<Vec<u8>>, StoreError> {
        self.script(call, self.timeout).await
    }

    /// As [`Connection::call`], with another bound.
    pub async fn call_within(&self, call: Call, bound: Duration) -> Result<Vec<u8>, StoreError> {
        self.script(call, bound).await
    }

    /// `INFO everything` of each server.
    pub async fn info(&self, bound: Duration) -> Result<Vec<String>, StoreError> {
        let mut all = Vec::new();
        for line in self.lines() {
            let mut info = redis::cmd("INFO");
            info.arg("everything");
            all.push(line.ask(&Asked::Command(info), Way::Usual, bound).await.map_err(alone)?);
        }
        Ok(all)
    }

    fn lines(&self) -> Vec<Arc<Line>> {
        match &self.lines {
            Lines::One(line) => vec![line.clone()],
            Lines::Cluster(cluster) => cluster.lines(),
        }
    }

    /// Ids of leases past their deadline.
    pub async fn due(&self, tag: &str, most: usize) -> Result<Vec<LeaseId>, StoreError> {
        let call = Call::plain(&SCRIPTS.due, vec![deadlines_key(tag)]).arg(most.to_string());
        let ids: Vec<String> = self.script(call, self.timeout).await?;
        Ok(ids.iter().filter_map(|id| LeaseId::parse(id)).collect())
    }

    /// False if the key holds something else by now.
    pub async fn exchange(&self, key: &str, old: &[u8], new: &[u8]) -> Result<bool, StoreError> {
        let call = Call::plain(&SCRIPTS.exchange, vec![key.to_owned()]).arg(old).arg(new);
        Ok(self.script::<i64>(call, self.timeout).await? == 1)
    }

    pub async fn leases(&self, tag: &str, ids: &[LeaseId]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut command = redis::cmd("MGET");
        for id in ids {
            command.arg(lease_key(tag, *id));
        }
        self.command(&deadlines_key(tag), command).await
    }

    pub async fn lock(&self, key: &str, quiet: Duration) -> Result<bool, StoreError> {
        let mut command = redis::cmd("SET");
        command.arg(key).arg(1).arg("NX").arg("PX").arg(quiet.as_millis().max(1) as u64);
        Ok(self.command::<Option<String>>(key, command).await?.is_some())
    }

    /// Writes `fresh` where nothing is; what was there otherwise.
    pub async fn keep_first(&self, key: &str, fresh: &[u8], bound: Duration) -> Result<Option<Vec<u8>>, StoreError> {
        let mut command = redis::cmd("SET");
        command.arg(key).arg(fresh).arg("NX").arg("GET");
        self.command_within(key, command, bound).await
    }

    pub async fn add(&self, key: &str, members: &[String]) -> Result<(), StoreError> {
        if members.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("SADD");
        command.arg(key).arg(members);
        self.command::<i64>(key, command).await.map(|_added| ())
    }

    pub async fn scan_set(&self, key: &str, cursor: u64) -> Result<(u64, Vec<String>), StoreError> {
        let mut command = redis::cmd("SSCAN");
        command.arg(key).arg(cursor).arg("COUNT").arg(16);
        self.command(key, command).await
    }

    /// Every string whose key matches, by key.
    pub async fn dump(&self, pattern: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let mut found = Vec::new();
        for line in self.lines() {
            let mut cursor = 0u64;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(500).arg("TYPE").arg("string");
                let (next, keys): (u64, Vec<String>) =
                    line.ask(&Asked::Command(scan), Way::Usual, self.timeout).await.map_err(alone)?;
                found.extend(self.values(keys).await?);
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        found.sort();
        // SCAN may return a key twice.
        found.dedup_by(|a, b| a.0 == b.0);
        Ok(found)
    }

    /// By one command for each slot, if servers have slots.
    async fn values(&self, mut keys: Vec<String>) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let slot = |key: &String| if self.is_one_server() { 0 } else { slot_of(key) };
        keys.sort_by_key(slot);
        let mut found = Vec::with_capacity(keys.len());
        for page in keys.chunk_by(|a, b| slot(a) == slot(b)).flat_map(|group| group.chunks(500)) {
            let mut get = redis::cmd("MGET");
            get.arg(page);
            let values: Vec<Option<Vec<u8>>> = self.command(&page[0], get).await?;
            found.extend(page.iter().cloned().zip(values).filter_map(|(key, value)| Some((key, value?))));
        }
        Ok(found)
    }
}

/// A single server that sends us elsewhere is none.
fn alone(unserved: Unserved) -> StoreError {
    match unserved {
        Unserved::Failed(error) => error,
        Unserved::Elsewhere(_) => {
            StoreError::Refused("the server is a node of a Cluster: write redis+cluster://".to_owned())
        }
    }
}
