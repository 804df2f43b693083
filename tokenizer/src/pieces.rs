//! A hash index from the text of a piece to its id: open addressing over ids, keys stay in the vocabulary's buffer.

use crate::vocab::{Kind, Vocab};

/// Holds the normal tokens only: text must never merge into a control token.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// Per slot the upper half of the hash and the id + 1; 0 = free. A power of two, at most half full.
    slots: Vec<u64>,
    longest: usize,
}

impl Pieces {
    pub(crate) fn of(vocab: &Vocab) -> Self {
        let normal = || vocab.iter().filter(|&(_, text, kind)| kind == Kind::Normal && !text.is_empty());
        let slots = (normal().count() * 2).next_power_of_two().max(2);
        let longest = normal().map(|(_, text, _)| text.len()).max().unwrap_or(0);
        let mut pieces = Self { slots: vec![0; slots], longest };
        for (id, text, _) in normal() {
            pieces.insert(vocab, text, id);
        }
        pieces
    }

    fn insert(&mut self, vocab: &Vocab, text: &[u8], id: u32) {
        if let Err(free) = self.probe(vocab, text) {
            self.slots[free] = (hash(text) & TAG) | (u64::from(id) + 1);
        }
    }

    #[inline]
    pub(crate) fn find(&self, vocab: &Vocab, text: &[u8]) -> Option<u32> {
        if text.len() > self.longest {
            return None;
        }
        self.probe(vocab, text).ok()
    }

    /// The id of the text, or the free slot where it would go.
    fn probe(&self, vocab: &Vocab, text: &[u8]) -> Result<u32, usize> {
        let hash = hash(text);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Err(at);
            }
            if slot & TAG == hash & TAG {
                let id = (slot as u32) - 1;
                if vocab.bytes(id) == Some(text) {
                    return Ok(id);
                }
            }
            at = (at + 1) & mask;
        }
    }
}

const TAG: u64 = !0 << 32;

/// Multiply and fold, eight bytes at a time. The keys are a fixed vocabulary, so a seed would add nothing: text
/// can only ask, never fill the table.
fn hash(text: &[u8]) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let fold = |h: u64, word: u64| {
        let product = u128::from(h ^ word).wrapping_mul(u128::from(K));
        (product as u64) ^ (product >> 64) as u64
    };
    let (words, rest) = text.as_chunks::<8>();
    let mut h = words.iter().fold(K ^ text.len() as u64, |h, word| fold(h, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    h = fold(h, u64::from_le_bytes(last));
    fold(h, K)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_normal_token_is_found_and_no_other() {
        let mut vocab = Vocab::default();
        for number in 0..5_000 {
            vocab.push(
                format!("piece {number}").into_bytes(),
                if number % 3 == 0 { Kind::Control } else { Kind::Normal },
            );
        }
        let pieces = Pieces::of(&vocab);
        for number in 0..5_000u32 {
            let expect = (number % 3 != 0).then_some(number);
            assert_eq!(pieces.find(&vocab, format!("piece {number}").as_bytes()), expect);
        }
        assert_eq!(pieces.find(&vocab, b"piece"), None);
        assert_eq!(pieces.find(&vocab, b""), None);
        assert_eq!(pieces.find(&vocab, &[b'x'; 1000]), None);
    }
}
