//! The queue of one account as a plain value: who is next. Time is an argument, and the Lua scripts are held against it
//! with random histories (`lua/line.lua` does the same).
//!
//! Tiers go in order; a lower one that waits is owed its share of the tokens that go to higher ones, and is next once
//! that pays for its first call. Within a tier the tenant with the fewest served tokens is next (Virtual Token Counter,
//! Sheng et al., OSDI 2024): one that comes to wait begins no lower than those that wait, and what a call used is put
//! right when it ends. A tenant's calls go in order of arrival. Nobody passes a call that is next and does not fit.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::lease::LeaseId;
use super::tier::Share;

/// Microseconds between two looks at all places.
const SWEEP_US: f64 = 1e6;

/// A child of the account whose queue this is; all zeros where nobody is told apart.
pub type Tenant = [u8; 8];
pub type GatewayId = u128;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub rank: u8,
    pub tenant: Tenant,
    /// Microseconds on the store's clock at which the call came to its first queue.
    pub since: f64,
    /// After this nobody waits here any more.
    pub until: f64,
    /// Tokens that the call will hold.
    pub cost: f64,
    pub gateway: GatewayId,
}

/// What is served before a place, as far as it can be told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ahead {
    pub calls: f64,
    pub tokens: f64,
}

/// Rank, tenant, arrival and id: all places in the order of their tenants' calls.
type Member = (u8, Tenant, u64, LeaseId);

#[derive(Debug)]
pub struct Turns {
    /// Microseconds that a gateway's places outlast its last word.
    life_us: f64,
    tiers: BTreeMap<u8, Line>,
    order: BTreeSet<Member>,
    places: HashMap<LeaseId, Place>,
    heard: HashMap<GatewayId, f64>,
    /// When all places were last looked at.
    swept: f64,
}

/// One tier.
#[derive(Debug, Default)]
struct Line {
    /// Tokens that it may have before higher tiers.
    owed: f64,
    /// Tokens that all its places ask for.
    total: f64,
    /// Counter of the tenant that was the last to leave.
    last: f64,
    /// Served tokens of tenants that wait, and of those that do not and are ahead of them.
    waiting: BTreeMap<Tenant, f64>,
    idle: BTreeMap<Tenant, f64>,
}

impl Line {
    fn floor(&self) -> f64 {
        self.waiting.values().copied().reduce(f64::min).unwrap_or(self.last)
    }

    fn least_served(&self) -> Option<Tenant> {
        let least = |a: (&Tenant, &f64), b: (&Tenant, &f64)| (*a.1, a.0) <= (*b.1, b.0);
        let (tenant, _) = self.waiting.iter().reduce(|a, b| if least(a, b) { a } else { b })?;
        Some(*tenant)
    }
}

impl Turns {
    pub fn new(life_us: f64) -> Self {
        let (tiers, order) = (BTreeMap::new(), BTreeSet::new());
        Self { life_us, tiers, order, places: HashMap::new(), heard: HashMap::new(), swept: f64::NEG_INFINITY }
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub fn since(&self, id: LeaseId) -> Option<f64> {
        self.places.get(&id).map(|place| place.since)
    }

    /// Who asks waits, and its gateway is alive. False if it has no place here.
    pub fn renew(&mut self, id: LeaseId, until: f64, now: f64) -> bool {
        let Some(place) = self.places.get_mut(&id) else { return false };
        place.until = until;
        self.heard.insert(place.gateway, now);
        true
    }

    /// Calls of one tier that wait.
    pub fn depth(&self, rank: u8) -> usize {
        self.order
            .range((rank, Tenant::default(), 0, LeaseId(0))..=(rank, [255; 8], u64::MAX, LeaseId(u128::MAX)))
            .count()
    }

    pub fn enter(&mut self, id: LeaseId, place: Place, now: f64) {
        self.heard.insert(place.gateway, now);
        let line = self.tiers.entry(place.rank).or_default();
        if !line.waiting.contains_key(&place.tenant) {
            let floor = line.floor();
            // Those that are not ahead of anybody are as good as new.
            line.idle.retain(|_, served| *served > floor);
            let served = line.idle.remove(&place.tenant).unwrap_or(floor);
            line.waiting.insert(place.tenant, served);
        }
        line.total += place.cost;
        self.order.insert(member(&place, id));
        self.places.insert(id, place);
    }

    /// Gives up a place without a turn.
    pub fn leave(&mut self, id: LeaseId) {
        let Some(place) = self.places.remove(&id) else { return };
        self.order.remove(&member(&place, id));
        let Some(line) = self.tiers.get_mut(&place.rank) else { return };
        line.total -= place.cost;
        if first(&self.order, place.rank, place.tenant).is_none() {
            line.last = line.waiting.remove(&place.tenant).unwrap_or_default();
            line.idle.insert(place.tenant, line.last);
        }
        if line.waiting.is_empty() {
            line.owed = 0.0;
        }
    }

    /// The turn of a call that was next. `shares`: of granted tokens, per rank.
    pub fn serve(&mut self, id: LeaseId, shares: &[Share]) {
        let Some(&Place { rank, tenant, cost, .. }) = self.places.get(&id) else { return };
        let passed = self.tiers.range(..rank).any(|(_, line)| !line.waiting.is_empty());
        for (&lower, line) in self.tiers.range_mut(rank..) {
            if lower == rank {
                *line.waiting.entry(tenant).or_default() += cost;
                line.owed -= if passed { cost } else { 0.0 };
            } else if !line.waiting.is_empty() {
                line.owed += shares.get(usize::from(lower)).map_or(0.0, |share| share.of(cost));
            }
        }
        self.leave(id);
    }

    /// A call that had its turn here used `change` more tokens than it held, or fewer.
    pub fn correct(&mut self, rank: u8, tenant: Tenant, change: f64) {
        let Some(line) = self.tiers.get_mut(&rank) else { return };
        // One that is in neither was not ahead of anybody, and is less so now.
        if let Some(served) = line.waiting.get_mut(&tenant).or(line.idle.get_mut(&tenant)) {
            *served += change;
        }
    }

    /// Whose turn it is. Places whose holder is gone are given up on the way.
    pub fn next(&mut self, now: f64) -> Option<LeaseId> {
        let ranks: Vec<u8> = self.tiers.keys().copied().collect();
        let mut next = None;
        for rank in ranks {
            let Some((id, cost)) = self.head(rank, now) else { continue };
            if next.is_none() {
                next = Some(id);
            } else if self.tiers[&rank].owed >= cost {
                return Some(id);
            }
        }
        next
    }

    fn head(&mut self, rank: u8, now: f64) -> Option<(LeaseId, f64)> {
        loop {
            let tenant = self.tiers.get(&rank)?.least_served()?;
            let id = first(&self.order, rank, tenant)?;
            let place = self.places.get(&id)?;
            if self.counts(place, now) {
                return Some((id, place.cost));
            }
            self.leave(id);
        }
    }

    /// Its call may still wait, and its gateway was heard lately.
    fn counts(&self, place: &Place, now: f64) -> bool {
        let heard = self.heard.get(&place.gateway).copied().unwrap_or(f64::NEG_INFINITY);
        now <= place.until && now - heard <= self.life_us
    }

    /// Gives up all places that do not count: of a queue that is full of them no call would ever come to the head, where
    /// they are given up one by one. Once a second at most, however many calls are turned away.
    pub fn sweep(&mut self, now: f64) {
        if now - self.swept < SWEEP_US {
            return;
        }
        self.swept = now;
        let all: Vec<LeaseId> = self.order.iter().map(|(.., id)| *id).collect();
        for id in all {
            if !self.places.get(&id).is_some_and(|place| self.counts(place, now)) {
                self.leave(id);
            }
        }
    }

    /// All of higher tiers; of its own as many calls of each tenant as its own tenant has before it, and one.
    pub fn ahead(&self, rank: u8, tenant: Tenant, before: Option<LeaseId>) -> Ahead {
        let mut ahead = Ahead::default();
        for (&higher, line) in self.tiers.range(..rank) {
            ahead.calls += self.depth(higher) as f64;
            ahead.tokens += line.total;
        }
        let Some(line) = self.tiers.get(&rank) else { return ahead };
        let end = before.and_then(|id| Some(member(self.places.get(&id)?, id)));
        let end = end.unwrap_or((rank, tenant, u64::MAX, LeaseId(u128::MAX)));
        let own = self.order.range((rank, tenant, 0, LeaseId(0))..end).count() as f64;
        let others = line.waiting.keys().filter(|other| **other != tenant).count() as f64;
        let all = self.depth(rank) as f64 - if before.is_some() { 1.0 } else { 0.0 };
        let calls = (own + others * (own + 1.0)).min(all);
        if all > 0.0 {
            let cost = before.and_then(|id| self.places.get(&id)).map_or(0.0, |place| place.cost);
            ahead.calls += calls;
            ahead.tokens += (line.total - cost) * calls / all;
        }
        ahead
    }
}

fn member(place: &Place, id: LeaseId) -> Member {
    // The bits of positive doubles are in their order.
    (place.rank, place.tenant, place.since.to_bits(), id)
}

fn first(order: &BTreeSet<Member>, rank: u8, tenant: Tenant) -> Option<LeaseId> {
    let range = (rank, tenant, 0, LeaseId(0))..=(rank, tenant, u64::MAX, LeaseId(u128::MAX));
    order.range(range).next().map(|(.., id)| *id)
}

#[cfg(test)]
mod tests;
