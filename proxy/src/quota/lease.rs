//! The lease: one call's hold on all its accounts, named before the store is asked.

use std::fmt;
use std::hash::Hasher;

use rand::RngCore;

use super::account::Amounts;

/// Made by the gateway before the call, so that a reserve that is repeated, late or unanswered leaves one hold or none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u128);

impl LeaseId {
    pub fn random() -> Self {
        let mut bytes = [0u8; 16];
        rand::rng().fill_bytes(&mut bytes);
        Self(u128::from_le_bytes(bytes))
    }

    pub fn parse(hex: &str) -> Option<Self> {
        (hex.len() == 32).then(|| u128::from_str_radix(hex, 16).ok()).flatten().map(Self)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({self})")
    }
}

/// What happens to a dispatched lease that nobody settles before its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnExpiry {
    /// Charge the last checkpoint: prompt plus what had been streamed.
    #[default]
    Charge,
    Refund,
}

/// The part of a lease that both stores keep beside its chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    pub dispatched: bool,
    /// Microseconds on the store's clock.
    pub deadline: f64,
    pub held: Amounts,
    /// Live: what expiry would charge. Expired: what expiry did charge.
    pub checkpoint: Amounts,
    /// Start of the admitting window for each calendar limit, in chain order.
    pub epochs: Vec<f64>,
}

impl Hold {
    /// What expiry charges: nothing before dispatch, whatever the policy.
    pub fn charge_at_expiry(&self, policy: OnExpiry) -> Amounts {
        match policy {
            OnExpiry::Charge if self.dispatched => self.checkpoint,
            _ => Amounts::default(),
        }
    }
}

/// Lease ids are random already.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = id as u64;
    }
}
