//! The slots of one account, and which of them are given up: those of limits that nobody asks about any more. Pure;
//! `reorder` in `lua/common.lua` does the same. What a slot counts is the part of `account`.

use std::cmp::Reverse;

use super::account::{LimitId, Slot, Totals};

/// Slots that an account can hold besides those that say nothing: Redis counts them in a byte.
const MOST: usize = 255;

/// A slot that was not touched for so long is forgotten when another chain comes to its account. A slot does not say
/// what kind of limit it counts, so one time must do for all: three months, after which a monthly window has been over
/// for two, as long as an idle account keeps it, and a bucket has refilled. Older debt is forgiven with it.
const DORMANT_US: f64 = 92.0 * 86400e6;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    pub totals: Totals,
    /// Chains know them by index, so none is ever removed: one that is given up becomes as good as new.
    pub slots: Vec<(LimitId, Slot)>,
}

impl Account {
    /// Where the slot of this limit is; it is made if need be.
    pub fn place(&mut self, id: LimitId) -> usize {
        self.slots.iter().position(|(known, _)| *known == id).unwrap_or_else(|| {
            self.slots.push((id, Slot::default()));
            self.slots.len() - 1
        })
    }

    /// Gives up slots of others than `own` (by index) that are dormant, and, while more than [`MOST`] say something,
    /// those untouched for longest. Without a time are lifetime limits, whose use no window gives back, so they go last,
    /// and concurrency in flight, which looks the same.
    pub fn make_room(&mut self, own: &[usize], now: f64) {
        let mut is_own = vec![false; self.slots.len()];
        for &at in own {
            is_own[at] = true;
        }
        let mut others: Vec<usize> = Vec::new();
        for (at, (_, slot)) in self.slots.iter_mut().enumerate().filter(|(at, _)| !is_own[*at]) {
            if slot.is_dormant(now) {
                *slot = Slot::default();
            } else if slot.level != 0.0 {
                others.push(at);
            }
        }
        let room = MOST.saturating_sub(own.len());
        if others.len() > room {
            others.sort_unstable_by_key(|&at| self.slots[at].1.outlasts(self.slots[at].0));
            for &at in &others[room..] {
                self.slots[at].1 = Slot::default();
            }
        }
    }
}

impl Slot {
    fn is_dormant(self, now: f64) -> bool {
        self.at > 0.0 && now - self.at > DORMANT_US
    }

    /// Sorts what lasts longest first: without a time, then the latest, then by id. Times are whole and positive.
    fn outlasts(self, id: LimitId) -> (bool, Reverse<u64>, LimitId) {
        (self.at != 0.0, Reverse(self.at as u64), id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: f64 = 86400e6;
    const NOW: f64 = 20_000.0 * DAY;

    /// Slots by the first byte of their id, the days since they were touched (0: no time), and their level.
    fn account(slots: &[(u8, f64, f64)]) -> Account {
        let slot = |&(id, days, level): &(u8, f64, f64)| {
            let at = if days == 0.0 { 0.0 } else { NOW - days * DAY };
            ([id; 8], Slot { level, at })
        };
        Account { totals: Totals::default(), slots: slots.iter().map(slot).collect() }
    }

    fn kept(account: &Account) -> Vec<u8> {
        account.slots.iter().filter(|(_, slot)| slot.level != 0.0).map(|(id, _)| id[0]).collect()
    }

    #[test]
    fn dormant_slots_of_others_are_forgotten_and_nothing_else() {
        let mut account = account(&[(1, 100.0, 5.0), (2, 100.0, 5.0), (3, 91.0, 5.0), (4, 0.0, 5.0), (5, -9.0, 5.0)]);
        account.make_room(&[0], NOW);
        assert_eq!(
            kept(&account),
            [1, 3, 4, 5],
            "one's own, the touched, the timeless and those of a clock ahead stay"
        );
        assert_eq!(account.slots[1].1, Slot::default());
    }

    #[test]
    fn of_too_many_the_stalest_go_and_the_timeless_last() {
        let mut slots: Vec<(u8, f64, f64)> = (0..=255).map(|id| (id, 1.0 + f64::from(id) / 10.0, 1.0)).collect();
        slots[9].1 = 0.0;
        let mut full = account(&slots);
        full.make_room(&[255], NOW);
        assert_eq!(kept(&full), [(0..254).collect(), vec![255]].concat(), "one of 255 others had to go");
        let own: Vec<usize> = (1..=254).filter(|id| *id != 9).collect();
        full.make_room(&own, NOW);
        assert_eq!(kept(&full), (0..254).collect::<Vec<u8>>(), "of 0, 9 and 255 two had room: the late, the timeless");
    }

    #[test]
    fn what_says_nothing_takes_no_room() {
        let mut slots: Vec<(u8, f64, f64)> = (0..=255).map(|id| (id, 2.0, 0.0)).collect();
        slots[7] = (7, 80.0, 1.0);
        let mut account = account(&slots);
        account.make_room(&(8..256).collect::<Vec<usize>>(), NOW);
        assert_eq!(kept(&account), [7]);
    }

    #[test]
    fn slots_of_one_time_go_by_id() {
        let mut account = account(&(0..=255).rev().map(|id| (id, 3.0, 1.0)).collect::<Vec<_>>());
        account.make_room(&[250, 251], NOW);
        // Own are the ids 5 and 4; of the 254 others the largest has no room.
        assert_eq!(kept(&account), (0..255).rev().collect::<Vec<u8>>());
    }
}
