//! The one cost model of an engine replica, shared by bench, scaler, simulator and planner.

use serde::{Deserialize, Serialize};

/// Duration of one engine step, in microseconds:
/// `step0_us + us_per_prefill_token * prefill tokens + us_per_seq * sequences + us_per_kv_ktoken * context tokens / 1000`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepModel {
    pub step0_us: f64,
    pub us_per_prefill_token: f64,
    pub us_per_seq: f64,
    pub us_per_kv_ktoken: f64,
    pub kv_tokens: u64,
    pub max_seqs: u32,
}
