//! Token counts as facts: what a call really used.

use serde::{Deserialize, Serialize};

/// Tokens used by one call, in the provider's own count. `cached` is the part of `prompt` read from a prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub prompt: u64,
    pub completion: u64,
    #[serde(default)]
    pub cached: u64,
}

impl Usage {
    /// Prompt plus completion tokens, saturating.
    pub fn total(&self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }
}

/// How a usage was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metered {
    /// The provider said so, an explicit zero included.
    Exact(Usage),
    /// Counted by us; the provider reported nothing. Marked `estimated` wherever it is shown.
    Estimated(Usage),
}

impl Metered {
    pub fn usage(&self) -> Usage {
        match self {
            Self::Exact(usage) | Self::Estimated(usage) => *usage,
        }
    }

    pub fn is_estimated(&self) -> bool {
        matches!(self, Self::Estimated(_))
    }
}
