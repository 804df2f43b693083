//! How calls stand against others that ask for the same limit: some tiers have a part of it to themselves.

use std::sync::Arc;

/// A share in whole millionths, so that it can be compared and hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    pub const NONE: Self = Self(0);
    pub const WHOLE: Self = Self(1_000_000);

    /// To the nearest millionth; at most the whole.
    pub fn new(share: f64) -> Self {
        // `as` saturates, and takes what is no number for 0.
        Self((share * 1e6).round() as u32).min(Self::WHOLE)
    }

    pub fn of(self, amount: f64) -> f64 {
        amount * (f64::from(self.0) / 1e6)
    }

    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0)).min(Self::WHOLE)
    }
}

/// One tier, as the calls of its keys know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tier {
    pub name: String,
    /// 0 is the highest.
    pub rank: u8,
    /// The part of every limit that higher tiers have to themselves.
    pub kept: Share,
    /// Of the tokens granted to higher tiers, what each tier gets while its calls wait; by rank.
    pub shares: Arc<[Share]>,
}
