//! One multiplexed connection with its health: every call is bounded, a store that is down refuses at once, and a
//! watcher brings it back by itself. What travels on it is in `redis/connection.rs`.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::address::{Address, Dialled, Primary};
use super::detour::{Asked, Detour, Unserved, Way, query};
use super::gateways::{BEAT_COUNTS, Gateways};
use super::patience::{Waiting, second_look};
use super::probe::TAG as PROBE_TAG;
use super::script::{Call, SCRIPTS, gateways_key};
use crate::quota::store::StoreError;

/// A healthy connection proves itself this often; also how soon a lost scripting permission is noticed.
const CHECK_EVERY: Duration = Duration::from_secs(2);
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// For a new connection, where no call waits for it.
const LONG: Duration = Duration::from_secs(1);

pub(super) struct Line {
    address: Address,
    timeout: Duration,
    state: Mutex<State>,
    /// Down, doubted, or joined: the watcher need not wait for its time.
    news: Notify,
    waiting: Waiting,
    voice: Voice,
}

/// Of the connections of a store one speaks for it: a change is logged once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    Speaks,
    Silent,
}

struct State {
    /// None until a server that was down at the start has been reached.
    connection: Option<MultiplexedConnection>,
    /// Where it leads, if sentinels said so.
    primary: Option<Primary>,
    /// Why calls are refused without being sent.
    down: Option<StoreError>,
    /// When the server last answered any call.
    heard: Instant,
    gateways: Gateways,
    beat: Beat,
}

/// Where a line proves its server. With a name, this gateway is one of those that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    pub key: String,
    pub name: Option<String>,
}

impl Default for Beat {
    fn default() -> Self {
        Self { key: gateways_key(PROBE_TAG), name: None }
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the address: it may hold a password.
        f.debug_struct("Connection").field("down", &self.state().down).finish_non_exhaustive()
    }
}

impl Line {
    pub fn new(address: Address, timeout: Duration, voice: Voice, dialled: Result<Dialled, StoreError>) -> Self {
        let (connection, primary, down) = match dialled {
            Ok((connection, primary)) => (Some(connection), primary, None),
            Err(error) => (None, None, Some(error)),
        };
        let state = State {
            connection,
            primary,
            down,
            heard: Instant::now(),
            gateways: Gateways::default(),
            beat: Beat::default(),
        };
        Self { address, timeout, state: Mutex::new(state), news: Notify::new(), waiting: Waiting::default(), voice }
    }

    pub fn host(&self) -> &str {
        self.address.host()
    }

    pub fn beats(&self, beat: Beat) {
        let before = std::mem::replace(&mut self.state().beat, beat.clone());
        if before != beat {
            self.news.notify_one();
        }
    }

    pub fn gateways(&self) -> usize {
        self.state().gateways.count
    }

    pub fn health(&self) -> Result<(), StoreError> {
        match &self.state().down {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A script by digest, and once by text if the server does not know it: after SCRIPT FLUSH, restart or failover.
    pub async fn ask<T: FromRedisValue>(&self, asked: &Asked, way: Way, bound: Duration) -> Result<T, Unserved> {
        let reply = match asked {
            Asked::Command(command) => self.send(command.clone(), way, bound).await?,
            Asked::Script(call) => match self.send(call.by_digest(), way, bound).await? {
                Err(error) if error.code() == Some("NOSCRIPT") => self.send(call.with_text(), way, bound).await?,
                reply => reply,
            },
        };
        reply.map_err(|error| match Detour::of(&error) {
            Some(detour) => Unserved::Elsewhere(detour),
            None => Unserved::Failed(self.failed(&error)),
        })
    }

    /// Waits while the server answers at all: silence for `bound` takes it down, a burst of our own calls does not.
    async fn send<T: FromRedisValue>(
        &self,
        command: Cmd,
        way: Way,
        bound: Duration,
    ) -> Result<Result<T, RedisError>, StoreError> {
        let mut connection = {
            let state = self.state();
            match (&state.down, &state.connection) {
                (None, Some(connection)) => connection.clone(),
                (Some(error), _) => return Err(StoreError::Unreachable(error.to_string())),
                (None, None) => return Err(StoreError::Unreachable("not connected yet".to_owned())),
            }
        };
        let place = self.waiting.enter();
        let sent = Instant::now();
        let last = sent + place.patience(bound);
        let mut query = pin!(query::<T>(command, way, &mut connection));
        loop {
            let silent = self.state().heard.max(sent) + bound;
            let deadline = silent.min(last);
            let answer = match timeout_at(deadline, &mut query).await {
                Ok(answer) => Some(answer),
                Err(_elapsed) => second_look(query.as_mut(), deadline.elapsed().min(bound)).await,
            };
            if let Some(answer) = answer {
                self.state().heard = Instant::now();
                return Ok(answer);
            }
            let now = Instant::now();
            if now >= last || now >= self.state().heard.max(sent) + bound {
                return Err(self.is_down(StoreError::Timeout(bound)));
            }
        }
    }

    /// Sorts an error of the server or the connection; those that the next call would meet as well take the store down.
    fn failed(&self, error: &RedisError) -> StoreError {
        match error.code() {
            // A replica, a server that loads its data, or one that stopped accepting writes: wait for it.
            Some("READONLY" | "LOADING" | "MASTERDOWN" | "MISCONF" | "OOM" | "NOPERM" | "NOAUTH" | "CLUSTERDOWN") => {
                self.is_down(StoreError::Refused(error.to_string()))
            }
            // One call that it turns away, or all of them: the watcher asks at once.
            Some(_) => {
                self.news.notify_one();
                StoreError::Refused(error.to_string())
            }
            None => self.is_down(StoreError::Broken(error.to_string())),
        }
    }

    fn is_down(&self, error: StoreError) -> StoreError {
        let mut state = self.state();
        if state.down.is_none() {
            if self.voice == Voice::Speaks {
                tracing::warn!(server = %self.address, %error, "quota store down: calls go by on_store_failure until it answers");
            }
            state.down = Some(error.clone());
            self.news.notify_one();
        }
        error
    }

    fn is_up(&self) {
        let mut state = self.state();
        if state.down.take().is_some() && self.voice == Voice::Speaks {
            tracing::info!(server = %self.address, "quota store is back");
        }
    }

    /// What proves the server: a script that writes, as those of requests do, and not a PING. The same beat says that
    /// this gateway lives, and how many do.
    fn beat(&self) -> Call {
        let Beat { key, name } = self.state().beat.clone();
        Call::plain(&SCRIPTS.beat, vec![key])
            .arg(name.as_deref().unwrap_or("-"))
            .arg(BEAT_COUNTS.as_micros().to_string())
    }

    fn counted(&self, gateways: usize, regular: bool) {
        let mut state = self.state();
        if state.beat.name.is_some() {
            state.gateways.beat(gateways, regular);
        }
    }

    /// Of a connection that is not trusted: past the queue of calls, within one bound.
    async fn check(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let call = self.beat();
        let bound = Instant::now() + self.timeout;
        let ask = async {
            match call.by_digest().query_async::<usize>(connection).await {
                Err(error) if error.code() == Some("NOSCRIPT") => call.with_text().query_async(connection).await,
                other => other,
            }
        };
        match timeout_at(bound, ask).await {
            Ok(Ok(gateways)) => {
                self.counted(gateways, false);
                Ok(())
            }
            // It lives; whose keys it has is not for it to say.
            Ok(Err(error)) if Detour::of(&error).is_some() => Ok(()),
            Ok(Err(error)) if error.code().is_some() => Err(StoreError::Refused(error.to_string())),
            Ok(Err(error)) => Err(StoreError::Broken(error.to_string())),
            Err(_elapsed) => Err(StoreError::Timeout(self.timeout)),
        }
    }

    /// Brings a troubled connection back: the old one if it takes writes, else a new one. That may lead elsewhere: to the
    /// replica that took over, or by a name that now means another server.
    async fn revive(&self) {
        let connection = self.state().connection.clone();
        let mut check = match connection {
            Some(mut connection) => self.check(&mut connection).await,
            None => Err(StoreError::Broken("not connected yet".to_owned())),
        };
        if check.is_err() {
            check = self.dial_anew().await;
        }
        match check {
            Ok(()) => self.is_up(),
            Err(error) => {
                self.state().down.replace(error);
            }
        }
    }

    async fn dial_anew(&self) -> Result<(), StoreError> {
        let (mut fresh, primary) = self.address.dial(self.timeout.max(LONG)).await?;
        let check = self.check(&mut fresh).await;
        let mut state = self.state();
        (state.connection, state.primary) = (Some(fresh), primary);
        check
    }

    /// A primary that was cut off still answers, and what it is told is lost when it comes back: the sentinels know of
    /// another one by then.
    async fn follow(&self) {
        let known = self.state().primary.clone();
        let Some((host, port)) = self.address.elsewhere(known.as_ref(), LONG).await else { return };
        match self.dial_anew().await {
            Ok(()) if self.voice == Voice::Speaks => tracing::info!(host, port, "quota store has a new primary"),
            Ok(()) => {}
            Err(error) => drop(self.is_down(error)),
        }
    }
}

pub async fn watch(inner: Weak<Line>) {
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
        // Whether it was its time or there is news.
        let _elapsed = timeout(CHECK_EVERY, inner.news.notified()).await;
        if inner.state().down.is_some() {
            continue;
        }
        match inner.ask(&Asked::Script(inner.beat()), Way::Usual, inner.timeout).await {
            Ok(gateways) => {
                inner.counted(gateways, true);
                inner.follow().await;
            }
            Err(Unserved::Elsewhere(_)) => {}
            Err(Unserved::Failed(error)) => drop(inner.is_down(error)),
        }
    }
}
