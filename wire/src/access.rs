//! The JSON access log, version 1: one line per authenticated call, written by the gateway when the call's
//! reservation resolves. `quota replay` and `router train` read it, so fields are only ever added.

use serde::{Deserialize, Serialize};

use crate::tokens::Usage;

pub const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Always [`VERSION`].
    pub v: u32,
    /// Arrival of the request, milliseconds since the Unix epoch.
    pub ts_ms: u64,
    pub request_id: String,
    pub who: Who,
    /// The name the client asked for.
    pub model: String,
    /// The model that answered, once one was chosen.
    pub served_model: Option<String>,
    pub upstream: Option<String>,
    pub endpoint: String,
    pub stream: bool,
    pub status: u16,
    /// Why the call ended as it did, e.g. `finished`, `refused`, `client_disconnected`, `upstream_failed`.
    pub decision: Decision,
    pub demand: Option<Demand>,
    pub usage: Option<Usage>,
    /// The usage was counted by the gateway, not reported by the provider.
    pub estimated: bool,
    pub timing: Timing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    pub org: Option<String>,
    pub app: Option<String>,
    pub user: Option<String>,
    pub tier: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub outcome: Outcome,
    /// For a refusal or a stop: the level and the limit that bound, e.g. `org` and `tokens/minute`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Why this model or upstream was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Shadow limits that would have refused the call, which ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow: Vec<Binding>,
}

/// A limit by its level and its name, e.g. `org` and `tokens/minute`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    pub level: String,
    pub limit: String,
}

impl Decision {
    pub fn new(outcome: Outcome) -> Self {
        Self { outcome, level: None, limit: None, route: None, shadow: Vec::new() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Finished,
    Refused,
    /// Malformed, unknown model, too large: the caller's fault, nothing was held.
    Invalid,
    ClientDisconnected,
    /// Failed before the first byte went to the client.
    UpstreamFailed,
    /// Died in the middle of a stream.
    UpstreamDied,
    /// A stream that was ended because a budget with `overrun: stop` was spent; its level and limit are in the decision.
    Stopped,
    StoreUnavailable,
    Overloaded,
}

/// What was held before the call was admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    pub prompt: u64,
    /// All that the call may use.
    pub max_output: u64,
    /// What was held of it, where that was less: `hold: calibrated`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_output: Option<u64>,
    /// Of what was held.
    pub nano_usd: u64,
}

/// Milliseconds, fractional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    pub ttft_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
    pub e2e_ms: f64,
    /// Time spent in the gateway itself before the request went upstream.
    pub overhead_ms: f64,
    /// Time that the call waited for its turn in a queue; part of `e2e_ms`, not of `overhead_ms`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub queued_ms: f64,
}

fn is_zero(ms: &f64) -> bool {
    *ms == 0.0
}
