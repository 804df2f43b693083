//! What a caller asks of the engine, already in tokens and numbers. HTTP fields and their checks live in `http`.

use crate::backend::SamplingParams;

/// One prompt and what to make of it. All choices share the prompt, which is computed once.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<u32>,
    /// `n`: how many continuations, each with its own draws.
    pub choices: u32,
    /// `None`: what fits in the context.
    pub max_tokens: Option<u32>,
    pub sampling: SamplingParams,
    /// `None`: drawn when the request is submitted.
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub stop_tokens: Vec<u32>,
    /// Go on after an end-of-generation token.
    pub ignore_eos: bool,
    /// Report the log-probability of each generated token and of this many most likely ones.
    pub logprobs: Option<u32>,
    /// Report log-probabilities of the prompt too. Reads nothing from the prefix cache.
    pub score_prompt: bool,
    /// Prefixes are shared only between requests of one salt.
    pub cache_salt: String,
}

impl Request {
    /// A greedy continuation of `prompt`, all else off.
    pub fn greedy(prompt: Vec<u32>, max_tokens: u32) -> Self {
        Self {
            prompt,
            choices: 1,
            max_tokens: Some(max_tokens),
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            seed: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            score_prompt: false,
            cache_salt: String::new(),
        }
    }
}

/// Why a request was not taken. Nothing of it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error(
        "This model's maximum context length is {context} tokens. However, you requested {} tokens ({prompt} in the \
         prompt, {max_tokens} for the completion). Shorten the prompt or lower max_tokens.",
        u64::from(*prompt) + u64::from(*max_tokens)
    )]
    ContextLength { context: u32, prompt: u32, max_tokens: u32 },
    #[error("token {token} is not in the vocabulary of {vocabulary} tokens")]
    UnknownToken { token: u32, vocabulary: u32 },
    #[error("{waiting} requests are waiting already; try again later")]
    Overloaded { waiting: u32 },
    #[error("the engine is shutting down")]
    Draining,
    #[error("the engine has stopped")]
    Stopped,
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-generation token, a stop token or a stop string.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The engine failed; the text so far is not an answer.
    Failed(String),
}
