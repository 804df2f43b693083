//! Drives a backend with step plans directly: no scheduler, no HTTP. Every sequence owns its own blocks.

use std::path::PathBuf;

use engine::backend::{
    BLOCK_SIZE, Backend, BlockId, Row, RowToken, SamplePlan, Sampled, SamplingParams, SeqPlan, StepPlan,
};
use engine::cpu::{CpuBackend, CpuOptions};

pub const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// A real model file. Its absence is a failure: a test that skips itself proves nothing.
#[expect(clippy::disallowed_methods, reason = "tests/run says where the models are")]
pub fn model_path(name: &str) -> PathBuf {
    let folder = std::env::var_os("PENSTOCK_TEST_MODELS")
        .expect("PENSTOCK_TEST_MODELS must name the folder with the two model files (tests/run sets it)");
    PathBuf::from(folder).join(name)
}

pub fn open(name: &str) -> gguf::File {
    gguf::File::open(model_path(name)).expect("the model file opens")
}

pub fn load(name: &str, options: CpuOptions) -> CpuBackend {
    CpuBackend::load(&open(name), options).expect("the model loads")
}

pub const OPTIONS: CpuOptions = CpuOptions { threads: 2, exact: false, kv_blocks: 1024 };

/// A sequence as a backend sees it: tokens so far, and blocks `first_block ..` in every KV group.
#[derive(Clone)]
pub struct Sequence {
    pub tokens: Vec<u32>,
    pub computed: usize,
    first_block: u32,
    blocks: u32,
}

impl Sequence {
    /// The `index`th sequence of at most `capacity` tokens each.
    pub fn new(index: u32, capacity: u32, tokens: &[u32], groups: u32) -> Self {
        let blocks = capacity.div_ceil(BLOCK_SIZE);
        Self { tokens: tokens.to_vec(), computed: 0, first_block: index * blocks * groups, blocks }
    }

    /// Adds the next `count` tokens to the plan; the rows from `sample_from` on are sampled as `sample` says.
    pub fn plan(
        &mut self,
        plan: &mut StepPlan,
        count: usize,
        groups: u32,
        sample: impl Fn(usize) -> Option<SamplePlan>,
    ) {
        let start = plan.rows.len() as u32;
        for position in self.computed..self.computed + count {
            let row = plan.rows.len() as u32;
            plan.rows.push(Row { token: RowToken::Id(self.tokens[position]), position: position as u32 });
            plan.samples.extend(sample(position).map(|sample| SamplePlan { row, ..sample }));
        }
        self.computed += count;
        let covered = (self.computed as u32).div_ceil(BLOCK_SIZE);
        let table = |group: u32| (0..covered).map(|i| BlockId(self.first_block + group * self.blocks + i)).collect();
        plan.seqs.push(SeqPlan { rows: start..plan.rows.len() as u32, tables: (0..groups).map(table).collect() });
    }
}

/// Greedy, with the log-probabilities of `top` tokens and of `score`.
pub fn scored(score: Option<u32>, top: u32) -> SamplePlan {
    SamplePlan {
        row: 0,
        params: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        seed: 0,
        choice: 0,
        top_logprobs: Some(top),
        score,
        seen: Vec::new(),
        mask: None,
    }
}

pub fn run(backend: &mut dyn Backend, plan: StepPlan) -> Vec<Sampled> {
    let ticket = backend.submit(plan).expect("the plan is valid");
    backend.wait(ticket).expect("the step succeeds").samples
}

/// Teacher-forced: feeds `tokens` in chunks and scores each token from `from` on, with the `top` likeliest beside it.
pub fn score(backend: &mut dyn Backend, tokens: &[u32], from: usize, chunk: usize, top: u32) -> Vec<Sampled> {
    let groups = backend.spec().kv.groups.len() as u32;
    let mut sequence = Sequence::new(0, tokens.len() as u32, tokens, groups);
    let mut out = Vec::new();
    while sequence.computed + 1 < tokens.len() {
        let mut plan = StepPlan::default();
        let count = chunk.min(tokens.len() - 1 - sequence.computed);
        sequence.plan(&mut plan, count, groups, |position| {
            (position + 1 >= from).then(|| scored(Some(tokens[position + 1]), top))
        });
        out.extend(run(backend, plan));
    }
    out
}
