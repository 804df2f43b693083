//! The seam between the engine's core (pure policy over plain data) and whatever computes the model.
//! The core decides who runs, when, in which KV blocks and with which sampling parameters; a backend executes.
//! Logits never cross this seam.

use std::ops::Range;

/// Positions per KV block, in every backend.
pub const BLOCK_SIZE: u32 = 16;

/// One step computes `rows` for several sequences at once; at most two tickets are in flight.
pub trait Backend: Send {
    /// What the core must know of the model behind this backend.
    fn spec(&self) -> &Spec;

    /// Starts one step. Rows of one sequence are contiguous and in ascending position.
    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, Error>;

    /// Blocks until the step is done. Tickets are waited for in the order they were submitted, each once.
    fn wait(&mut self, ticket: Ticket) -> Result<StepOut, Error>;

    /// Copies whole KV blocks (a fork that writes); takes effect before the next submitted step.
    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<(), Error>;
}

/// The facts about a loaded model that scheduling, KV bookkeeping and the API need.
#[derive(Clone, Debug)]
pub struct Spec {
    pub vocab_size: u32,
    /// Positions the model was trained for; the core serves at most this many per sequence.
    pub context_length: u32,
    pub kv: KvLayout,
    /// Names the arithmetic (weights, activations, KV type): KV blocks are only shared within one id.
    pub numerics_id: String,
    /// SHA-256 or an equivalent stable digest of the model, part of every block key.
    pub model_digest: [u8; 32],
}

/// One page pool, cut into blocks of equal bytes. Layers form groups of equal layer count, so that one block
/// holds [`BLOCK_SIZE`] positions of every layer of one group (Gemma 3 270M: 6 groups of 3, SmolLM2: 1 of 30).
#[derive(Clone, Debug)]
pub struct KvLayout {
    pub groups: Vec<KvGroup>,
    pub total_blocks: u32,
    pub bytes_per_block: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    pub layers: Vec<u32>,
    /// Sliding window in positions; `None` = every earlier position is seen. A query at position p of a window
    /// group sees positions p - window + 1 ..= p.
    pub window: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Marks a table entry whose block fell out of the window: never read, never written.
    pub const NONE: Self = Self(u32::MAX);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    pub from: BlockId,
    pub to: BlockId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// Ragged plain data: everything one step needs.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    pub rows: Vec<Row>,
    pub seqs: Vec<SeqPlan>,
    /// The rows that need the output head, in ascending `row`; all others skip it.
    pub samples: Vec<SamplePlan>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub token: RowToken,
    /// Absolute position in its sequence. Its K and V go to slot `position % 16` of block
    /// `table[position / 16]`, in every group.
    pub position: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowToken {
    Id(u32),
    /// The token sampled as `samples[sample]` of an earlier, perhaps unfinished, step.
    FromSample {
        ticket: Ticket,
        sample: u32,
    },
}

#[derive(Clone, Debug)]
pub struct SeqPlan {
    /// Its rows in [`StepPlan::rows`].
    pub rows: Range<u32>,
    /// One block table per KV group, each covering positions `0 ..= last row's position`.
    pub tables: Vec<Vec<BlockId>>,
}

/// One row through the output head. `token` of the result is sampled by
/// logit_bias, penalties, mask, temperature, top_k, top_p, min_p, draw, in this order; its definition is the
/// pure function in `sampler`. Reported log-probabilities are the log-softmax of the raw logits.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplePlan {
    pub row: u32,
    pub params: SamplingParams,
    /// The draw is `philox(seed, choice, position of the token to be sampled)`: it depends on nothing else.
    pub seed: u64,
    pub choice: u32,
    /// Report the log-probability of the chosen token and of this many most likely ones (ties: lower id first).
    pub top_logprobs: Option<u32>,
    /// Report the log-probability of this given token too (prompt scoring).
    pub score: Option<u32>,
    /// Tokens so far and how often, for the penalties; empty when no penalty is set.
    pub seen: Vec<SeenToken>,
    /// One bit per vocabulary entry, 1 = allowed; `None` = all allowed.
    pub mask: Option<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenToken {
    pub token: u32,
    /// Times generated; presence and frequency penalties count these only.
    pub output: u32,
    /// Times in the prompt; the repetition penalty counts both.
    pub prompt: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 = greedy: the highest logit after bias, penalties and mask, ties to the lower id.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub min_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// 1 = off.
    pub repetition_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
        }
    }
}

/// Results in the order of [`StepPlan::samples`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOut {
    pub samples: Vec<Sampled>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub token: u32,
    /// Present when [`SamplePlan::top_logprobs`] asked for it.
    pub logprob: Option<f32>,
    /// Most likely first, ties to the lower id; natural log over the full vocabulary.
    pub top: Vec<(u32, f32)>,
    /// Log-probability of [`SamplePlan::score`].
    pub score: Option<f32>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the device failed: {0}")]
    Device(String),
    #[error("invalid plan: {0}")]
    Plan(String),
}
