//! The block pool: who holds which block, and which idle block is taken next. Knows nothing of tokens or groups.

use std::collections::BTreeSet;

use super::prefix::BlockKey;
use crate::backend::BlockId;

/// Why a block is idle decides how soon it is taken again; lower goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Eviction {
    /// Holds nothing that anyone could find.
    Empty,
    /// Fell out of a window: only a prefix hit that ends near it can use it.
    OutOfWindow,
    /// Holds a prefix that a later request may share; least recently used first.
    Cached,
}

#[derive(Debug, Default)]
struct Block {
    refs: u32,
    key: Option<BlockKey>,
    /// Its entry in `idle` while `refs` is 0.
    idle: Option<(Eviction, u64)>,
}

#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    idle: BTreeSet<(Eviction, u64, BlockId)>,
    cached: u32,
    /// Counts releases: the order of the least recently used.
    clock: u64,
}

impl BlockPool {
    pub(super) fn new(total: u32) -> Self {
        let mut pool = Self {
            blocks: (0..total).map(|_| Block { refs: 1, ..Block::default() }).collect(),
            idle: BTreeSet::new(),
            cached: 0,
            clock: 0,
        };
        (0..total).for_each(|id| pool.release(BlockId(id), Eviction::Cached));
        pool
    }

    /// Takes an idle block for new content, with the key that it thereby loses.
    pub(super) fn take(&mut self) -> Option<(BlockId, Option<BlockKey>)> {
        let (eviction, at, id) = self.idle.pop_first()?;
        let block = &mut self.blocks[id.0 as usize];
        debug_assert_eq!(block.idle, Some((eviction, at)));
        let key = block.key.take();
        *block = Block { refs: 1, key: None, idle: None };
        self.cached -= u32::from(key.is_some());
        Some((id, key))
    }

    /// One more holder of a block whose content is to be read.
    pub(super) fn share(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        if let Some((eviction, at)) = block.idle.take() {
            self.idle.remove(&(eviction, at, id));
            self.cached -= u32::from(block.key.is_some());
        }
        block.refs += 1;
    }

    /// One holder less. A block without a key is `Empty`, whatever the caller says.
    pub(super) fn release(&mut self, id: BlockId, eviction: Eviction) {
        let block = &mut self.blocks[id.0 as usize];
        block.refs -= 1;
        if block.refs > 0 {
            return;
        }
        let eviction = if block.key.is_some() { eviction } else { Eviction::Empty };
        self.clock += 1;
        block.idle = Some((eviction, self.clock));
        self.cached += u32::from(block.key.is_some());
        self.idle.insert((eviction, self.clock, id));
    }

    /// Gives a held block its name: from now on its content is final.
    pub(super) fn name(&mut self, id: BlockId, key: BlockKey) {
        self.blocks[id.0 as usize].key = Some(key);
    }

    pub(super) fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    pub(super) fn idle(&self) -> u32 {
        self.idle.len() as u32
    }

    /// Idle blocks that hold a findable prefix.
    pub(super) fn cached(&self) -> u32 {
        self.cached
    }

    #[cfg(test)]
    pub(super) fn refs(&self, id: BlockId) -> u32 {
        self.blocks[id.0 as usize].refs
    }
}
