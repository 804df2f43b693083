//! The `usage` object of chat completions and completions.

use serde::{Deserialize, Serialize};

use crate::tokens::Usage;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireUsage {
    #[serde(default)]
    pub prompt_tokens: u64,
    #[serde(default)]
    pub completion_tokens: u64,
    #[serde(default)]
    pub total_tokens: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptDetails {
    #[serde(default)]
    pub cached_tokens: u64,
}

impl From<Usage> for WireUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt,
            completion_tokens: usage.completion,
            total_tokens: usage.total(),
            prompt_tokens_details: Some(PromptDetails { cached_tokens: usage.cached }),
        }
    }
}

impl From<&WireUsage> for Usage {
    fn from(wire: &WireUsage) -> Self {
        Self {
            prompt: wire.prompt_tokens,
            completion: wire.completion_tokens,
            cached: wire.prompt_tokens_details.as_ref().map_or(0, |details| details.cached_tokens),
        }
    }
}
