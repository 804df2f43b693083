//! The fused operations of a step on the CPU: which rows and tiles go to which thread, and the buffers in between.
//! The arithmetic itself is in `gemm`, `attention`, `norm` and `rope`; the order of operations in `forward`.
#![expect(unsafe_code, reason = "tasks of one operation write disjoint parts of its output")]

use super::attention::{self, Cache, Queries};
use super::buffer::Disjoint;
use super::gemm::{self, ActUnit, Input, LowUnit, Quantised};
use super::kv::{self, KvElement};
use super::load::{Layer, Weights};
use super::norm;
use super::plan::Work;
use super::pool::Pool;
use super::quant::UNIT;
use super::rope;
use super::simd::{Isa, LANES};
use super::weights::Matrix;
use crate::backend::{Error, SamplePlan, Sampled, StepPlan};
use crate::forward::Ops;
use crate::model::{Activation, ModelSpec};
use crate::sampler;

/// Activation rows multiplied in one go: their products of one tile stay on the stack, their inputs in L2.
const ROWS: usize = 64;

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
    /// The input of the next product, quantised. (rows, columns / 32)
    units: Vec<ActUnit>,
    /// Its second bytes, if it has some. (rows, columns / 32)
    low: Vec<LowUnit>,
    /// (cos, sin) of each rope, row and pair. (ropes, rows, head_dim / 2)
    angles: Vec<[f32; 2]>,
    /// (rows of a slice, vocab)
    logits: Vec<f32>,
    attention: Vec<attention::Scratch>,
    samplers: Vec<sampler::Scratch>,
}

/// What a product reads its activations as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Wide,
    Bytes,
    Pairs,
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
        let reads = self.reads(&matrices, Reads::Pairs);
        self.norm_rows(&weights.attn_norm, reads)?;
        let (rows, row_len) = (self.work.tokens.len(), self.qkv_len());
        let acts = &mut *self.acts;
        acts.qkv.resize(rows * row_len, 0.0);
        let input = Input { wide: &acts.normed, int: quantised(reads, &acts.units, &acts.low) };
        project(self.isa, self.threads, &matrices, input, rows, &mut acts.qkv)?;
        self.rotate_and_write(layer, weights)
    }

    fn attend(&mut self, layer: usize) -> Result<(), Error> {
        let Self { isa, spec, shape, acts, plan, work, kv, .. } = self;
        let (dim, row_len) = (spec.head_dim, (spec.heads + 2 * spec.kv_heads) * spec.head_dim);
        let out_len = spec.heads * dim;
        acts.attended.resize(work.tokens.len() * out_len, 0.0);
        acts.attention.resize_with(self.threads.threads(), Default::default);
        let scratch = Disjoint::new(&mut acts.attention);
        let out = Disjoint::new(&mut acts.attended);
        // Heads that share a KV head go together, unless that leaves threads without work.
        let shared = spec.heads / spec.kv_heads;
        let together = if work.reads.len() * spec.kv_heads < 2 * self.threads.threads() { 1 } else { shared };
        let per_piece = spec.heads / together;
        self.threads.run(work.reads.len() * per_piece, &|task, thread| {
            let piece = &work.reads[task / per_piece];
            let first = task % per_piece * together;
            let cache = Cache {
                shape,
                pool: kv,
                table: &plan.seqs[piece.seq].tables[shape.group(layer)],
                layer,
                kv_head: first / shared,
                window: spec.layers[layer].window,
            };
            let queries = Queries {
                q: &acts.qkv[piece.rows.start * row_len..piece.rows.end * row_len],
                row_len,
                positions: &work.positions[piece.rows.clone()],
                heads: first..first + together,
            };
            // SAFETY: one scratch per thread.
            let scratch = unsafe { &mut scratch.slice(thread..thread + 1)[0] };
            attention::attend(*isa, &cache, &queries, scratch, |row, head, x| {
                let start = (piece.rows.start + row) * out_len + head * dim;
                // SAFETY: a (row, head) belongs to one task.
                unsafe { out.slice(start..start + dim) }.copy_from_slice(x);
            });
        })?;
        Ok(())
    }

    fn attn_out(&mut self, layer: usize) -> Result<(), Error> {
        let weights = &self.weights.layers[layer];
        let reads = self.reads(&[&weights.o], Reads::Bytes);
        let rows = self.work.tokens.len();
        let acts = &mut *self.acts;
        quantise_rows(
            self.isa,
            self.threads,
            reads,
            &acts.attended,
            weights.o.columns,
            (&mut acts.units, &mut acts.low),
        )?;
        let input = Input { wide: &acts.attended, int: quantised(reads, &acts.units, &acts.low) };
        acts.projected.resize(rows * self.spec.width, 0.0);
        project(self.isa, self.threads, &[&weights.o], input, rows, &mut acts.projected)?;
        self.add_to_stream(weights.post_attn_norm.as_deref())
    }

    fn ffn(&mut self, layer: usize) -> Result<(), Error> {
        let weights = &self.weights.layers[layer];
        let reads = self.reads(&[&weights.gate, &weights.up], Reads::Bytes);
        self.norm_rows(&weights.ffn_norm, reads)?;
        let rows = self.work.tokens.len();
        let acts = &mut *self.acts;
        acts.hidden.resize(rows * self.spec.hidden, 0.0);
        let input = Input { wide: &acts.normed, int: quantised(reads, &acts.units, &acts.low) };
        gated(self.isa, self.threads, self.spec.activation, [&weights.gate, &weights.up], input, &mut acts.hidden)?;
        let reads = self.reads(&[&weights.down], Reads::Bytes);
        let acts = &mut *self.acts;
        quantise_rows(self.isa, self.threads, reads, &acts.hidden, self.spec.hidden, (&mut acts.units, &mut acts.low))?;
        let input = Input { wide: &acts.hidden, int: quantised(reads, &acts.units, &acts.low) };
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
            quantise_rows(self.isa, self.threads, reads, &acts.normed, width, (&mut acts.units, &mut acts.low))?;
            let input = Input { wide: &acts.normed, int: quantised(reads, &acts.units, &acts.low) };
            acts.logits.resize(samples.len() * vocab, 0.0);
            project(self.isa, self.threads, &[output], input, samples.len(), &mut acts.logits)?;
            self.sample(samples)?;
        }
        Ok(())
    }
}

impl<E: KvElement> Step<'_, E> {
    fn qkv_len(&self) -> usize {
        (self.spec.heads + 2 * self.spec.kv_heads) * self.spec.head_dim
    }

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
        let units = Units::new(reads, rows, width / UNIT, (&mut acts.units, &mut acts.low));
        each_row(self.threads, rows, &|row| {
            // SAFETY: each row is one call's.
            let out = unsafe { normed.slice(row * width..(row + 1) * width) };
            norm::rms_norm(isa, &acts.stream[row * width..(row + 1) * width], weight, spec.norm_eps, out);
            // SAFETY: as above.
            unsafe { units.quantise(isa, row, out) };
        })
    }

    /// Q: norm, RoPE, scale, in place. K: norm, RoPE, to the cache. V: to the cache.
    fn rotate_and_write(&mut self, layer: usize, weights: &Layer) -> Result<(), Error> {
        let row_len = self.qkv_len();
        let Self { isa, spec, shape, acts, plan, work, kv, .. } = self;
        let (rows, dim, pairs) = (work.tokens.len(), spec.head_dim, spec.head_dim / 2);
        let angles = &acts.angles[spec.layers[layer].rope * rows * pairs..][..rows * pairs];
        let qkv = Disjoint::new(&mut acts.qkv);
        let kv = Disjoint::new(kv);
        self.threads.run(work.writes.len(), &|task, _| {
            let piece = &work.writes[task];
            let table = &plan.seqs[piece.seq].tables[shape.group(layer)];
            let block = table[work.positions[piece.rows.start] as usize / kv::POSITIONS];
            // SAFETY: no two pieces write the same block, and nobody reads the pool now.
            let cache = unsafe { kv.slice(shape.layer(layer, block)) };
            for row in piece.rows.clone() {
                // SAFETY: a row belongs to one piece.
                let qkv = unsafe { qkv.slice(row * row_len..(row + 1) * row_len) };
                let (q, kv) = qkv.split_at_mut(spec.heads * dim);
                let (key, value) = kv.split_at_mut(spec.kv_heads * dim);
                let angles = &angles[row * pairs..(row + 1) * pairs];
                for (heads, norm) in [(&mut *q, &weights.q_norm), (&mut *key, &weights.k_norm)] {
                    for head in heads.chunks_exact_mut(dim) {
                        if let Some(norm) = norm {
                            norm::rms_norm_in_place(*isa, head, norm, spec.norm_eps);
                        }
                        rope::rotate(spec.rope_pairs, head, angles);
                    }
                }
                for x in q {
                    *x *= spec.attention_scale;
                }
                kv::write(shape, cache, work.positions[row] as usize % kv::POSITIONS, key, value);
            }
        })?;
        Ok(())
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

/// Few rows are not worth waking anybody.
fn each_row(threads: &mut Pool, rows: usize, f: &(dyn Fn(usize) + Sync)) -> Result<(), Error> {
    const PER_TASK: usize = 8;
    threads.run(rows.div_ceil(PER_TASK), &|task, _| {
        (task * PER_TASK..rows.min((task + 1) * PER_TASK)).for_each(f);
    })?;
    Ok(())
}

fn quantise_rows(
    isa: Isa,
    threads: &mut Pool,
    reads: Reads,
    x: &[f32],
    columns: usize,
    out: (&mut Vec<ActUnit>, &mut Vec<LowUnit>),
) -> Result<(), Error> {
    if reads == Reads::Wide {
        return Ok(());
    }
    let rows = x.len() / columns;
    let units = Units::new(reads, rows, columns / UNIT, out);
    // SAFETY: each row is one call's.
    each_row(threads, rows, &|row| unsafe { units.quantise(isa, row, &x[row * columns..(row + 1) * columns]) })
}

/// Where rows are quantised to, by several threads.
struct Units<'a> {
    reads: Reads,
    per_row: usize,
    units: Disjoint<'a, ActUnit>,
    low: Disjoint<'a, LowUnit>,
}

impl<'a> Units<'a> {
    fn new(
        reads: Reads,
        rows: usize,
        per_row: usize,
        (units, low): (&'a mut Vec<ActUnit>, &'a mut Vec<LowUnit>),
    ) -> Self {
        units.resize(if reads == Reads::Wide { 0 } else { rows * per_row }, ActUnit::default());
        low.resize(if reads == Reads::Pairs { rows * per_row } else { 0 }, LowUnit::default());
        Self { reads, per_row, units: Disjoint::new(units), low: Disjoint::new(low) }
    }

    /// # Safety
    /// No two threads quantise the same row at the same time.
    unsafe fn quantise(&self, isa: Isa, row: usize, x: &[f32]) {
        let range = row * self.per_row..(row + 1) * self.per_row;
        if self.reads == Reads::Wide {
            return;
        }
        // SAFETY: a row's units are its own, and rows are not shared, by this function's contract.
        let units = unsafe { self.units.slice(range.clone()) };
        // SAFETY: as above.
        let low = (self.reads == Reads::Pairs).then(|| unsafe { self.low.slice(range) });
        gemm::quantise(isa, x, units, low);
    }
}

fn quantised<'a>(reads: Reads, units: &'a [ActUnit], low: &'a [LowUnit]) -> Option<Quantised<'a>> {
    match reads {
        Reads::Wide => None,
        Reads::Bytes => Some(Quantised::Bytes(units)),
        Reads::Pairs => Some(Quantised::Pairs(units, low)),
    }
}

/// Tiles per task: enough tasks that a late thread still finds some, not so many that taking them costs.
fn tiles_per_task(tiles: usize, threads: usize) -> usize {
    (tiles / (8 * threads)).clamp(1, 64)
}

/// The products of all `matrices`, beside each other in each row of `out`.
fn project(
    isa: Isa,
    threads: &mut Pool,
    matrices: &[&Matrix],
    input: Input,
    rows: usize,
    out: &mut [f32],
) -> Result<(), Error> {
    let row_len = out.len() / rows;
    let tiles: usize = matrices.iter().map(|matrix| matrix.tiles()).sum();
    let per_task = tiles_per_task(tiles, threads.threads());
    let out = Disjoint::new(out);
    threads.run(tiles.div_ceil(per_task), &|task, _| {
        let mut products = [[0.0; LANES]; ROWS];
        for first_row in (0..rows).step_by(ROWS) {
            let products = &mut products[..ROWS.min(rows - first_row)];
            for tile in task * per_task..tiles.min((task + 1) * per_task) {
                let (matrix, tile, offset) = locate(matrices, tile);
                gemm::multiply(isa, matrix, tile, input, first_row, products);
                let lanes = LANES.min(matrix.rows - tile * LANES);
                for (row, product) in (first_row..).zip(&*products) {
                    let start = row * row_len + offset + tile * LANES;
                    // SAFETY: a tile of a row belongs to one task.
                    unsafe { out.slice(start..start + lanes) }.copy_from_slice(&product[..lanes]);
                }
            }
        }
    })?;
    Ok(())
}

/// The matrix of the `tile`th tile of all, the tile in it, and where its outputs begin in a row.
fn locate<'a>(matrices: &[&'a Matrix], tile: usize) -> (&'a Matrix, usize, usize) {
    let (mut tile, mut offset) = (tile, 0);
    for matrix in &matrices[..matrices.len() - 1] {
        if tile < matrix.tiles() {
            return (matrix, tile, offset);
        }
        tile -= matrix.tiles();
        offset += matrix.rows;
    }
    (matrices[matrices.len() - 1], tile, offset)
}

/// activation(gate) * up.
fn gated(
    isa: Isa,
    threads: &mut Pool,
    activation: Activation,
    [gate, up]: [&Matrix; 2],
    input: Input,
    out: &mut [f32],
) -> Result<(), Error> {
    let (row_len, tiles) = (gate.rows, gate.tiles());
    let rows = out.len() / row_len;
    let per_task = tiles_per_task(tiles, threads.threads());
    let out = Disjoint::new(out);
    threads.run(tiles.div_ceil(per_task), &|task, _| {
        let mut products = [[[0.0; LANES]; ROWS]; 2];
        for first_row in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first_row);
            let [gates, ups] = &mut products;
            for tile in task * per_task..tiles.min((task + 1) * per_task) {
                gemm::multiply(isa, gate, tile, input, first_row, &mut gates[..count]);
                gemm::multiply(isa, up, tile, input, first_row, &mut ups[..count]);
                norm::gate(isa, activation, &mut gates[..count], &ups[..count]);
                let lanes = LANES.min(row_len - tile * LANES);
                for (row, product) in (first_row..).zip(&gates[..count]) {
                    let start = row * row_len + tile * LANES;
                    // SAFETY: a tile of a row belongs to one task.
                    unsafe { out.slice(start..start + lanes) }.copy_from_slice(&product[..lanes]);
                }
            }
        }
    })?;
    Ok(())
}
