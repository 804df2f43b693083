//! Bookkeeping of the KV cache: which block holds which positions of which sequence, and which prefixes can be
//! reused. Pure: it moves block numbers, the backend owns the bytes.

use wire::load::KvBlocks;

use crate::backend::{BLOCK_SIZE, BlockId, KvLayout, Spec};

mod blocks;
mod prefix;

use blocks::{BlockPool, Eviction};
use prefix::{BlockKey, Chain, PrefixIndex, first_visible_block};

#[derive(Debug)]
pub struct KvCache {
    windows: Vec<Option<u32>>,
    pool: BlockPool,
    index: PrefixIndex,
    model_digest: [u8; 32],
    numerics_id: String,
}

/// The blocks of one sequence. Returned to the cache by [`KvCache::close`].
#[derive(Debug)]
pub struct SequenceBlocks {
    /// One table per group, as [`crate::backend::SeqPlan::tables`] wants it.
    tables: Vec<Vec<BlockId>>,
    chain: Chain,
    /// Full blocks already offered to the index.
    named: usize,
    /// Per group: blocks before this one fell out of the window.
    dropped: Vec<usize>,
}

/// Whether a sequence may read what others computed. Prompt scoring may not: it needs every row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    Prefix,
    Nothing,
}

impl KvCache {
    pub fn new(spec: &Spec) -> Self {
        Self {
            windows: windows(&spec.kv),
            pool: BlockPool::new(spec.kv.total_blocks),
            index: PrefixIndex::default(),
            model_digest: spec.model_digest,
            numerics_id: spec.numerics_id.clone(),
        }
    }

    /// Opens a sequence on `tokens`, holding the longest prefix that is already computed. At least the last token is
    /// left to compute, for its logits. The second value is the number of positions found.
    pub fn open(&mut self, salt: &str, tokens: &[u32], reuse: Reuse) -> (SequenceBlocks, u32) {
        // The fourth part is the adapter's digest; there are no adapters.
        let mut chain = Chain::new(&[salt.as_bytes(), &self.model_digest, self.numerics_id.as_bytes(), b""]);
        chain.extend(tokens);
        let usable = tokens.len().saturating_sub(1) / BLOCK_SIZE as usize;
        let hit = match reuse {
            Reuse::Prefix => self.index.longest_hit(&chain.links()[..usable.min(chain.links().len())], &self.windows),
            Reuse::Nothing => 0,
        };
        let positions = hit as u32 * BLOCK_SIZE;
        let dropped: Vec<usize> = self.windows.iter().map(|w| first_visible_block(positions, *w).min(hit)).collect();
        let tables =
            (0_u32..).zip(&dropped).map(|(group, first)| self.hold_prefix(&chain, group, *first, hit)).collect();
        (SequenceBlocks { tables, chain, named: hit, dropped }, positions)
    }

    fn hold_prefix(&mut self, chain: &Chain, group: u32, first: usize, end: usize) -> Vec<BlockId> {
        let mut table = vec![BlockId::NONE; first];
        for link in &chain.links()[first..end] {
            let id = self.index.find(*link, group).expect("invariant: a hit lists only indexed blocks");
            self.pool.share(id);
            table.push(id);
        }
        table
    }

    /// Makes room for positions `0..positions` in every group; all or nothing.
    pub fn grow(&mut self, blocks: &mut SequenceBlocks, positions: u32) -> bool {
        let wanted = positions.div_ceil(BLOCK_SIZE) as usize;
        let missing: usize = blocks.tables.iter().map(|table| wanted.saturating_sub(table.len())).sum();
        if missing > self.pool.idle() as usize {
            return false;
        }
        for table in &mut blocks.tables {
            while table.len() < wanted {
                let (id, evicted) = self.pool.take().expect("invariant: idle blocks were counted above");
                if let Some(key) = evicted {
                    self.index.remove(&key);
                }
                table.push(id);
            }
        }
        true
    }

    /// Positions `0..computed` of `tokens` are computed: full blocks become findable, and blocks that no later
    /// position sees are given back, still findable.
    pub fn commit(&mut self, blocks: &mut SequenceBlocks, tokens: &[u32], computed: u32) {
        let full = (computed / BLOCK_SIZE) as usize;
        blocks.chain.extend(&tokens[..full * BLOCK_SIZE as usize]);
        for (group, table) in (0_u32..).zip(&blocks.tables) {
            for (link, id) in blocks.chain.links().iter().zip(table).take(full).skip(blocks.named) {
                let key = BlockKey { link: *link, group };
                if self.index.insert(key, *id) {
                    self.pool.name(*id, key);
                }
            }
        }
        blocks.named = blocks.named.max(full);
        for ((table, dropped), window) in blocks.tables.iter_mut().zip(&mut blocks.dropped).zip(&self.windows) {
            let visible = first_visible_block(computed, *window).min(table.len());
            for entry in table.iter_mut().take(visible).skip(*dropped) {
                self.pool.release(std::mem::replace(entry, BlockId::NONE), Eviction::OutOfWindow);
            }
            *dropped = visible.max(*dropped);
        }
    }

    /// Gives all blocks back. The last go first, so that of a prefix its head survives longest.
    pub fn close(&mut self, blocks: SequenceBlocks) {
        for (table, dropped) in blocks.tables.iter().zip(&blocks.dropped) {
            for id in table[(*dropped).min(table.len())..].iter().rev() {
                self.pool.release(*id, Eviction::Cached);
            }
        }
    }

    /// Blocks that one sequence of `positions` holds at most, computed in chunks of at most `chunk` positions.
    pub fn blocks_for(&self, positions: u32, chunk: u32) -> u64 {
        let all = u64::from(positions.div_ceil(BLOCK_SIZE));
        let most = |window: &Option<u32>| match window {
            // The window and the chunk may each begin and end inside a block.
            Some(window) => all.min(u64::from((window + chunk).div_ceil(BLOCK_SIZE)) + 1),
            None => all,
        };
        self.windows.iter().map(most).sum()
    }

    /// The longest sequence, up to `limit` positions, that the whole pool can hold.
    pub fn longest(&self, limit: u32, chunk: u32) -> u32 {
        let fits = |positions: &u32| self.blocks_for(*positions, chunk) <= u64::from(self.pool.total());
        let (mut low, mut high) = (0, limit);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(&middle) { low = middle } else { high = middle - 1 }
        }
        low
    }

    pub fn idle(&self) -> u32 {
        self.pool.idle()
    }

    pub fn groups(&self) -> u32 {
        self.windows.len() as u32
    }

    pub fn usage(&self) -> KvBlocks {
        let total = self.pool.total();
        KvBlocks { total, used: total - self.pool.idle(), cached: self.pool.cached() }
    }
}

impl SequenceBlocks {
    /// The tables cut to the blocks of positions `0..positions`.
    pub fn tables(&self, positions: u32) -> Vec<Vec<BlockId>> {
        let end = positions.div_ceil(BLOCK_SIZE) as usize;
        self.tables.iter().map(|table| table[..end.min(table.len())].to_vec()).collect()
    }
}

fn windows(layout: &KvLayout) -> Vec<Option<u32>> {
    layout.groups.iter().map(|group| group.window).collect()
}

#[cfg(test)]
mod tests;
