//! The rank of what two tokens merge into, for reading. A small filter answers first, since nearly every answer is no;
//! behind it each token has a small table of those it merges with, short tokens' tables close together.

use super::Token;
use super::pairs::{BloomFilter, NO_RANK};

#[derive(Clone, Copy, Debug)]
struct Join {
    right: u32,
    rank: u32,
}

const FREE: Join = Join { right: 0, rank: NO_RANK };

/// Of one left token: where its table begins and how long it is, a power of two or nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Table {
    start: u32,
    slots: u32,
}

#[derive(Debug)]
pub(super) struct Joins {
    filter: BloomFilter,
    tables: Vec<Table>,
    joins: Vec<Join>,
}

impl Joins {
    /// Of all merged tokens, by their parts.
    pub(super) fn new(tokens: usize, merged: &[Token]) -> Self {
        let mut tables = vec![Table::default(); tokens];
        merged.iter().for_each(|token| tables[token.left as usize].slots += 1);
        let mut start = 0;
        for table in &mut tables {
            // At most three quarters full, but for the smallest.
            let slots = if table.slots < 3 { table.slots } else { table.slots * 4 / 3 };
            *table = Table { start, slots: if slots == 0 { 0 } else { slots.next_power_of_two() } };
            start += table.slots;
        }
        let filter = BloomFilter::new(merged.len());
        let mut joins = Self { filter, tables, joins: vec![FREE; start as usize] };
        merged.iter().for_each(|token| joins.insert(token));
        joins
    }

    fn insert(&mut self, token: &Token) {
        let Token { left, right, rank, .. } = *token;
        let table = self.tables[left as usize];
        let free = table.places(right).find(|at| self.joins[*at].rank == NO_RANK);
        if let Some(at) = free {
            self.joins[at] = Join { right, rank };
            self.filter.add(left, right);
        }
    }

    /// Above all others if the two do not merge.
    #[inline]
    pub(super) fn rank(&self, left: u32, right: u32) -> u32 {
        if !self.filter.may_hold(left, right) {
            return NO_RANK;
        }
        for at in self.tables[left as usize].places(right) {
            let join = self.joins[at];
            // A free place has no rank, which is the answer too.
            if join.right == right || join.rank == NO_RANK {
                return join.rank;
            }
        }
        NO_RANK
    }
}

impl Table {
    /// Where to look, first places first.
    #[inline]
    fn places(self, right: u32) -> impl Iterator<Item = usize> {
        let mask = self.slots.wrapping_sub(1);
        let first = (u64::from(right).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
        (0..self.slots).map(move |step| (self.start + (first.wrapping_add(step) & mask)) as usize)
    }
}
