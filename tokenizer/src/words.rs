//! Text to tokens for vocabularies that cut text into pieces and merge each by itself: pattern and merges together.

use crate::bpe::{Bpe, DeadEnds};
use crate::pattern::Pattern;

#[derive(Debug)]
pub(crate) struct Words {
    pattern: Pattern,
    bpe: Bpe,
}

impl Words {
    pub(crate) fn new(pattern: Pattern, bpe: Bpe) -> Self {
        Self { pattern, bpe }
    }

    /// Appends the tokens of `text`, which holds no fixed strings any more.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut dead = DeadEnds::default();
        self.pattern.pieces(text, |piece| {
            let mut rest = piece.as_bytes();
            while !rest.is_empty() {
                let done = self.bpe.encode(rest, &mut dead, ids);
                // Some vocabularies have no token for bytes that never occurred in training: nothing is made of those.
                rest = rest.get(done + 1..).unwrap_or_default();
            }
        });
    }
}
