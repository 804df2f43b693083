//! The typed commands of one connection to the server. Its health, its waits and its breaker are in `redis/line.rs`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{Cmd, FromRedisValue};

use super::RedisOptions;
use super::address::Address;
use super::line::{self, Line, Voice};
use super::script::{Call, SCRIPTS, deadlines_key, lease_key};
use crate::quota::lease::LeaseId;
use crate::quota::store::StoreError;

/// Our own clock: only an estimate of the server's, which decides.
pub fn local_now_us() -> f64 {
    #[expect(clippy::disallowed_methods, reason = "a first guess at the server's clock, corrected by every answer")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_micros() as f64)
}

#[derive(Clone, Debug)]
pub struct Connection(Arc<Line>);

impl Connection {
    /// Bounded by `start_timeout`; afterwards each call is bounded by `timeout`.
    pub async fn open(address: Address, options: RedisOptions, voice: Voice) -> Result<Self, StoreError> {
        let dialled = address.dial(options.start_timeout).await?;
        Ok(Self(Arc::new(Line::new(address, options.timeout, voice, Ok(dialled)))))
    }

    /// To a server that did not answer at the start: down until the watcher reaches it.
    pub fn absent(address: Address, options: RedisOptions, voice: Voice, error: StoreError) -> Self {
        Self(Arc::new(Line::new(address, options.timeout, voice, Err(error))))
    }

    /// Keeps the connection alive until it is dropped.
    pub fn watch(&self) {
        tokio::spawn(line::watch(Arc::downgrade(&self.0)));
    }

    /// From here on this process is one of the gateways that share the server.
    pub fn join(&self) {
        self.0.join();
    }

    pub fn gateways(&self) -> usize {
        self.0.gateways()
    }

    pub fn health(&self) -> Result<(), StoreError> {
        self.0.health()
    }

    pub async fn call(&self, call: Call) -> Result<Vec<u8>, StoreError> {
        self.0.script(call, self.0.timeout()).await
    }

    /// Of a script that answers for several.
    pub async fn call_all(&self, call: Call) -> Result<Vec<Vec<u8>>, StoreError> {
        self.0.script(call, self.0.timeout()).await
    }

    /// As [`Connection::call`], with another bound.
    pub async fn call_within(&self, call: Call, bound: Duration) -> Result<Vec<u8>, StoreError> {
        self.0.script(call, bound).await
    }

    pub async fn command<T: FromRedisValue>(&self, command: Cmd) -> Result<T, StoreError> {
        self.command_within(command, self.0.timeout()).await
    }

    pub async fn command_within<T: FromRedisValue>(&self, command: Cmd, bound: Duration) -> Result<T, StoreError> {
        self.0.command(command, bound).await
    }

    /// Ids of leases past their deadline.
    pub async fn due(&self, tag: &str, most: usize) -> Result<Vec<LeaseId>, StoreError> {
        let call = Call::plain(&SCRIPTS.due, vec![deadlines_key(tag)]).arg(most.to_string());
        let ids: Vec<String> = self.0.script(call, self.0.timeout()).await?;
        Ok(ids.iter().filter_map(|id| LeaseId::parse(id)).collect())
    }

    /// False if the key holds something else by now.
    pub async fn exchange(&self, key: &str, old: &[u8], new: &[u8]) -> Result<bool, StoreError> {
        let call = Call::plain(&SCRIPTS.exchange, vec![key.to_owned()]).arg(old).arg(new);
        Ok(self.0.script::<i64>(call, self.0.timeout()).await? == 1)
    }

    pub async fn leases(&self, tag: &str, ids: &[LeaseId]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut command = redis::cmd("MGET");
        for id in ids {
            command.arg(lease_key(tag, *id));
        }
        self.command(command).await
    }

    pub async fn lock(&self, key: &str, quiet: Duration) -> Result<bool, StoreError> {
        let mut command = redis::cmd("SET");
        command.arg(key).arg(1).arg("NX").arg("PX").arg(quiet.as_millis().max(1) as u64);
        Ok(self.command::<Option<String>>(command).await?.is_some())
    }

    /// Writes `fresh` where nothing is; what was there otherwise.
    pub async fn keep_first(&self, key: &str, fresh: &[u8], bound: Duration) -> Result<Option<Vec<u8>>, StoreError> {
        let mut command = redis::cmd("SET");
        command.arg(key).arg(fresh).arg("NX").arg("GET");
        self.command_within(command, bound).await
    }

    pub async fn add(&self, key: &str, members: &[String]) -> Result<(), StoreError> {
        if members.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("SADD");
        command.arg(key).arg(members);
        self.command::<i64>(command).await.map(|_added| ())
    }

    pub async fn scan_set(&self, key: &str, cursor: u64) -> Result<(u64, Vec<String>), StoreError> {
        let mut command = redis::cmd("SSCAN");
        command.arg(key).arg(cursor).arg("COUNT").arg(16);
        self.command(command).await
    }

    pub async fn dump(&self, pattern: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let (mut cursor, mut found) = (0u64, Vec::new());
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(500).arg("TYPE").arg("string");
            let (next, keys): (u64, Vec<String>) = self.command(scan).await?;
            for page in keys.chunks(500) {
                let mut get = redis::cmd("MGET");
                get.arg(page);
                let values: Vec<Option<Vec<u8>>> = self.command(get).await?;
                found.extend(page.iter().cloned().zip(values).filter_map(|(key, value)| Some((key, value?))));
            }
            if next == 0 {
                found.sort();
                // SCAN may return a key twice.
                found.dedup_by(|a, b| a.0 == b.0);
                return Ok(found);
            }
            cursor = next;
        }
    }
}
