//! Names of block contents and the index from name to block. A name covers everything that decides the bytes of a
//! block: salt, model, numerics, group and all tokens up to its end.

use std::collections::HashMap;

use crate::backend::{BLOCK_SIZE, BlockId};

/// 128 bits of BLAKE3 over everything up to and including one block of tokens.
pub(super) type Link = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockKey {
    pub(super) link: Link,
    pub(super) group: u32,
}

/// The links of one sequence's full blocks, each hashed over the one before.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    root: Link,
    links: Vec<Link>,
}

impl Chain {
    /// Every part is length-prefixed, so that no two tuples of parts share an encoding.
    pub(super) fn new(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self { root: truncate(&hasher), links: Vec::new() }
    }

    /// Hashes the full blocks of `tokens` that have no link yet.
    pub(super) fn extend(&mut self, tokens: &[u32]) {
        let done = self.links.len() * BLOCK_SIZE as usize;
        for block in tokens.get(done..).unwrap_or_default().chunks_exact(BLOCK_SIZE as usize) {
            let mut hasher = blake3::Hasher::new();
            hasher.update(self.links.last().unwrap_or(&self.root));
            block.iter().for_each(|token| {
                hasher.update(&token.to_le_bytes());
            });
            self.links.push(truncate(&hasher));
        }
    }

    pub(super) fn links(&self) -> &[Link] {
        &self.links
    }
}

fn truncate(hasher: &blake3::Hasher) -> Link {
    let mut link = Link::default();
    hasher.finalize_xof().fill(&mut link);
    link
}

#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    blocks: HashMap<BlockKey, BlockId>,
}

impl PrefixIndex {
    /// False if another block already holds this content: the newcomer stays nameless.
    pub(super) fn insert(&mut self, key: BlockKey, id: BlockId) -> bool {
        *self.blocks.entry(key).or_insert(id) == id
    }

    pub(super) fn remove(&mut self, key: &BlockKey) {
        self.blocks.remove(key);
    }

    pub(super) fn find(&self, link: Link, group: u32) -> Option<BlockId> {
        self.blocks.get(&BlockKey { link, group }).copied()
    }

    /// How many leading blocks of `links` can be reused: every group without a window holds all of them, and each
    /// window group holds those that the first uncomputed position still sees. `windows`: per group.
    pub(super) fn longest_hit(&self, links: &[Link], windows: &[Option<u32>]) -> usize {
        let mut best = 0;
        // Per group the number of consecutive blocks held that end here.
        let mut runs = vec![0_usize; windows.len()];
        for (index, link) in links.iter().enumerate() {
            let blocks = index + 1;
            let mut usable = true;
            for (group, (run, window)) in runs.iter_mut().zip(windows).enumerate() {
                *run = if self.find(*link, group as u32).is_some() { *run + 1 } else { 0 };
                if window.is_none() && *run < blocks {
                    return best;
                }
                usable &= *run >= blocks - first_visible_block(blocks as u32 * BLOCK_SIZE, *window);
            }
            if usable {
                best = blocks;
            }
        }
        best
    }
}

/// The first block that a query at `position` sees: positions `position - window + 1 ..` (0 without a window).
pub(super) fn first_visible_block(position: u32, window: Option<u32>) -> usize {
    window.map_or(0, |window| ((position + 1).saturating_sub(window) / BLOCK_SIZE) as usize)
}
