//! `/load` v1: what an engine tells its gateways and its scaler.

use serde::{Deserialize, Serialize};

use crate::capacity::StepModel;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Changes at every start, so that counters of two lives are never subtracted.
    pub boot_id: String,
    pub ts_ms: u64,
    pub model: String,
    #[serde(default)]
    pub adapters: Vec<String>,
    pub running: u32,
    pub waiting: u32,
    /// Prompt tokens not yet computed, over all waiting requests.
    pub waiting_tokens: u64,
    pub kv_blocks: KvBlocks,
    pub block_size: u32,
    pub max_num_seqs: u32,
    pub draining: bool,
    #[serde(default)]
    pub step_model: Option<StepModel>,
}

/// Blocks of the KV pool. `cached` blocks hold a reusable prefix but no live sequence: they count as free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvBlocks {
    pub total: u32,
    pub used: u32,
    pub cached: u32,
}
