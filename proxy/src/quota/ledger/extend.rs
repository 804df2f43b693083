//! More output for a call that runs. Only the difference is taken: what the call holds already may have refilled since.

use std::sync::Arc;

use super::super::account::{Amounts, Kind, Slot};
use super::super::chain::Chain;
use super::super::lease::Hold;
use super::super::store::{Answer, Extension, Status};
use super::{Entry, Ledger, micros, starts};

impl Ledger {
    /// Takes `extension.more` at every level, or nothing at any. What the lease says about its call stays.
    pub fn extend(&mut self, extension: &Extension, now: f64) -> Answer {
        let Some((chain, mut hold)) = self.take_live(extension.id) else {
            let status = if self.leases.contains_key(&extension.id) { Status::Buried } else { Status::Absent };
            return Answer { status, now_us: now, due: false, levels: Vec::new() };
        };
        let starts = starts(&chain, now);
        let fits = self.takes(&chain, extension, &starts, now);
        if fits {
            self.hold_more(&chain, &mut hold, &extension.more, &starts, now);
            hold.deadline = hold.deadline.max(now + micros(extension.ttl));
        }
        self.leases.insert(extension.id, Entry::Live { chain: chain.clone(), hold });
        self.changed(extension.id);
        let status = if fits { Status::Done } else { Status::Full };
        Answer { due: false, ..self.answer(status, &chain, &starts, now) }
    }

    fn takes(&mut self, chain: &Chain, extension: &Extension, starts: &[f64], now: f64) -> bool {
        let places = self.places(chain);
        chain.limits.iter().enumerate().filter(|(_, entry)| entry.binds(extension.bind)).all(|(at, entry)| {
            let slot = self.accounts[places.accounts[entry.account]].slots[places.slots[at]].1;
            slot.advanced(&entry.terms, now, starts[at]).fits(&entry.terms, extension.more.of(entry.terms.unit))
        })
    }

    fn hold_more(&mut self, chain: &Arc<Chain>, hold: &mut Hold, more: &Amounts, starts: &[f64], now: f64) {
        let places = self.places(chain);
        self.come_forward(places, now);
        let mut epochs = hold.epochs.iter_mut();
        for (at, entry) in chain.limits.iter().enumerate() {
            let slot = &mut self.accounts[places.accounts[entry.account]].slots[places.slots[at]].1;
            let (here, more) = (slot.advanced(&entry.terms, now, starts[at]), more.of(entry.terms.unit));
            *slot = Slot { level: here.level + more, at: here.at };
            let epoch = if entry.terms.kind == Kind::Calendar { epochs.next() } else { None };
            // What is left of the hold in the end is of its last part, and comes back into the window that gave that.
            if let Some(epoch) = epoch.filter(|_| more != 0.0) {
                *epoch = slot.at;
            }
        }
        for &at in &places.accounts {
            self.accounts[at].totals.reserve(more.tokens());
        }
        hold.held.output += more.output;
        hold.held.nano_usd += more.nano_usd;
        if let Some(watch) = &mut self.watch {
            watch.accounts(&places.accounts);
        }
    }
}
