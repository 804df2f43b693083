//! Merging pair by pair, the best score first: for vocabularies whose scores do not allow one pass. What becomes of a
//! character without a piece is the caller's part.

use std::collections::BinaryHeap;

use crate::pieces::Pieces;
use crate::vocab::Vocab;

/// What merging looks up.
#[derive(Debug)]
pub(super) struct ByScore {
    pieces: Pieces,
    scores: Vec<f32>,
}

/// Used again for every word.
#[derive(Default)]
pub(super) struct Buffers {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Merge>,
}

/// A stretch of the word in a doubly linked list; `len` 0 = merged away.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    len: u32,
    previous: u32,
    next: u32,
    id: u32,
}

/// Marks a symbol that is no piece.
const NONE: u32 = u32::MAX;

impl ByScore {
    /// With a score for each token of the vocabulary.
    pub(super) fn new(vocab: &Vocab, scores: Vec<f32>) -> Self {
        Self { pieces: Pieces::of(vocab), scores }
    }

    /// Appends the tokens of a word; `fall_back` does so for a character without a piece.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        word: &str,
        Buffers { symbols, heap }: &mut Buffers,
        ids: &mut Vec<u32>,
        fall_back: impl Fn(&[u8], &mut Vec<u32>),
    ) {
        symbols.clear();
        heap.clear();
        for (start, char) in word.char_indices() {
            let index = symbols.len() as u32;
            let len = char.len_utf8() as u32;
            let id = self.pieces.find(vocab, &word.as_bytes()[start..start + len as usize]).unwrap_or(NONE);
            symbols.push(Symbol { start: start as u32, len, previous: index.wrapping_sub(1), next: index + 1, id });
        }
        self.merge(vocab, word, symbols, heap);
        let (mut at, end) = (0, symbols.len() as u32);
        while at != end {
            let symbol = symbols[at as usize];
            match symbol.id {
                NONE => fall_back(&word.as_bytes()[symbol.start as usize..][..symbol.len as usize], ids),
                id => ids.push(id),
            }
            at = symbol.next;
        }
    }

    fn merge(&self, vocab: &Vocab, word: &str, symbols: &mut [Symbol], heap: &mut BinaryHeap<Merge>) {
        let end = symbols.len() as u32;
        for right in 1..end {
            heap.extend(self.pair(vocab, word, symbols, right - 1, right));
        }
        while let Some(merge) = heap.pop() {
            let (left, right) = (merge.left(), merge.right);
            let (l, r) = (symbols[left as usize], symbols[right as usize]);
            // One side has been merged with something else since this pair was found.
            if l.len == 0 || r.len == 0 || l.len + r.len != merge.len {
                continue;
            }
            symbols[left as usize] = Symbol { len: merge.len, next: r.next, id: merge.id, ..l };
            symbols[right as usize].len = 0;
            if r.next != end {
                symbols[r.next as usize].previous = left;
                heap.extend(self.pair(vocab, word, symbols, left, r.next));
            }
            if l.previous != NONE {
                heap.extend(self.pair(vocab, word, symbols, l.previous, left));
            }
        }
    }

    /// Two neighbours, if their concatenation is a piece.
    fn pair(&self, vocab: &Vocab, word: &str, symbols: &[Symbol], left: u32, right: u32) -> Option<Merge> {
        let (l, r) = (symbols[left as usize], symbols[right as usize]);
        let len = l.len + r.len;
        let joined = &word.as_bytes()[l.start as usize..][..len as usize];
        let id = self.pieces.find(vocab, joined)?;
        Some(Merge::new(self.scores[id as usize], left, right, len, id))
    }
}

/// Ordered by score, then the leftmost pair first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Merge {
    /// The score in an order-preserving form above, the complement of the left index below.
    key: u64,
    right: u32,
    len: u32,
    id: u32,
}

impl Merge {
    fn new(score: f32, left: u32, right: u32, len: u32, id: u32) -> Self {
        // Flipping the sign bit (and all bits of negative numbers) makes floats sort as integers; -0.0 is 0.0.
        let bits = (score + 0.0).to_bits();
        let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        Self { key: u64::from(ordered) << 32 | u64::from(!left), right, len, id }
    }

    fn left(&self) -> u32 {
        !(self.key as u32)
    }
}
