//! What is known of a call beside its hold, and when it left.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use wire::{Metered, access::Outcome};

use crate::quota::lengths::Length;

/// What a call may use beside what it holds.
#[derive(Default)]
pub struct Terms {
    /// Output tokens, by its own cap.
    pub worst: u64,
    pub choices: u64,
    /// Where holds of its like are learned, if they are.
    pub length: Option<Length>,
}

impl Terms {
    /// Of answers that came to their end, and of those that were stopped for their length: leaving them out would teach that
    /// answers are short.
    pub(super) fn learn(&self, outcome: Outcome, metered: &Metered) {
        if let Some(length) = &self.length
            && matches!(outcome, Outcome::Finished | Outcome::Stopped)
        {
            length.learn(metered.usage().completion, self.choices);
        }
    }
}

/// When the request of one attempt began to leave for its upstream, if it did: what was never asked costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Written(Arc<OnceLock<Instant>>);

impl Written {
    pub fn now(&self) {
        self.0.get_or_init(Instant::now);
    }

    pub(super) fn at(&self) -> Option<Instant> {
        self.0.get().copied()
    }
}
