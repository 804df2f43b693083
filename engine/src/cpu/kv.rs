//! The KV pool: where the keys and values of a block's 16 positions lie. Which sequence owns which block is the
//! core's bookkeeping.
//!
//! Block, then layer of the group, then KV head, then keys as (head_dim, 16 positions) and values as
//! (16 positions, head_dim): scores take lanes over positions, sums of values lanes over the head.

use std::io;
use std::ops::Range;

use super::buffer::Buffer;
use super::tiles::Element;
use crate::backend::{BLOCK_SIZE, BlockCopy, BlockId, KvLayout};
use crate::model::ModelSpec;

pub const POSITIONS: usize = BLOCK_SIZE as usize;

/// Offsets in elements.
#[derive(Clone, Debug)]
pub struct Shape {
    pub kv_heads: usize,
    pub head_dim: usize,
    layers_per_block: usize,
    /// Of each layer: its group, and its place in the group's blocks.
    layers: Vec<(usize, usize)>,
}

impl Shape {
    pub fn new(spec: &ModelSpec) -> Self {
        let groups = spec.kv_groups();
        let mut layers = vec![(0, 0); spec.layers.len()];
        for (group, kv_group) in groups.iter().enumerate() {
            for (place, layer) in kv_group.layers.iter().enumerate() {
                layers[*layer as usize] = (group, place);
            }
        }
        let layers_per_block = groups.iter().map(|group| group.layers.len()).max().unwrap_or(0);
        Self { kv_heads: spec.kv_heads, head_dim: spec.head_dim, layers_per_block, layers }
    }

    /// Elements of one head's keys in one block; its values take as many and follow.
    pub fn half(&self) -> usize {
        POSITIONS * self.head_dim
    }

    fn layer_len(&self) -> usize {
        self.kv_heads * 2 * self.half()
    }

    pub fn block_len(&self) -> usize {
        self.layers_per_block * self.layer_len()
    }

    pub fn group(&self, layer: usize) -> usize {
        self.layers[layer].0
    }

    /// All heads of one layer in one block.
    pub fn layer(&self, layer: usize, block: BlockId) -> Range<usize> {
        let start = block.0 as usize * self.block_len() + self.layers[layer].1 * self.layer_len();
        start..start + self.layer_len()
    }
}

/// f32 in exact mode, halves otherwise.
pub enum Pool {
    F32(Buffer<f32>),
    F16(Buffer<u16>),
}

impl Pool {
    pub fn zeroed(shape: &Shape, blocks: u32, exact: bool) -> io::Result<Self> {
        let len = shape.block_len().checked_mul(blocks as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(if exact { Self::F32(Buffer::zeroed(len)?) } else { Self::F16(Buffer::zeroed(len)?) })
    }

    pub fn layout(&self, spec: &ModelSpec, shape: &Shape, blocks: u32) -> KvLayout {
        let element = match self {
            Self::F32(_) => size_of::<f32>(),
            Self::F16(_) => size_of::<u16>(),
        };
        KvLayout {
            groups: spec.kv_groups(),
            total_blocks: blocks,
            bytes_per_block: (shape.block_len() * element) as u64,
        }
    }

    /// Both ends are blocks of the pool: the caller has checked.
    pub fn copy(&mut self, shape: &Shape, copy: BlockCopy) {
        let len = shape.block_len();
        let from = copy.from.0 as usize * len;
        let to = copy.to.0 as usize * len;
        match self {
            Self::F32(buffer) => buffer.copy_within(from..from + len, to),
            Self::F16(buffer) => buffer.copy_within(from..from + len, to),
        }
    }
}

/// Elements that a KV pool may hold.
pub trait KvElement: Element {
    fn from_f32(x: f32) -> Self;
}

impl KvElement for f32 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
}

/// Rounded to nearest; what a half cannot hold becomes its largest value, so that a score never meets an infinity.
impl KvElement for u16 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        half::f16::from_f32(x.clamp(-65504.0, 65504.0)).to_bits()
    }
}

/// Writes one position's key and value of every head into its block's layer.
pub fn write<E: KvElement>(shape: &Shape, layer: &mut [E], slot: usize, key: &[f32], value: &[f32]) {
    let dim = shape.head_dim;
    let heads = layer.chunks_exact_mut(2 * shape.half()).zip(key.chunks_exact(dim).zip(value.chunks_exact(dim)));
    for (head, (key, value)) in heads {
        let (keys, values) = head.split_at_mut(shape.half());
        for (column, key) in keys.chunks_exact_mut(POSITIONS).zip(key) {
            column[slot] = E::from_f32(*key);
        }
        for (to, value) in values[slot * dim..(slot + 1) * dim].iter_mut().zip(value) {
            *to = E::from_f32(*value);
        }
    }
}
