//! SentencePiece BPE ("llama" vocabularies): the best-scored adjacent pair whose concatenation is a piece is merged
//! until none is left. Merges are implied by the pieces and their scores, so none are stored: the 513,511 merges
//! that Gemma's vocabulary implies would cost seconds and tens of megabytes at load.

use std::collections::BinaryHeap;

use crate::error::LoadError;
use crate::pieces::Pieces;
use crate::vocab::{Kind, SPACE_MARK, Vocab};

#[derive(Debug)]
pub(crate) struct SentencePiece {
    pieces: Pieces,
    scores: Vec<f32>,
    /// The token of each byte, for characters that have none.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    /// The vocabulary was trained with a space before the first word.
    space_prefix: bool,
    /// Bytes after which a piece may go on with a space. After any other byte a space starts a new word, and words
    /// can be merged one by one: the same tokens, with small heaps.
    joins_space: [bool; 256],
}

/// Marks a symbol that is no piece.
const NONE: u32 = u32::MAX;

impl SentencePiece {
    pub(crate) fn new(
        vocab: &Vocab,
        scores: Vec<f32>,
        unknown: Option<u32>,
        space_prefix: bool,
    ) -> Result<Self, LoadError> {
        if scores.len() < vocab.len() {
            let reason = format!("{} scores for {} tokens", scores.len(), vocab.len());
            return Err(LoadError::Vocabulary { reason });
        }
        let mut bytes = [None; 256];
        let mut joins_space = [false; 256];
        for (id, text, kind) in vocab.iter() {
            match kind {
                Kind::Byte => bytes[text[0] as usize] = Some(id),
                Kind::Normal => {
                    for pair in text.windows(2).filter(|pair| pair[0] != b' ' && pair[1] == b' ') {
                        joins_space[pair[0] as usize] = true;
                    }
                }
                _ => {}
            }
        }
        Ok(Self { pieces: Pieces::of(vocab), scores, bytes, unknown, space_prefix, joins_space })
    }

    pub(crate) fn space_prefix(&self) -> bool {
        self.space_prefix
    }

    /// Appends the tokens of `text`, which holds no fixed strings any more.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let replaced;
        let mut text = text;
        if self.space_prefix || text.contains(SPACE_MARK) {
            let prefix = if self.space_prefix { " " } else { "" };
            replaced = format!("{prefix}{}", text.replace(SPACE_MARK, " "));
            text = &replaced;
        }
        let bytes = text.as_bytes();
        let mut start = 0;
        for at in 1..bytes.len() {
            let (before, here) = (bytes[at - 1], bytes[at]);
            if here == b' ' && before != b' ' && !self.joins_space[before as usize] {
                self.word(vocab, &text[start..at], scratch, ids);
                start = at;
            }
        }
        if start < text.len() {
            self.word(vocab, &text[start..], scratch, ids);
        }
    }

    fn word(&self, vocab: &Vocab, word: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let Scratch { symbols, heap } = scratch;
        symbols.clear();
        heap.clear();
        for (start, char) in word.char_indices() {
            let index = symbols.len() as u32;
            let len = char.len_utf8() as u32;
            let id = self.pieces.find(vocab, &word.as_bytes()[start..start + len as usize]).unwrap_or(NONE);
            symbols.push(Symbol { start: start as u32, len, previous: index.wrapping_sub(1), next: index + 1, id });
        }
        let end = symbols.len() as u32;
        for right in 1..end {
            self.offer(vocab, word, symbols, heap, right - 1, right);
        }
        while let Some(merge) = heap.pop() {
            let (left, right) = (merge.left(), merge.right);
            let (l, r) = (symbols[left as usize], symbols[right as usize]);
            // One side has been merged with something else since this pair was offered.
            if l.len == 0 || r.len == 0 || l.len + r.len != merge.len {
                continue;
            }
            symbols[left as usize] = Symbol { len: merge.len, next: r.next, id: merge.id, ..l };
            symbols[right as usize].len = 0;
            if r.next != end {
                symbols[r.next as usize].previous = left;
                self.offer(vocab, word, symbols, heap, left, r.next);
            }
            if l.previous != NONE {
                self.offer(vocab, word, symbols, heap, l.previous, left);
            }
        }
        let mut at = 0;
        while at != end {
            let symbol = symbols[at as usize];
            match symbol.id {
                NONE => self.fall_back(&word.as_bytes()[symbol.start as usize..][..symbol.len as usize], ids),
                id => ids.push(id),
            }
            at = symbol.next;
        }
    }

    /// Puts the pair on the heap if its concatenation is a piece.
    fn offer(
        &self,
        vocab: &Vocab,
        word: &str,
        symbols: &[Symbol],
        heap: &mut BinaryHeap<Merge>,
        left: u32,
        right: u32,
    ) {
        let (l, r) = (symbols[left as usize], symbols[right as usize]);
        let len = l.len + r.len;
        let joined = &word.as_bytes()[l.start as usize..][..len as usize];
        if let Some(id) = self.pieces.find(vocab, joined) {
            heap.push(Merge::new(self.scores[id as usize], left, right, len, id));
        }
    }

    fn fall_back(&self, char: &[u8], ids: &mut Vec<u32>) {
        if char.iter().all(|&byte| self.bytes[byte as usize].is_some()) {
            ids.extend(char.iter().filter_map(|&byte| self.bytes[byte as usize]));
        } else {
            ids.extend(self.unknown);
        }
    }
}

/// Buffers of one encode call, used again for every word.
#[derive(Default)]
pub(crate) struct Scratch {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn model(pieces: &[(&str, f32, Kind)]) -> (Vocab, SentencePiece) {
        let mut vocab = Vocab::default();
        pieces.iter().for_each(|(piece, _, kind)| vocab.push_piece(piece.as_bytes(), *kind));
        let scores = pieces.iter().map(|(_, score, _)| *score).collect();
        let model = SentencePiece::new(&vocab, scores, Some(0), false).unwrap();
        (vocab, model)
    }

    fn encode((vocab, model): &(Vocab, SentencePiece), text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        model.encode(vocab, text, &mut Scratch::default(), &mut ids);
        ids
    }

    fn small() -> (Vocab, SentencePiece) {
        model(&[
            ("<unk>", 0.0, Kind::Unknown),
            ("a", -4.0, Kind::Normal),
            ("b", -5.0, Kind::Normal),
            ("ab", -1.0, Kind::Normal),
            ("ba", -0.5, Kind::Normal),
            ("▁a", -2.0, Kind::Normal),
            ("▁", -6.0, Kind::Normal),
            ("a▁a", -0.1, Kind::Normal),
            ("<0xC3>", 0.0, Kind::Byte),
            ("<0xA9>", 0.0, Kind::Byte),
            ("bb", 0.0, Kind::Control),
        ])
    }

    #[test]
    fn the_best_score_is_merged_first_and_ties_from_the_left() {
        assert_eq!(encode(&small(), "aba"), [1, 4]); // "ba" before "ab"
        assert_eq!(encode(&small(), "abab"), [1, 4, 2]);
        assert_eq!(encode(&small(), "bb"), [2, 2]); // never a control token
    }

    #[test]
    fn a_piece_may_span_a_space() {
        assert_eq!(encode(&small(), "a a"), [7]); // " a" first, then "a" and " a"
        assert_eq!(encode(&small(), "b a"), [2, 5]);
    }

    #[test]
    fn characters_without_a_piece_become_bytes_or_the_unknown_token() {
        assert_eq!(encode(&small(), "é"), [8, 9]);
        assert_eq!(encode(&small(), "aßb"), [1, 0, 2]);
    }

    #[test]
    fn literal_space_marks_are_spaces() {
        assert_eq!(encode(&small(), "b▁a"), encode(&small(), "b a"));
    }
}
