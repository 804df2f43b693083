//! Byte-level BPE ("gpt2" vocabularies) through the `tokenizers` library, fed from the tokens and merges of the
//! model file. Fixed strings are cut out before, by `specials`.

use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::{NormalizerWrapper, Tokenizer};

use crate::chunks::chunks;
use crate::error::LoadError;
use crate::pre_tokenizer::Scheme;

#[derive(Debug)]
pub(crate) struct ByteLevel {
    inner: Tokenizer,
}

impl ByteLevel {
    pub(crate) fn new(
        tokens: impl IntoIterator<Item = (String, u32)>,
        merges: Vec<(String, String)>,
        scheme: &Scheme,
    ) -> Result<Self, LoadError> {
        let vocabulary = |error: tokenizers::Error| LoadError::Vocabulary { reason: error.to_string() };
        let tokens: Vocab = tokens.into_iter().collect();
        check_merges(&tokens, &merges)?;
        let model: BPE = BpeBuilder::new()
            .vocab_and_merges(tokens, merges)
            .ignore_merges(scheme.ignore_merges)
            .build()
            .map_err(vocabulary)?;
        let mut inner = Tokenizer::new(model);
        inner.with_pre_tokenizer(Some(scheme.build()?));
        if scheme.compose {
            inner.with_normalizer(Some(NormalizerWrapper::from(NFC))).map_err(vocabulary)?;
        }
        Ok(Self { inner })
    }

    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        for chunk in chunks(text) {
            let encoding = self.inner.encode_fast(chunk, false);
            // The only failure is a pattern that gives up on its input; its limit is far above a chunk.
            ids.extend_from_slice(encoding.expect("invariant: a chunk is within the patterns' limits").get_ids());
        }
    }
}

/// The library panics on merges longer than the longest token, so every merge is checked to make a token first.
fn check_merges(tokens: &Vocab, merges: &[(String, String)]) -> Result<(), LoadError> {
    let mut joined = String::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        joined.clear();
        joined.extend([left.as_str(), right.as_str()]);
        if let Some(missing) = [left, right, &joined].into_iter().find(|text| !tokens.contains_key(text.as_str())) {
            let reason = format!("merge {rank} ({left:?}, {right:?}) needs the token {missing:?}, which is not there");
            return Err(LoadError::Vocabulary { reason });
        }
    }
    Ok(())
}

/// The byte that a character of a byte-level vocabulary stands for: printable Latin-1 is itself, the other 68
/// bytes follow in order from U+0100.
pub(crate) fn byte_of(char: char) -> Option<u8> {
    const REST: [u8; 68] = rest();
    match char {
        '!'..='~' | '\u{A1}'..='\u{AC}' | '\u{AE}'..='\u{FF}' => Some(char as u8),
        '\u{100}'..='\u{143}' => Some(REST[char as usize - 0x100]),
        _ => None,
    }
}

const fn rest() -> [u8; 68] {
    let mut rest = [0; 68];
    let (mut byte, mut at) = (0u16, 0);
    while byte < 256 {
        if !matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
            rest[at] = byte as u8;
            at += 1;
        }
        byte += 1;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut bytes: Vec<u8> = ('\0'..='\u{200}').filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(
            [byte_of('Ġ'), byte_of('Ċ'), byte_of('a'), byte_of('漢')],
            [Some(b' '), Some(b'\n'), Some(b'a'), None]
        );
    }
}
