//! The one definition of a service-level objective and of the timings it judges.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Targets of a model: both must hold for a request to count as goodput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slo {
    pub ttft: Duration,
    pub tpot: Duration,
}

/// What a request took, seen at the gateway: `ttft` from the arrival of the request to the first upstream
/// byte (queueing included), `tpot` = (last - first) / (n - 1), absent for fewer than two tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    pub ttft: Option<Duration>,
    pub tpot: Option<Duration>,
    pub e2e: Duration,
}

impl Slo {
    /// A request without a first token missed; one token has no `tpot` to miss.
    pub fn met(&self, timing: &Timing) -> bool {
        timing.ttft.is_some_and(|ttft| ttft <= self.ttft) && timing.tpot.is_none_or(|tpot| tpot <= self.tpot)
    }
}
