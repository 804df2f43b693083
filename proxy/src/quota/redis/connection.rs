//! One multiplexed connection with its health: every call is bounded, a store that is down refuses at once, and a
//! watcher brings it back by itself.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::RedisOptions;
use super::script::{Call, SCRIPTS, deadlines_key, lease_key};
use crate::quota::lease::LeaseId;
use crate::quota::store::StoreError;

/// A healthy connection proves itself this often; also how soon a lost scripting permission is noticed.
const CHECK_EVERY: Duration = Duration::from_secs(2);
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// A server that answers others is slow, not down: a call behind them waits this many times its bound.
const PATIENCE: u32 = 10;
/// Once the bound is over the answer may lie in our own socket, unread because this process was busy.
const SECOND_LOOK: Duration = Duration::from_millis(20);

pub fn client(url: &str) -> Result<Client, StoreError> {
    Client::open(url).map_err(|error| StoreError::Refused(format!("not a usable store address: {error}")))
}

/// Our own clock: only an estimate of the server's, which decides.
pub fn local_now_us() -> f64 {
    #[expect(clippy::disallowed_methods, reason = "a first guess at the server's clock, corrected by every answer")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_micros() as f64)
}

#[derive(Debug)]
pub struct Connection(Arc<Inner>);

struct Inner {
    client: Client,
    timeout: Duration,
    state: Mutex<State>,
    trouble: Notify,
}

struct State {
    connection: MultiplexedConnection,
    /// Why calls are refused without being sent.
    down: Option<StoreError>,
    /// When the server last answered any call.
    heard: Instant,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the client: its address may hold a password.
        f.debug_struct("Connection").field("down", &self.state().down).finish_non_exhaustive()
    }
}

impl Connection {
    /// Bounded by `start_timeout`; afterwards each call is bounded by `timeout`.
    pub async fn open(client: Client, options: RedisOptions) -> Result<Self, StoreError> {
        let connection = dial(&client, options.start_timeout).await?;
        let state = Mutex::new(State { connection, down: None, heard: Instant::now() });
        Ok(Self(Arc::new(Inner { client, timeout: options.timeout, state, trouble: Notify::new() })))
    }

    pub fn health(&self) -> Result<(), StoreError> {
        match &self.0.state().down {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Keeps the connection alive until it is dropped.
    pub fn watch(&self) {
        tokio::spawn(watch(Arc::downgrade(&self.0)));
    }

    pub async fn call(&self, call: Call) -> Result<Vec<u8>, StoreError> {
        self.0.script(call, self.0.timeout).await
    }

    /// As [`Connection::call`], with another bound.
    pub async fn call_within(&self, call: Call, bound: Duration) -> Result<Vec<u8>, StoreError> {
        self.0.script(call, bound).await
    }

    pub async fn command<T: FromRedisValue>(&self, command: Cmd) -> Result<T, StoreError> {
        self.command_within(command, self.0.timeout).await
    }

    pub async fn command_within<T: FromRedisValue>(&self, command: Cmd, bound: Duration) -> Result<T, StoreError> {
        self.0.command(command, bound).await
    }

    /// Ids of leases past their deadline.
    pub async fn due(&self, tag: &str, most: usize) -> Result<Vec<LeaseId>, StoreError> {
        let call = Call::plain(&SCRIPTS.due, vec![deadlines_key(tag)]).arg(most.to_string());
        let ids: Vec<String> = self.0.script(call, self.0.timeout).await?;
        Ok(ids.iter().filter_map(|id| LeaseId::parse(id)).collect())
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

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By digest, and once by text if the server does not know it: after SCRIPT FLUSH, restart or failover.
    async fn script<T: FromRedisValue>(&self, call: Call, bound: Duration) -> Result<T, StoreError> {
        match self.send(call.by_digest(), bound).await? {
            Err(error) if error.code() == Some("NOSCRIPT") => self.command(call.with_text(), bound).await,
            Err(error) => Err(self.failed(&error)),
            Ok(reply) => Ok(reply),
        }
    }

    async fn command<T: FromRedisValue>(&self, command: Cmd, bound: Duration) -> Result<T, StoreError> {
        self.send(command, bound).await?.map_err(|error| self.failed(&error))
    }

    /// Waits while the server answers at all: silence for `bound` takes it down, a burst of our own calls does not.
    async fn send<T: FromRedisValue>(
        &self,
        command: Cmd,
        bound: Duration,
    ) -> Result<Result<T, RedisError>, StoreError> {
        let mut connection = {
            let state = self.state();
            match &state.down {
                Some(error) => return Err(StoreError::Unreachable(error.to_string())),
                None => state.connection.clone(),
            }
        };
        let sent = Instant::now();
        let mut query = pin!(command.query_async::<T>(&mut connection));
        let mut deadline = sent + bound;
        loop {
            let answer = match timeout_at(deadline, &mut query).await {
                Ok(answer) => Some(answer),
                Err(_elapsed) => timeout(SECOND_LOOK, &mut query).await.ok(),
            };
            if let Some(answer) = answer {
                self.state().heard = Instant::now();
                return Ok(answer);
            }
            let heard = self.state().heard;
            if heard <= deadline - bound {
                return Err(self.is_down(StoreError::Timeout(bound)));
            }
            if sent.elapsed() > bound * PATIENCE {
                return Err(StoreError::Timeout(bound * PATIENCE));
            }
            deadline = heard + bound;
        }
    }

    /// Sorts an error of the server or the connection; those that the next call would meet as well take the store down.
    fn failed(&self, error: &RedisError) -> StoreError {
        match error.code() {
            // A replica, a server that loads its data, or one that stopped accepting writes: wait for it.
            Some("READONLY" | "LOADING" | "MASTERDOWN" | "MISCONF" | "OOM" | "NOPERM" | "NOAUTH") => {
                self.is_down(StoreError::Refused(error.to_string()))
            }
            Some(_) => StoreError::Refused(error.to_string()),
            None => self.is_down(StoreError::Broken(error.to_string())),
        }
    }

    fn is_down(&self, error: StoreError) -> StoreError {
        let mut state = self.state();
        if state.down.is_none() {
            tracing::warn!(%error, "quota store down: calls are refused until it answers");
            state.down = Some(error.clone());
            self.trouble.notify_one();
        }
        error
    }

    fn is_up(&self) {
        let mut state = self.state();
        if state.down.take().is_some() {
            tracing::info!("quota store is back");
        }
    }

    /// The path that requests use, not a PING: a server that answers PING may still refuse scripts.
    async fn check(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let call = Call::plain(&SCRIPTS.due, vec![deadlines_key("probe")]).arg("1");
        let bound = Instant::now() + self.timeout;
        let ask = async {
            match call.by_digest().query_async::<Vec<String>>(connection).await {
                Err(error) if error.code() == Some("NOSCRIPT") => call.with_text().query_async(connection).await,
                other => other,
            }
        };
        match timeout_at(bound, ask).await {
            Ok(Ok(_due)) => Ok(()),
            Ok(Err(error)) if error.code().is_some() => Err(StoreError::Refused(error.to_string())),
            Ok(Err(error)) => Err(StoreError::Broken(error.to_string())),
            Err(_elapsed) => Err(StoreError::Timeout(self.timeout)),
        }
    }

    /// Brings a troubled connection back: the old one if it answers, else a new one.
    async fn revive(&self) {
        let mut connection = self.state().connection.clone();
        let mut check = self.check(&mut connection).await;
        if matches!(check, Err(StoreError::Broken(_) | StoreError::Timeout(_))) {
            check = match dial(&self.client, self.timeout.max(Duration::from_secs(1))).await {
                Ok(mut fresh) => {
                    let check = self.check(&mut fresh).await;
                    self.state().connection = fresh;
                    check
                }
                Err(error) => Err(error),
            };
        }
        match check {
            Ok(()) => self.is_up(),
            Err(error) => {
                self.state().down.replace(error);
            }
        }
    }
}

async fn watch(inner: Weak<Inner>) {
    loop {
        let Some(inner) = inner.upgrade() else { return };
        if inner.state().down.is_some() {
            inner.revive().await;
            if inner.state().down.is_some() {
                drop(inner);
                tokio::time::sleep(RETRY_EVERY).await;
            }
            continue;
        }
        if timeout(CHECK_EVERY, inner.trouble.notified()).await.is_err() {
            let mut connection = inner.state().connection.clone();
            if let Err(error) = inner.check(&mut connection).await {
                inner.is_down(error);
            }
        }
    }
}

/// Connects within `bound`. The crate's own response timeout is off: ours covers each whole call.
async fn dial(client: &Client, bound: Duration) -> Result<MultiplexedConnection, StoreError> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(bound)).set_response_timeout(None);
    match timeout(bound, client.get_multiplexed_async_connection_with_config(&config)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) if error.is_timeout() => Err(StoreError::Timeout(bound)),
        Ok(Err(error)) => Err(StoreError::Unreachable(error.to_string())),
        Err(_elapsed) => Err(StoreError::Timeout(bound)),
    }
}
