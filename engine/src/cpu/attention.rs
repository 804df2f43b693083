//! Attention of a few rows of one sequence over its cached blocks, one KV head at a time. Tiles are the KV blocks, so
//! they are aligned to absolute positions and walked in order: what a row computes depends on neither its chunk nor
//! its neighbours. Who runs which rows is decided in `ops::heads`.

use std::ops::Range;

use super::kv::{KvElement, POSITIONS, Shape};
use super::math;
use super::simd::{Isa, Kernel, LANES, Simd};
use crate::backend::BlockId;

/// Rows that share one pass over the blocks: each block is widened to f32 once for all of them.
pub const ROWS: usize = 8;

/// One layer's cache, as a sequence sees it.
pub struct Cache<'a, E> {
    pub shape: &'a Shape,
    pub pool: &'a [E],
    pub table: &'a [BlockId],
    pub layer: usize,
    pub kv_head: usize,
    pub window: Option<u32>,
}

/// Queries: some rows at ascending positions, some heads that share the KV head.
pub struct Queries<'a> {
    /// (rows, row_len), scaled already; only `heads` are read.
    pub q: &'a [f32],
    pub row_len: usize,
    pub positions: &'a [u32],
    pub heads: Range<usize>,
}

#[derive(Default)]
pub struct Scratch {
    /// (head_dim, 16)
    keys: Vec<f32>,
    /// (16, head_dim)
    values: Vec<f32>,
    /// (rows * heads, head_dim)
    sums: Vec<f32>,
    states: Vec<State>,
}

/// Softmax so far of one row and head: the largest score, and by lane the sum of e^(score - largest).
#[derive(Clone, Copy)]
struct State {
    largest: f32,
    weights: [f32; LANES],
}

/// The outputs of (row, head), in that order, (head_dim) each, are passed to `out`.
pub fn attend<E: KvElement>(
    isa: Isa,
    cache: &Cache<E>,
    queries: &Queries,
    scratch: &mut Scratch,
    out: impl FnMut(usize, usize, &[f32]),
) {
    let dim = cache.shape.head_dim;
    let items = queries.positions.len() * queries.heads.len();
    scratch.keys.resize(dim * POSITIONS, 0.0);
    scratch.values.resize(dim * POSITIONS, 0.0);
    scratch.sums.clear();
    scratch.sums.resize(items * dim, 0.0);
    scratch.states.clear();
    scratch.states.resize(items, State { largest: f32::NEG_INFINITY, weights: [0.0; LANES] });
    isa.run(Attend { cache, queries, scratch: &mut *scratch });
    hand_out(isa, dim, queries, scratch, out);
}

fn hand_out(isa: Isa, dim: usize, queries: &Queries, scratch: &mut Scratch, mut out: impl FnMut(usize, usize, &[f32])) {
    let heads = queries.heads.len();
    for (item, (sum, state)) in scratch.sums.chunks_exact_mut(dim).zip(&scratch.states).enumerate() {
        let scale = 1.0 / isa.run(Total(&state.weights));
        for x in sum.iter_mut() {
            *x *= scale;
        }
        out(item / heads, queries.heads.start + item % heads, sum);
    }
}

struct Total<'a>(&'a [f32; LANES]);

impl Kernel for Total<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        s.sum(s.load(self.0))
    }
}

/// The positions that the query at `position` sees.
fn visible(position: u32, window: Option<u32>) -> Range<usize> {
    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
    first as usize..position as usize + 1
}

struct Attend<'a, E> {
    cache: &'a Cache<'a, E>,
    queries: &'a Queries<'a>,
    scratch: &'a mut Scratch,
}

impl<E: KvElement> Kernel for Attend<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { cache, queries, scratch } = self;
        let dim = cache.shape.head_dim;
        let (Some(&first), Some(&last)) = (queries.positions.first(), queries.positions.last()) else { return };
        let blocks = visible(first, cache.window).start / POSITIONS..last as usize / POSITIONS + 1;
        for block in blocks {
            let start = block * POSITIONS;
            load_block(s, cache, cache.table[block], scratch);
            let Scratch { keys, values, sums, states } = &mut *scratch;
            let mut items = sums.chunks_exact_mut(dim).zip(states.iter_mut());
            for (row, &position) in queries.positions.iter().enumerate() {
                let seen = visible(position, cache.window);
                let seen = seen.start.max(start)..seen.end.min(start + POSITIONS);
                for head in queries.heads.clone() {
                    let Some((sum, state)) = items.next() else { return };
                    if seen.is_empty() {
                        continue;
                    }
                    let q = &queries.q[row * queries.row_len + head * dim..][..dim];
                    let mask = seen.start - start..seen.end - start;
                    let (weights, correction) = state.update(s, scores(s, q, keys), &mask);
                    add_values(s, &weights, mask, correction, values, sum);
                }
            }
        }
    }
}

/// Widens one head's keys and values of a block.
#[inline(always)]
fn load_block<S: Simd, E: KvElement>(s: S, cache: &Cache<E>, block: BlockId, scratch: &mut Scratch) {
    let layer = &cache.pool[cache.shape.layer(cache.layer, block)];
    let half = cache.shape.half();
    let (keys, values) = layer[cache.kv_head * 2 * half..][..2 * half].split_at(half);
    for (from, to) in [(keys, &mut scratch.keys), (values, &mut scratch.values)] {
        for (from, to) in from.as_chunks::<LANES>().0.iter().zip(to.as_chunks_mut::<LANES>().0) {
            s.store(E::load(s, from), to);
        }
    }
}

/// q . k for the 16 positions of a block: four chains over the head's elements, added as (0 + 2) + (1 + 3).
#[inline(always)]
fn scores<S: Simd>(s: S, q: &[f32], keys: &[f32]) -> S::F {
    let mut chains = [s.splat(0.0); 4];
    let (q, _) = q.as_chunks::<4>();
    let (keys, _) = keys.as_chunks::<LANES>();
    let (keys, _) = keys.as_chunks::<4>();
    for (q, keys) in q.iter().zip(keys) {
        for i in 0..4 {
            chains[i] = s.fma(s.splat(q[i]), s.load(&keys[i]), chains[i]);
        }
    }
    s.add(s.add(chains[0], chains[2]), s.add(chains[1], chains[3]))
}

impl State {
    /// Takes in the scores of one block; returns their weights (0 where masked) and what the sums so far must be
    /// multiplied by, `None` for 1.
    #[inline(always)]
    fn update<S: Simd>(&mut self, s: S, scores: S::F, mask: &Range<usize>) -> ([f32; LANES], Option<f32>) {
        let mut lanes = [0.0; LANES];
        s.store(scores, &mut lanes);
        lanes[..mask.start].fill(f32::NEG_INFINITY);
        lanes[mask.end..].fill(f32::NEG_INFINITY);
        let scores = s.load(&lanes);
        let block_largest = s.largest(scores);
        let before = self.largest;
        if block_largest > before {
            self.largest = block_largest;
        }
        s.store(math::exp(s, s.sub(scores, s.splat(self.largest))), &mut lanes);
        lanes[..mask.start].fill(0.0);
        lanes[mask.end..].fill(0.0);
        let mut weights = s.load(&self.weights);
        let mut correction = None;
        if self.largest != before {
            let mut factor = [0.0; LANES];
            s.store(math::exp(s, s.splat(before - self.largest)), &mut factor);
            weights = s.mul(weights, s.splat(factor[0]));
            correction = Some(factor[0]);
        }
        s.store(s.add(weights, s.load(&lanes)), &mut self.weights);
        (lanes, correction)
    }
}

/// sum = sum * correction + weights . values, position by position.
#[inline(always)]
fn add_values<S: Simd>(
    s: S,
    weights: &[f32; LANES],
    mask: Range<usize>,
    correction: Option<f32>,
    values: &[f32],
    sum: &mut [f32],
) {
    let (sum, _) = sum.as_chunks_mut::<LANES>();
    let (values, _) = values.as_chunks::<LANES>();
    let vectors = sum.len();
    for (i, sum) in sum.iter_mut().enumerate() {
        let mut total = s.load(sum);
        if let Some(correction) = correction {
            total = s.mul(total, s.splat(correction));
        }
        for position in mask.clone() {
            total = s.fma(s.splat(weights[position]), s.load(&values[position * vectors + i]), total);
        }
        s.store(total, sum);
    }
}
