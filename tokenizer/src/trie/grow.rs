//! Nodes and edges while they are collected: the shape of the trie, without what makes walking it quick.

use super::{NO_TEXT, NONE, NOWHERE, Node, SEARCH, SLOT, Trie, pair};

const EMPTY: u64 = u64::MAX;

/// Nodes below `texts` are texts, named by their places.
pub(super) struct Grown {
    texts: u32,
    nodes: usize,
    one: Vec<u32>,
    two: Vec<u32>,
    /// Node and byte above, where that leads below: open addressing, a power of two, at most three quarters full.
    slots: Vec<u64>,
    edges: usize,
}

impl Grown {
    pub(super) fn new(texts: &[&[u8]]) -> Option<(Self, Vec<u32>)> {
        let mut grown = Self {
            texts: u32::try_from(texts.len()).ok()?,
            nodes: texts.len(),
            one: vec![NONE; 1 << 8],
            two: vec![NONE; 1 << 16],
            slots: vec![EMPTY; (texts.len() * 2).next_power_of_two().max(16)],
            edges: 0,
        };
        let mut shorter = Vec::with_capacity(texts.len());
        for (id, text) in (0..).zip(texts) {
            shorter.push(grown.insert(text, id)?);
            // Nodes and bytes share 32 bits.
            if grown.nodes >= NO_TEXT as usize {
                return None;
            }
        }
        Some((grown, shorter))
    }

    /// The longest text on the way, `NONE` if there is none; nothing at all if the text is there already.
    fn insert(&mut self, text: &[u8], id: u32) -> Option<u32> {
        let (last, before) = text.split_last()?;
        let (mut node, mut longest) = (NONE, NONE);
        for (depth, byte) in before.iter().enumerate() {
            node = self.child(text, depth, node, *byte).unwrap_or_else(|| {
                let inner = self.nodes as u32;
                self.nodes += 1;
                self.link(text, depth, node, *byte, inner);
                inner
            });
            if node < self.texts {
                longest = node;
            }
        }
        let depth = before.len();
        match self.child(text, depth, node, *last) {
            // The walk of a longer text cannot have made it: those come later.
            Some(_) => None,
            None => {
                self.link(text, depth, node, *last, id);
                Some(longest)
            }
        }
    }

    fn child(&self, text: &[u8], depth: usize, node: u32, byte: u8) -> Option<u32> {
        let child = match depth {
            0 => self.one[usize::from(byte)],
            1 => self.two[pair(text[0], byte)],
            _ => self.find(key(node, byte)),
        };
        (child != NONE).then_some(child)
    }

    fn find(&self, key: u64) -> u32 {
        let mut at = self.start(key);
        loop {
            match self.slots[at] {
                EMPTY => return NONE,
                slot if slot >> 32 == key => return slot as u32,
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    fn link(&mut self, text: &[u8], depth: usize, node: u32, byte: u8, child: u32) {
        match depth {
            0 => self.one[usize::from(byte)] = child,
            1 => self.two[pair(text[0], byte)] = child,
            _ => {
                if (self.edges + 1) * 4 > self.slots.len() * 3 {
                    let old = std::mem::take(&mut self.slots);
                    self.slots = vec![EMPTY; old.len() * 2];
                    old.into_iter().filter(|slot| *slot != EMPTY).for_each(|slot| self.place(slot));
                }
                self.place(key(node, byte) << 32 | u64::from(child));
                self.edges += 1;
            }
        }
    }

    fn place(&mut self, slot: u64) {
        let mut at = self.start(slot >> 32);
        while self.slots[at] != EMPTY {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = slot;
    }

    fn start(&self, key: u64) -> usize {
        // The upper bits of the product hold the whole key's influence.
        let shift = self.slots.len().leading_zeros() + 1;
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> shift) as usize
    }

    /// The same edges in order: by the node above, so that those of one node lie together.
    pub(super) fn finish(self) -> Trie {
        let mut edges: Vec<u64> = self.slots.into_iter().filter(|slot| *slot != EMPTY).collect();
        edges.sort_unstable();
        let mut leads = vec![NOWHERE; self.nodes];
        let mut first = 0;
        for of_one in edges.chunk_by_mut(|a, b| a >> 40 == b >> 40) {
            let mask = of_one.iter().fold(0, |mask, edge| mask | 1_u64 << slot(*edge));
            let above = (of_one[0] >> 40) as usize;
            leads[above] = if mask.count_ones() as usize == of_one.len() {
                of_one.sort_unstable_by_key(|edge| slot(*edge));
                Node { first, next: mask, ..NOWHERE }
            } else {
                Node { first: first | SEARCH, next: of_one.len() as u64, ..NOWHERE }
            };
            first += of_one.len() as u32;
        }
        let node = |id: u32, byte: u8| match id {
            NONE => NOWHERE,
            id => {
                let text = if id < self.texts { id } else { NO_TEXT };
                Node { text_and_byte: text << 8 | u32::from(byte), ..leads[id as usize] }
            }
        };
        Trie {
            one: self.one.iter().map(|id| node(*id, 0)).collect(),
            two: self.two.iter().map(|id| node(*id, 0)).collect(),
            nodes: edges.iter().map(|edge| node(*edge as u32, byte(*edge))).collect(),
        }
    }
}

fn key(node: u32, byte: u8) -> u64 {
    u64::from(node) << 8 | u64::from(byte)
}

fn byte(edge: u64) -> u8 {
    (edge >> 32) as u8
}

fn slot(edge: u64) -> u8 {
    SLOT[usize::from(byte(edge))]
}
