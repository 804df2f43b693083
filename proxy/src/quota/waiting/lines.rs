//! The calls of this process that wait, by queue, and which of them asks the store. No I/O here.
//!
//! In each queue one call is the scout: it asks often, so that its gateway hears of turns. The next in order is the scout
//! wherever it is one of ours. Whatever may have freed something here wakes the scouts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::{NET, SCOUT};
use crate::quota::chain::Chain;
use crate::quota::lease::LeaseId;
use crate::quota::stats::Waits;
use crate::quota::store::Spot;
use crate::quota::turns::GatewayId;

#[derive(Debug)]
pub struct Lines {
    /// This process, as the queues know it.
    pub gateway: GatewayId,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lines: HashMap<String, Line>,
    calls: usize,
    bytes: usize,
    /// Calls by the name of their tier.
    tiers: BTreeMap<String, u64>,
    waits: Waits,
}

#[derive(Debug)]
struct Line {
    scout: LeaseId,
    waiting: HashMap<LeaseId, Arc<Notify>>,
}

impl Line {
    /// A call of ours becomes the scout, and looks at once.
    fn send(&mut self, scout: LeaseId) {
        if let Some(news) = self.waiting.get(&scout) {
            self.scout = scout;
            news.notify_one();
        }
    }

    /// Who waits is never left without a scout.
    fn without(&mut self, id: LeaseId, next: Option<LeaseId>) {
        self.waiting.remove(&id);
        let heir = next.filter(|next| self.waiting.contains_key(next));
        let heir = heir.or_else(|| if self.scout == id { self.waiting.keys().next().copied() } else { None });
        if let Some(heir) = heir {
            self.send(heir);
        }
    }
}

impl Default for Lines {
    fn default() -> Self {
        Self { gateway: LeaseId::random().0, state: Mutex::default() }
    }
}

impl Lines {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on the call waits; `None` when as many do as may, in number or in bytes.
    pub fn stand(
        &self,
        chain: &Chain,
        queue: usize,
        id: LeaseId,
        bytes: usize,
        (most_calls, most_bytes): (usize, usize),
    ) -> Option<Standing<'_>> {
        let mut state = self.state();
        if state.calls >= most_calls || state.bytes.saturating_add(bytes) > most_bytes {
            return None;
        }
        let tier = if chain.tier.is_empty() { "none" } else { &chain.tier }.to_owned();
        state.calls += 1;
        state.bytes += bytes;
        *state.tiers.entry(tier.clone()).or_default() += 1;
        let (key, news) = (chain.queues[queue].key.clone(), Arc::new(Notify::new()));
        state.enter(&key, id, &news);
        Some(Standing { lines: self, key, id, news, bytes, tier, begin: Instant::now(), next: None })
    }

    /// Something of this chain's accounts may be free.
    pub fn wake(&self, chain: &Chain) {
        if chain.queues.is_empty() {
            return;
        }
        let mut state = self.state();
        for queue in &chain.queues {
            if let Some(line) = state.lines.get_mut(&queue.key) {
                line.send(line.scout);
            }
        }
    }

    /// Calls that wait, by tier, and how long those did that do no more.
    pub fn figures(&self) -> (Vec<(String, u64)>, Waits) {
        let state = self.state();
        (state.tiers.iter().map(|(tier, calls)| (tier.clone(), *calls)).collect(), state.waits.clone())
    }
}

impl State {
    fn enter(&mut self, key: &str, id: LeaseId, news: &Arc<Notify>) {
        let line = || Line { scout: id, waiting: HashMap::new() };
        self.lines.entry(key.to_owned()).or_insert_with(line).waiting.insert(id, news.clone());
    }

    fn leave(&mut self, key: &str, id: LeaseId, next: Option<LeaseId>) {
        let Some(line) = self.lines.get_mut(key) else { return };
        line.without(id, next);
        if line.waiting.is_empty() {
            self.lines.remove(key);
        }
    }
}

/// One call that waits, until it is dropped.
#[derive(Debug)]
pub struct Standing<'l> {
    lines: &'l Lines,
    key: String,
    id: LeaseId,
    news: Arc<Notify>,
    bytes: usize,
    tier: String,
    begin: Instant,
    /// Who is next after it.
    next: Option<LeaseId>,
}

impl Standing<'_> {
    /// What the store said of its queue. True if it is this call's turn, and only its need is in the way.
    pub fn heard(&mut self, chain: &Chain, spot: &Spot) -> bool {
        let mut state = self.lines.state();
        let key = &chain.queues[spot.queue].key;
        if *key != self.key {
            state.leave(&self.key, self.id, None);
            state.enter(key, self.id, &self.news);
            self.key.clone_from(key);
        }
        let mine = spot.next == Some(self.id);
        if let Some(line) = state.lines.get_mut(key) {
            match spot.next {
                Some(_) if mine => line.scout = self.id,
                Some(next) if next != line.scout => line.send(next),
                Some(_) | None => {}
            }
        }
        mine
    }

    pub fn had_turn(mut self, next: Option<LeaseId>) {
        self.next = next;
    }

    pub fn pause(&self) -> Duration {
        let state = self.lines.state();
        let scout = state.lines.get(&self.key).is_some_and(|line| line.scout == self.id);
        if scout { SCOUT } else { NET }
    }

    /// True if it was told to look before that.
    pub async fn news_within(&self, pause: Duration) -> bool {
        timeout(pause, self.news.notified()).await.is_ok()
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let mut state = self.lines.state();
        state.calls -= 1;
        state.waits.add(self.begin.elapsed());
        state.bytes -= self.bytes;
        if let Some(calls) = state.tiers.get_mut(&self.tier) {
            *calls -= 1;
        }
        state.leave(&self.key, self.id, self.next);
    }
}
