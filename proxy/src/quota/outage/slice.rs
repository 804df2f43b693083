//! What this gateway may spend of one limit while the store is down: plain arithmetic, no clocks and no locks.
//!
//! A slice is an allowance to overshoot, not a part set aside: while the store answers it limits nothing. It does not
//! refill during an outage, and what was spent of it stays spent until the accounts have been charged for it.

use crate::quota::rule::{Level, Unit};

#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    pub level: Level,
    pub unit: Unit,
    /// What was left of the limit when the store last spoke of it.
    seen: Option<f64>,
    spent: f64,
}

impl Slice {
    pub fn new(level: Level, unit: Unit) -> Self {
        Self { level, unit, seen: None, spent: 0.0 }
    }

    pub fn saw(&mut self, left: f64) {
        self.seen = Some(left.max(0.0));
    }

    pub fn spent(&self) -> f64 {
        self.spent
    }

    /// The least of what was last seen to be left and this gateway's part of `share * limit`. All `gateways` together
    /// never exceed the share, since each part is rounded down.
    pub fn allowance(&self, share: f64, limit: f64, gateways: usize) -> f64 {
        let part = (share * limit / gateways.max(1) as f64).floor();
        self.seen.map_or(part, |seen| part.min(seen))
    }

    pub fn fits(&self, need: f64, allowance: f64) -> bool {
        need == 0.0 || self.spent + need <= allowance
    }

    pub fn spend(&mut self, need: f64) {
        self.spent += need;
    }

    /// A call ended: its worst case gives way to what it used.
    pub fn ended(&mut self, need: f64, used: f64) {
        self.spent = (self.spent + used - need).max(0.0);
    }

    /// The account has been charged, so the same use counts there from now on.
    pub fn charged(&mut self, used: f64) {
        self.spent = (self.spent - used).max(0.0);
        self.seen = self.seen.map(|seen| (seen - used).max(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice() -> Slice {
        Slice::new(Level::Org, Unit::Tokens)
    }

    #[test]
    fn the_parts_of_all_gateways_never_exceed_the_share() {
        for (share, limit) in [(0.05, 1000.0), (0.05, 999.0), (1.0, 7.0), (0.29, 100.0), (0.1, 3.0), (0.7, 1e15)] {
            for gateways in 1..=9 {
                let part = slice().allowance(share, limit, gateways);
                assert_eq!(part.fract(), 0.0);
                assert!(part * gateways as f64 <= share * limit, "{share} of {limit} over {gateways}: {part}");
            }
        }
        assert_eq!(slice().allowance(0.05, 1000.0, 2), 25.0);
        assert_eq!(slice().allowance(0.05, 1000.0, 0), 50.0, "this gateway at least is one");
    }

    #[test]
    fn a_part_below_one_unit_admits_nothing() {
        let slice = slice();
        let allowance = slice.allowance(0.05, 10.0, 1);
        assert!(!slice.fits(1.0, allowance) && slice.fits(0.0, allowance));
    }

    #[test]
    fn what_was_seen_to_be_left_bounds_the_allowance() {
        let mut slice = slice();
        slice.saw(12.0);
        assert_eq!(slice.allowance(0.05, 1000.0, 1), 12.0);
        slice.saw(-40.0);
        assert_eq!(slice.allowance(0.05, 1000.0, 1), 0.0, "an account in debt has nothing left");
    }

    #[test]
    fn spending_lasts_until_it_is_charged() {
        let mut slice = slice();
        slice.saw(100.0);
        slice.spend(40.0);
        slice.ended(40.0, 30.0);
        assert!(slice.fits(20.0, 50.0) && !slice.fits(21.0, 50.0));
        slice.charged(30.0);
        assert_eq!((slice.spent(), slice.allowance(0.5, 1000.0, 1)), (0.0, 70.0));
    }
}
