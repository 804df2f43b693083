//! A Redis Cluster: a line to each of its primaries, so that one that dies takes down its own orgs only, and each call on
//! the line of its key. Every script touches one slot, that of its org.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::address::{self, Address, Primary, Seeds};
use super::detour::{Asked, Detour, Unserved, Way};
use super::line::{self, Beat, Line, Voice};
use super::script::gateways_key;
use super::slot_map::{SlotMap, slot_of};
use crate::quota::identity::GLOBAL_TAG;
use crate::quota::store::StoreError;

/// How old the map may get. While a node is down its replica is about to take over, and the map is read much sooner.
const READ_EVERY: Duration = Duration::from_secs(2);
const READ_WHILE_DOWN: Duration = Duration::from_millis(200);
/// Between two readings, however many calls are sent elsewhere.
const READ_AT_MOST_EVERY: Duration = Duration::from_millis(50);
/// For a map or a new connection, where no call waits for it.
const LONG: Duration = Duration::from_secs(1);
/// A key of a slot that is being moved is on its way for about so long.
const TRY_AGAIN: Duration = Duration::from_millis(2);

pub struct Cluster {
    seeds: Seeds,
    timeout: Duration,
    voice: Voice,
    state: Mutex<State>,
    /// The map is out of date.
    news: Notify,
}

#[derive(Default)]
struct State {
    map: SlotMap,
    lines: HashMap<Primary, Arc<Line>>,
    /// Slots that a node said to be elsewhere since the map was read.
    moved: HashMap<u16, Primary>,
    /// The name of this gateway, once it has joined.
    member: Option<String>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the login.
        f.debug_struct("Cluster").field("lines", &self.state().lines).finish_non_exhaustive()
    }
}

impl Cluster {
    pub fn new(seeds: Seeds, timeout: Duration, voice: Voice) -> Self {
        Self { seeds, timeout, voice, state: Mutex::default(), news: Notify::new() }
    }

    /// Reads the map and connects to every primary, within `bound` each.
    pub async fn open(&self, bound: Duration) -> Result<(), StoreError> {
        self.read_map(bound).await?;
        // A primary that is down is its orgs' trouble only.
        if self.lines().iter().any(|line| line.health().is_ok()) { Ok(()) } else { self.health() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn lines(&self) -> Vec<Arc<Line>> {
        self.state().lines.values().cloned().collect()
    }

    pub fn health(&self) -> Result<(), StoreError> {
        let lines = self.lines();
        if lines.is_empty() {
            return Err(StoreError::Unreachable("no node of the Cluster has answered yet".to_owned()));
        }
        lines.iter().try_for_each(|line| line.health())
    }

    /// As the line counts them on which this gateway beats.
    pub fn gateways(&self) -> usize {
        self.lines().iter().map(|line| line.gateways()).max().unwrap_or(1)
    }

    pub fn join(&self, name: String) {
        self.state().member.get_or_insert(name);
        self.deal_beats();
    }

    /// Asks the node that has the slot. A slot may be on its way from one to another, with some keys here and some there:
    /// the call follows it for as long as one call may wait. What is sent elsewhere has done nothing here.
    pub async fn ask<T: FromRedisValue>(&self, slot: u16, asked: &Asked, bound: Duration) -> Result<T, StoreError> {
        let last = Instant::now() + bound;
        let (mut line, mut way) = (self.line(slot)?, Way::Usual);
        loop {
            let detour = match line.ask(asked, way, bound).await {
                Ok(reply) => return Ok(reply),
                Err(Unserved::Failed(error)) => return Err(error),
                Err(Unserved::Elsewhere(detour)) => detour,
            };
            if Instant::now() >= last {
                return Err(StoreError::Unreachable(format!("slot {slot} of the Cluster is being moved")));
            }
            (line, way) = match detour {
                Detour::Moved(to) => {
                    self.state().moved.insert(slot, to.clone());
                    self.news.notify_one();
                    (self.line_to(&to, bound).await?, Way::Usual)
                }
                Detour::Ask(to) => (self.line_to(&to, bound).await?, Way::Asking),
                Detour::TryAgain => {
                    sleep(TRY_AGAIN).await;
                    (self.line(slot)?, Way::Usual)
                }
            };
        }
    }

    pub fn line(&self, slot: u16) -> Result<Arc<Line>, StoreError> {
        let state = self.state();
        let primary = state.moved.get(&slot).or_else(|| state.map.primary(slot));
        let unserved = || StoreError::Unreachable(format!("no node of the Cluster serves slot {slot}"));
        primary.and_then(|primary| state.lines.get(primary)).cloned().ok_or_else(unserved)
    }

    /// The line to a node, which may be new.
    async fn line_to(&self, primary: &Primary, bound: Duration) -> Result<Arc<Line>, StoreError> {
        if let Some(known) = self.state().lines.get(primary) {
            return Ok(known.clone());
        }
        let address = Address::Node(Box::new(self.seeds.login.client(primary)?));
        let dialled = address.dial(bound).await;
        let line = Arc::new(Line::new(address, self.timeout, self.voice, dialled));
        let mut state = self.state();
        let kept = state.lines.entry(primary.clone()).or_insert_with(|| {
            tokio::spawn(line::watch(Arc::downgrade(&line)));
            line
        });
        Ok(kept.clone())
    }

    async fn read_map(&self, bound: Duration) -> Result<(), StoreError> {
        let map = self.ask_for_map(bound).await?;
        let mut primaries: Vec<Primary> = map.ranges().iter().map(|range| range.primary.clone()).collect();
        primaries.sort();
        primaries.dedup();
        for primary in &primaries {
            self.line_to(primary, bound).await?;
        }
        {
            let mut state = self.state();
            // A line that is left ends when its last call has.
            state.lines.retain(|primary, _| primaries.contains(primary));
            (state.map, state.moved) = (map, HashMap::new());
        }
        self.deal_beats();
        Ok(())
    }

    /// Of any node that answers: first those in use, then those that the configuration names.
    async fn ask_for_map(&self, bound: Duration) -> Result<SlotMap, StoreError> {
        let mut failed = StoreError::Unreachable("the Cluster has no node".to_owned());
        let in_use = self.lines();
        for line in in_use.iter().filter(|line| line.health().is_ok()) {
            match line.ask::<Value>(&Asked::Command(question()), Way::Usual, bound).await {
                Ok(reply) => return read(reply, line.host()),
                Err(Unserved::Failed(error)) => failed = error,
                Err(Unserved::Elsewhere(_)) => {}
            }
        }
        for seed in &self.seeds.clients {
            let mut connection = match address::dial(seed, bound).await {
                Ok(connection) => connection,
                Err(error) => {
                    failed = error;
                    continue;
                }
            };
            match timeout(bound, question().query_async::<Value>(&mut connection)).await {
                Ok(Ok(reply)) => return read(reply, address::host(seed)),
                Ok(Err(error)) if error.code().is_some() => {
                    return Err(StoreError::Refused(format!("it is no Cluster: {error}; write redis:// for one node")));
                }
                Ok(Err(error)) => failed = StoreError::Unreachable(error.to_string()),
                Err(_elapsed) => failed = StoreError::Timeout(bound),
            }
        }
        Err(failed)
    }

    /// Every line proves its server on a key of that server; the one that has the global slot beats for this gateway.
    fn deal_beats(&self) {
        let state = self.state();
        let shared = gateways_key(GLOBAL_TAG);
        let home = state.map.primary(slot_of(&shared));
        for (primary, line) in &state.lines {
            if home == Some(primary) && state.member.is_some() {
                line.beats(Beat { key: shared.clone(), name: state.member.clone() });
            } else if let Some(tag) = state.map.tag_of(primary) {
                line.beats(Beat { key: gateways_key(&tag), name: None });
            }
        }
    }
}

/// Keeps the map true until the Cluster is dropped.
pub async fn watch(cluster: Weak<Cluster>) {
    loop {
        let Some(inner) = cluster.upgrade() else { return };
        let wait = if inner.health().is_ok() { READ_EVERY } else { READ_WHILE_DOWN };
        // Whether it was its time or there is news.
        let _elapsed = timeout(wait, inner.news.notified()).await;
        if let Err(error) = inner.read_map(LONG).await {
            tracing::debug!(%error, "the map of the Cluster could not be read");
        }
        drop(inner);
        sleep(READ_AT_MOST_EVERY).await;
    }
}

fn question() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

fn read(reply: Value, asked: &str) -> Result<SlotMap, StoreError> {
    SlotMap::read(reply, asked).map_err(|error| StoreError::Unreadable(format!("CLUSTER SLOTS: {error}")))
}
