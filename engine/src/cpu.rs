//! The CPU backend: loads a GGUF model and runs step plans on the engine's own threads. A step is computed when it is
//! submitted, since all cores are its own anyway. Scheduling and KV bookkeeping are the core's.

mod acts;
mod attention;
mod buffer;
mod gemm;
mod kv;
mod load;
mod math;
mod norm;
mod ops;
mod plan;
mod pool;
mod products;
mod quant;
mod rope;
mod rows;
mod simd;
mod tiles;
mod weights;

use std::collections::VecDeque;

pub use load::LoadError;
use ops::{Acts, Step};
use plan::{Limits, Work};
use simd::Isa;

use crate::backend::{Backend, BlockCopy, Error, RowToken, Sampled, Spec, StepOut, StepPlan, Ticket};
use crate::forward::forward;
use crate::model::ModelSpec;

/// Tickets whose sampled tokens later plans may still refer to.
const REMEMBERED: usize = 4;

#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// The caller's thread included.
    pub threads: usize,
    /// f32 activations and KV: the reference, several times slower.
    pub exact: bool,
    pub kv_blocks: u32,
}

pub struct CpuBackend {
    isa: Isa,
    exact: bool,
    model: ModelSpec,
    spec: Spec,
    weights: load::Weights,
    threads: pool::Pool,
    shape: kv::Shape,
    kv: kv::Pool,
    acts: Acts,
    next_ticket: u64,
    /// Computed and not yet waited for.
    done: VecDeque<(Ticket, StepOut)>,
    /// Sampled tokens of the last tickets.
    sampled: VecDeque<(Ticket, Vec<u32>)>,
}

impl CpuBackend {
    pub fn load(file: &gguf::File, options: CpuOptions) -> Result<Self, LoadError> {
        Self::load_with(file, options, Isa::detect())
    }

    fn load_with(file: &gguf::File, options: CpuOptions, isa: Isa) -> Result<Self, LoadError> {
        let CpuOptions { threads, exact, kv_blocks } = options;
        let model = ModelSpec::from_gguf(file)?;
        let mut threads = pool::Pool::new(threads).map_err(LoadError::Threads)?;
        let weights = load::Weights::load(file, &model, &mut threads)?;
        let shape = kv::Shape::new(&model);
        let memory = |source| LoadError::KvMemory { blocks: kv_blocks, source };
        let kv = kv::Pool::zeroed(&shape, kv_blocks, exact).map_err(memory)?;
        let spec = Spec {
            vocab_size: model.vocab_size as u32,
            context_length: model.context_length,
            kv: kv.layout(&model, &shape, kv_blocks),
            numerics_id: if exact { "exact-f32-kv32-1" } else { "cpu-int16-8-kv16-1" }.to_owned(),
            model_digest: weights.digest,
        };
        tracing::info!(isa = isa.name(), threads = threads.threads(), numerics = spec.numerics_id, "model loaded");
        Ok(Self {
            isa,
            exact,
            model,
            spec,
            weights,
            threads,
            shape,
            kv,
            acts: Acts::default(),
            next_ticket: 0,
            done: VecDeque::new(),
            sampled: VecDeque::new(),
        })
    }

    /// What runs the kernels: `avx512-vnni`, `avx2` or `scalar`.
    pub fn instruction_set(&self) -> &'static str {
        self.isa.name()
    }

    fn resolve(&self, token: RowToken) -> Result<u32, Error> {
        match token {
            RowToken::Id(id) => Ok(id),
            RowToken::FromSample { ticket, sample } => {
                let step = self.sampled.iter().find(|(done, _)| *done == ticket);
                let token = step.and_then(|(_, tokens)| tokens.get(sample as usize).copied());
                token.ok_or_else(|| Error::Plan(format!("sample {sample} of ticket {} is not known", ticket.0)))
            }
        }
    }

    fn compute(&mut self, plan: &StepPlan) -> Result<Vec<Sampled>, Error> {
        let tokens = plan.rows.iter().map(|row| self.resolve(row.token)).collect::<Result<Vec<_>, _>>()?;
        let limits = Limits {
            vocab_size: self.model.vocab_size,
            context_length: self.model.context_length,
            groups: &self.spec.kv.groups,
            total_blocks: self.spec.kv.total_blocks,
        };
        let work = Work::new(plan, tokens, &limits)?;
        if work.tokens.is_empty() {
            return Ok(Vec::new());
        }
        macro_rules! step {
            ($kv:expr) => {{
                let mut step = Step {
                    isa: self.isa,
                    exact: self.exact,
                    spec: &self.model,
                    weights: &self.weights,
                    threads: &mut self.threads,
                    shape: &self.shape,
                    kv: $kv,
                    acts: &mut self.acts,
                    plan,
                    work: &work,
                    sampled: Vec::with_capacity(plan.samples.len()),
                };
                forward(&mut step, self.model.layers.len())?;
                Ok(step.sampled)
            }};
        }
        match &mut self.kv {
            kv::Pool::F32(buffer) => step!(&mut **buffer),
            kv::Pool::F16(buffer) => step!(&mut **buffer),
        }
    }
}

impl Backend for CpuBackend {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, Error> {
        let samples = self.compute(&plan)?;
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.sampled.push_back((ticket, samples.iter().map(|sampled| sampled.token).collect()));
        if self.sampled.len() > REMEMBERED {
            self.sampled.pop_front();
        }
        self.done.push_back((ticket, StepOut { samples }));
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOut, Error> {
        match self.done.pop_front() {
            Some((done, out)) if done == ticket => Ok(out),
            _ => Err(Error::Plan(format!("ticket {} is not the next to be waited for", ticket.0))),
        }
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<(), Error> {
        let total = self.spec.kv.total_blocks;
        for copy in copies {
            if copy.from.0 >= total || copy.to.0 >= total {
                return Err(Error::Plan(format!("copy of block {} to {} leaves the pool", copy.from.0, copy.to.0)));
            }
            self.kv.copy(&self.shape, *copy);
        }
        Ok(())
    }
}

impl From<pool::Panicked> for Error {
    fn from(panicked: pool::Panicked) -> Self {
        Self::Device(panicked.to_string())
    }
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
