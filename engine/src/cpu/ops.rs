//! The operations of a step on the CPU, and the buffers between them. What goes by head, and so meets the KV cache, is
//! in `heads`; how work is spread over threads in `rows` and `products`; the arithmetic in `gemm`, `norm`, `rope` and
//! `attention`; the order of operations in `forward`.
#![expect(unsafe_code, reason = "tasks of one operation write disjoint parts of its output")]

mod heads;

use super::attention;
use super::buffer::Disjoint;
use super::kv::{self, KvElement};
use super::load::Weights;
use super::norm;
use super::plan::Work;
use super::pool::Pool;
use super::products::{gated, project};
use super::rows::{QuantisedRows, Reads, each_row};
use super::simd::Isa;
use super::weights::Matrix;
use crate::backend::{Error, SamplePlan, Sampled, StepPlan};
use crate::forward::Ops;
use crate::model::ModelSpec;
use crate::sampler;

/// Rows that go through the output head at once: bounds the logits in memory, whatever a prompt scores.
const HEAD_ROWS: usize = 16;

/// Buffers of one step, grown to the largest step so far. Rows are those of the plan.
#[derive(Default)]
pub struct Acts {
    /// Residual stream. (rows, width)
    stream: Vec<f32>,
    /// (rows, width)
    normed: Vec<f32>,
    /// Q, K and V beside each other. (rows, (heads + 2 kv_heads) * head_dim)
    qkv: Vec<f32>,
    /// (rows, heads * head_dim)
    attended: Vec<f32>,
    /// (rows, hidden)
    hidden: Vec<f32>,
    /// What joins the residual stream. (rows, width)
    projected: Vec<f32>,
    /// The input of the next product.
    quantised: QuantisedRows,
    /// (cos, sin) of each rope, row and pair. (ropes, rows, head_dim / 2)
    angles: Vec<[f32; 2]>,
    /// (rows of a slice, vocab)
    logits: Vec<f32>,
    attention: Vec<attention::Scratch>,
    samplers: Vec<sampler::Scratch>,
}

/// One step: all that its operations need. `E` is what the KV pool holds.
pub struct Step<'a, E> {
    pub isa: Isa,
    /// f32 activations everywhere.
    pub exact: bool,
    pub spec: &'a ModelSpec,
    pub weights: &'a Weights,
    pub threads: &'a mut Pool,
    pub shape: &'a kv::Shape,
    pub kv: &'a mut [E],
    pub acts: &'a mut Acts,
    pub plan: &'a StepPlan,
    pub work: &'a Work,
    /// In the order of the plan's samples.
    pub sampled: Vec<Sampled>,
}

impl<E: KvElement> Ops for Step<'_, E> {
    type Error = Error;

    fn embed(&mut self) -> Result<(), Error> {
        let Self { isa, spec, weights, acts, work, .. } = self;
        let (isa, width, rows) = (*isa, spec.width, work.tokens.len());
        let pairs = spec.head_dim / 2;
        acts.stream.resize(rows * width, 0.0);
        acts.angles.resize(spec.ropes.len() * rows * pairs, [0.0; 2]);
        let stream = Disjoint::new(&mut acts.stream);
        let angles = Disjoint::new(&mut acts.angles);
        each_row(self.threads, rows, &|row| {
            // SAFETY: each row is one call's.
            let x = unsafe { stream.slice(row * width..(row + 1) * width) };
            weights.embedding.row(isa, work.tokens[row] as usize, x);
            for x in x {
                *x *= spec.embedding_scale;
            }
            for (rope, frequencies) in weights.frequencies.iter().enumerate() {
                let start = (rope * rows + row) * pairs;
                // SAFETY: as above.
                frequencies.angles(work.positions[row], unsafe { angles.slice(start..start + pairs) });
            }
        })
    }

    fn attn_in(&mut self, layer: usize) -> Result<(), Error> {
        let weights = &self.weights.layers[layer];
        let matrices = [&weights.q, &weights.k, &weights.v];
        self.norm_rows(&weights.attn_norm, self.reads(&matrices, Reads::Pairs))?;
        let (rows, row_len) = (self.work.tokens.len(), self.qkv_len());
        let acts = &mut *self.acts;
        acts.qkv.resize(rows * row_len, 0.0);
        let input = acts.quantised.input(&acts.normed);
        project(self.isa, self.threads, &matrices, input, rows, &mut acts.qkv)?;
        self.rotate_and_write(layer, weights)
    }

    fn attend(&mut self, layer: usize) -> Result<(), Error> {
        self.attend_by_head(layer)
    }

    fn attn_out(&mut self, layer: usize) -> Result<(), Error> {
        let weights = &self.weights.layers[layer];
        let reads = self.reads(&[&weights.o], Reads::Bytes);
        let rows = self.work.tokens.len();
        let acts = &mut *self.acts;
        acts.quantised.fill(self.isa, self.threads, reads, &acts.attended, weights.o.columns)?;
        let input = acts.quantised.input(&acts.attended);
        acts.projected.resize(rows * self.spec.width, 0.0);
        project(self.isa, self.threads, &[&weights.o], input, rows, &mut acts.projected)?;
        self.add_to_stream(weights.post_attn_norm.as_deref())
    }

    fn ffn(&mut self, layer: usize) -> Result<(), Error> {
        let weights = &self.weights.layers[layer];
        let matrices = [&weights.gate, &weights.up];
        self.norm_rows(&weights.ffn_norm, self.reads(&matrices, Reads::Bytes))?;
        let rows = self.work.tokens.len();
        let acts = &mut *self.acts;
        acts.hidden.resize(rows * self.spec.hidden, 0.0);
        let input = acts.quantised.input(&acts.normed);
        gated(self.isa, self.threads, self.spec.activation, matrices, input, &mut acts.hidden)?;
        let reads = self.reads(&[&weights.down], Reads::Bytes);
        let acts = &mut *self.acts;
        acts.quantised.fill(self.isa, self.threads, reads, &acts.hidden, self.spec.hidden)?;
        let input = acts.quantised.input(&acts.hidden);
        acts.projected.resize(rows * self.spec.width, 0.0);
        project(self.isa, self.threads, &[&weights.down], input, rows, &mut acts.projected)?;
        self.add_to_stream(weights.post_ffn_norm.as_deref())
    }

    fn head(&mut self) -> Result<(), Error> {
        let output = self.weights.output.as_ref().unwrap_or(&self.weights.embedding);
        let reads = self.reads(&[output], Reads::Pairs);
        let (width, vocab) = (self.spec.width, self.spec.vocab_size);
        for samples in self.plan.samples.chunks(HEAD_ROWS) {
            let acts = &mut *self.acts;
            acts.normed.resize(samples.len() * width, 0.0);
            for (sample, out) in samples.iter().zip(acts.normed.chunks_exact_mut(width)) {
                let x = &acts.stream[sample.row as usize * width..][..width];
                norm::rms_norm(self.isa, x, &self.weights.output_norm, self.spec.norm_eps, out);
            }
            acts.quantised.fill(self.isa, self.threads, reads, &acts.normed, width)?;
            let input = acts.quantised.input(&acts.normed);
            acts.logits.resize(samples.len() * vocab, 0.0);
            project(self.isa, self.threads, &[output], input, samples.len(), &mut acts.logits)?;
            self.sample(samples)?;
        }
        Ok(())
    }
}

impl<E: KvElement> Step<'_, E> {
    /// `precision` if any of the matrices is quantised and the mode allows it.
    fn reads(&self, matrices: &[&Matrix], precision: Reads) -> Reads {
        let quantised = !self.exact && matrices.iter().any(|matrix| matrix.is_quantised());
        if quantised { precision } else { Reads::Wide }
    }

    /// The stream's rows, normed, and quantised as the next product reads them.
    fn norm_rows(&mut self, weight: &[f32], reads: Reads) -> Result<(), Error> {
        let Self { isa, spec, acts, .. } = self;
        let (isa, width) = (*isa, spec.width);
        let rows = acts.stream.len() / width;
        acts.normed.resize(rows * width, 0.0);
        let normed = Disjoint::new(&mut acts.normed);
        let quantised = acts.quantised.begin(reads, rows, width);
        each_row(self.threads, rows, &|row| {
            // SAFETY: each row is one call's.
            let out = unsafe { normed.slice(row * width..(row + 1) * width) };
            norm::rms_norm(isa, &acts.stream[row * width..(row + 1) * width], weight, spec.norm_eps, out);
            // SAFETY: as above.
            unsafe { quantised.write(isa, row, out) };
        })
    }

    /// stream += projected, normed first where the architecture does so.
    fn add_to_stream(&mut self, post_norm: Option<&[f32]>) -> Result<(), Error> {
        let Self { isa, spec, acts, .. } = self;
        let width = spec.width;
        let rows = acts.stream.len() / width;
        let stream = Disjoint::new(&mut acts.stream);
        let projected = Disjoint::new(&mut acts.projected);
        each_row(self.threads, rows, &|row| {
            let range = row * width..(row + 1) * width;
            // SAFETY: each row is one call's, in both.
            let (stream, projected) = unsafe { (stream.slice(range.clone()), projected.slice(range)) };
            if let Some(weight) = post_norm {
                norm::rms_norm_in_place(*isa, projected, weight, spec.norm_eps);
            }
            for (x, y) in stream.iter_mut().zip(projected) {
                *x += *y;
            }
        })
    }

    fn sample(&mut self, samples: &[SamplePlan]) -> Result<(), Error> {
        let Self { spec, acts, work, .. } = self;
        acts.samplers.resize_with(self.threads.threads(), Default::default);
        let empty = Sampled { token: 0, logprob: None, top: Vec::new(), score: None };
        let done = self.sampled.len();
        self.sampled.resize(done + samples.len(), empty);
        let out = Disjoint::new(&mut self.sampled[done..]);
        let scratch = Disjoint::new(&mut acts.samplers);
        self.threads.run(samples.len(), &|index, thread| {
            let sample = &samples[index];
            let logits = &acts.logits[index * spec.vocab_size..][..spec.vocab_size];
            // SAFETY: one scratch per thread, one slot per task.
            let (scratch, slot) = unsafe { (&mut scratch.slice(thread..thread + 1)[0], out.slice(index..index + 1)) };
            slot[0] = sampler::sample(logits, sample, work.positions[sample.row as usize] + 1, scratch);
        })?;
        Ok(())
    }
}
