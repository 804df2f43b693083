//! The rank of what two tokens merge into, while merges are still learned. Nearly every question is answered no, so a
//! small filter answers first.

/// The filter has this many bits to a pair, rounded up to a power of two.
const BITS_A_PAIR: usize = 8;
/// No merge: after all others.
pub(super) const NO_RANK: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Pair {
    left: u32,
    right: u32,
    rank: u32,
}

const FREE: Pair = Pair { left: 0, right: 0, rank: NO_RANK };

#[derive(Debug)]
pub(super) struct Pairs {
    filter: BloomFilter,
    /// Open addressing; a power of two, at most half full.
    slots: Vec<Pair>,
}

/// Says no for certain, or perhaps.
#[derive(Debug)]
pub(super) struct BloomFilter(Vec<u64>);

impl Pairs {
    pub(super) fn with_capacity(pairs: usize) -> Self {
        Self { filter: BloomFilter::new(pairs), slots: vec![FREE; (pairs * 2).next_power_of_two().max(2)] }
    }

    /// The pair must be new.
    pub(super) fn insert(&mut self, left: u32, right: u32, rank: u32) {
        self.filter.add(left, right);
        let mut at = self.start(left, right);
        while self.slots[at].rank != NO_RANK {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = Pair { left, right, rank };
    }

    /// Above all others if the two do not merge.
    pub(super) fn rank(&self, left: u32, right: u32) -> u32 {
        if !self.filter.may_hold(left, right) {
            return NO_RANK;
        }
        let mut at = self.start(left, right);
        loop {
            let pair = &self.slots[at];
            // A free one has no rank, which is the answer too.
            if pair.rank == NO_RANK || pair.left == left && pair.right == right {
                return pair.rank;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    fn start(&self, left: u32, right: u32) -> usize {
        (hash(left, right) >> 32) as usize & (self.slots.len() - 1)
    }
}

impl BloomFilter {
    pub(super) fn new(pairs: usize) -> Self {
        Self(vec![0; (pairs * BITS_A_PAIR / 64).next_power_of_two().max(1)])
    }

    pub(super) fn add(&mut self, left: u32, right: u32) {
        let (word, bit) = self.bit(left, right);
        self.0[word] |= bit;
    }

    #[inline]
    pub(super) fn may_hold(&self, left: u32, right: u32) -> bool {
        let (word, bit) = self.bit(left, right);
        self.0[word] & bit != 0
    }

    #[inline]
    fn bit(&self, left: u32, right: u32) -> (usize, u64) {
        let hash = hash(left, right);
        (hash as usize >> 6 & (self.0.len() - 1), 1 << (hash & 63))
    }
}

/// Both halves of the product, so that every bit of the hash has seen every bit of the pair.
#[inline]
fn hash(left: u32, right: u32) -> u64 {
    let pair = u64::from(left) << 32 | u64::from(right);
    let product = u128::from(pair ^ 0x2545_F491_4F6C_DD1D) * u128::from(0x9E37_79B9_7F4A_7C15_u64);
    (product as u64) ^ (product >> 64) as u64
}
