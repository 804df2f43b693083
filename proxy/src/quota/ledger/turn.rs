//! Reserves of calls that may wait: a turn is asked for, again and again, until it comes. `lua/turn.lua` does the same.

use std::sync::Arc;

use super::{Entry, Ledger, starts};
use crate::quota::account::Amounts;
use crate::quota::chain::Chain;
use crate::quota::lease::LeaseId;
use crate::quota::store::{Answer, Ask, Spot, Status, Turn, Turned};
use crate::quota::turns::{Ahead, Place, Turns};

impl Ledger {
    /// A ledger in whose queues the places of a gateway that says nothing outlast it for so long.
    pub fn with_life(life_us: f64) -> Self {
        Self { life_us, ..Self::default() }
    }

    /// Holds `ask.need` if it is the call's turn and it fits; else the call has a place in a queue from then on, or is
    /// refused: by a limit that does not queue, or by a queue that is full.
    pub fn turn(&mut self, chain: &Arc<Chain>, ask: &Ask, turn: &Turn, now: f64) -> Turned {
        let starts = starts(chain, now);
        match self.leases.get(&ask.id) {
            Some(Entry::Live { .. }) => return self.answer(Status::Done, chain, &starts, now).into(),
            Some(_) => return Answer { status: Status::Buried, now_us: now, due: false, levels: Vec::new() }.into(),
            None => {}
        }
        let until = now + turn.wait_us;
        let mut at = (0..chain.queues.len()).find(|&queue| self.turns(chain, queue).renew(ask.id, until, now));
        if let Some(queue) = at
            && self.turns(chain, queue).next(now) != Some(ask.id)
        {
            return self.waits(chain, ask, queue, &starts, now);
        }
        let blocked = self.blocked(chain, &ask.need, &starts, now);
        if blocked.iter().zip(&chain.limits).any(|(blocked, entry)| *blocked && entry.wait.is_none()) {
            if let Some(queue) = at {
                self.turns(chain, queue).leave(ask.id);
            }
            return self.answer(Status::Full, chain, &starts, now).into();
        }
        let since = if turn.since > 0.0 { turn.since } else { now };
        for queue in 0..chain.queues.len() {
            let account = chain.queues[queue].account;
            let full = blocked.iter().zip(&chain.limits).any(|(blocked, entry)| *blocked && entry.account == account);
            if at == Some(queue) {
                if full {
                    return self.waits(chain, ask, queue, &starts, now);
                }
                continue;
            }
            let passed = at.is_some_and(|at| queue < at);
            if !full && (passed || self.turns(chain, queue).is_empty()) {
                continue;
            }
            let outward = at.is_some_and(|at| queue > at);
            if let Some(at) = at {
                let turns = self.turns(chain, at);
                if outward { turns.serve(ask.id, &chain.shares) } else { turns.leave(ask.id) }
            }
            let depth = chain.queues[queue].depth;
            let turns = self.turns(chain, queue);
            if turns.depth(chain.rank) >= depth {
                turns.sweep(now);
            }
            if turns.depth(chain.rank) >= depth {
                let ahead = self.turns(chain, queue).ahead(chain.rank, chain.queues[queue].tenant, None);
                let spot = Some(Spot { queue, since, ahead, next: None });
                return Turned { answer: self.answer(Status::Crowded, chain, &starts, now), spot };
            }
            let tenant = chain.queues[queue].tenant;
            let (rank, cost) = (chain.rank, ask.need.tokens());
            let place = Place { rank, tenant, since, until, cost, gateway: turn.gateway };
            self.turns(chain, queue).enter(ask.id, place, now);
            at = Some(queue);
            if full || self.turns(chain, queue).next(now) != Some(ask.id) {
                return self.waits(chain, ask, queue, &starts, now);
            }
        }
        self.hold(chain, ask, &starts, now);
        let spot = at.map(|queue| {
            let turns = self.turns(chain, queue);
            turns.serve(ask.id, &chain.shares);
            Spot { queue, since, ahead: Ahead::default(), next: turns.next(now) }
        });
        Turned { answer: self.answer(Status::Done, chain, &starts, now), spot }
    }

    /// Gives up the places of a call that nobody waits for any more.
    pub fn leave(&mut self, chain: &Chain, id: LeaseId) {
        for queue in 0..chain.queues.len() {
            self.turns(chain, queue).leave(id);
        }
    }

    /// A call that had its turn in this queue used `change` tokens more than it held there.
    pub fn correct(&mut self, chain: &Chain, queue: usize, change: f64) {
        let (rank, tenant) = (chain.rank, chain.queues[queue].tenant);
        self.turns(chain, queue).correct(rank, tenant, change);
    }

    /// The queue with this key.
    pub fn queue(&self, key: &str) -> Option<&Turns> {
        self.turns.get(key)
    }

    fn turns(&mut self, chain: &Chain, queue: usize) -> &mut Turns {
        let key = &chain.queues[queue].key;
        if !self.turns.contains_key(key) {
            self.turns.insert(key.clone(), Turns::new(self.life_us));
        }
        self.turns.get_mut(key).expect("invariant: it has just been made")
    }

    fn waits(&mut self, chain: &Arc<Chain>, ask: &Ask, queue: usize, starts: &[f64], now: f64) -> Turned {
        let tenant = chain.queues[queue].tenant;
        let turns = self.turns(chain, queue);
        let since = turns.since(ask.id).unwrap_or(now);
        let ahead = turns.ahead(chain.rank, tenant, Some(ask.id));
        let next = turns.next(now);
        let spot = Some(Spot { queue, since, ahead, next });
        Turned { answer: self.answer(Status::Queued, chain, starts, now), spot }
    }

    /// Per limit whether `need` does not fit.
    fn blocked(&mut self, chain: &Chain, need: &Amounts, starts: &[f64], now: f64) -> Vec<bool> {
        let places = self.places(chain);
        let blocked = |(at, entry): (usize, &crate::quota::chain::ChainLimit)| {
            let slot = self.accounts[places.accounts[entry.account]].slots[places.slots[at]].1;
            !slot.advanced(&entry.terms, now, starts[at]).fits(&entry.terms, need.of(entry.terms.unit))
        };
        chain.limits.iter().enumerate().map(blocked).collect()
    }
}

impl From<Answer> for Turned {
    fn from(answer: Answer) -> Self {
        Self { answer, spot: None }
    }
}
