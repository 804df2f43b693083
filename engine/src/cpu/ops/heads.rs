//! What a step does head by head: norms and RoPE of Q and K, K and V into the cache, and attention over it. Which heads
//! of which pieces are one task is decided here; what a piece is, in `plan`; the arithmetic is in `attention`.
#![expect(unsafe_code, reason = "tasks of one operation write disjoint parts of its output")]

use super::Step;
use crate::backend::Error;
use crate::cpu::attention::{self, Cache, Queries};
use crate::cpu::buffer::Disjoint;
use crate::cpu::kv::{self, KvElement};
use crate::cpu::load::Layer;
use crate::cpu::norm;
use crate::cpu::rope;

impl<E: KvElement> Step<'_, E> {
    /// Numbers in one row of Q, K and V.
    pub(super) fn qkv_len(&self) -> usize {
        (self.spec.heads + 2 * self.spec.kv_heads) * self.spec.head_dim
    }

    /// Q: norm, RoPE, scale, in place. K: norm, RoPE, to the cache. V: to the cache.
    pub(super) fn rotate_and_write(&mut self, layer: usize, weights: &Layer) -> Result<(), Error> {
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

    /// Every row of every head attends to its sequence's cache.
    pub(super) fn attend_by_head(&mut self, layer: usize) -> Result<(), Error> {
        let row_len = self.qkv_len();
        let Self { isa, spec, shape, acts, plan, work, kv, .. } = self;
        let dim = spec.head_dim;
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
}
