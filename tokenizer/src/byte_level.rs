//! Byte-level BPE ("gpt2" vocabularies), fed from the tokens and merges of the model file: in one pass where the
//! family's pattern is written by hand and the merges allow it, else through the `tokenizers` library. Fixed strings
//! are cut out before, by `specials`.

use std::borrow::Cow;

use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab as Ids};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper, Tokenizer};

use crate::bpe::{Bpe, Merge};
use crate::chunks::chunks;
use crate::error::LoadError;
use crate::pre_tokenizer::Scheme;
use crate::vocab::Vocab;
use crate::words::Words;

#[derive(Debug)]
pub(crate) enum ByteLevel {
    Words {
        words: Box<Words>,
        /// The tokenizer composes characters (NFC) first.
        compose: bool,
    },
    Library(Box<Tokenizer>),
}

/// The tokens that text may become, by their byte-level spelling, and the merges between them in order.
#[derive(Clone, Default)]
pub(crate) struct Merges {
    pub(crate) ids: Ids,
    pub(crate) merges: Vec<(String, String)>,
}

impl ByteLevel {
    pub(crate) fn new(vocab: &Vocab, merges: Merges, scheme: &Scheme) -> Result<Self, LoadError> {
        check_merges(&merges)?;
        let one_pass = scheme.pattern.and_then(|pattern| Some((pattern, one_pass(vocab, &merges, scheme)?)));
        match one_pass {
            Some((pattern, bpe)) => {
                Ok(Self::Words { words: Box::new(Words::new(pattern, bpe)), compose: scheme.compose })
            }
            None => Self::library(merges, scheme),
        }
    }

    pub(crate) fn library(Merges { ids, merges }: Merges, scheme: &Scheme) -> Result<Self, LoadError> {
        let vocabulary = |error: tokenizers::Error| LoadError::Vocabulary { reason: error.to_string() };
        let model: BPE = BpeBuilder::new()
            .vocab_and_merges(ids, merges)
            .ignore_merges(scheme.ignore_merges)
            .build()
            .map_err(vocabulary)?;
        let mut inner = Tokenizer::new(model);
        inner.with_pre_tokenizer(Some(scheme.build()?));
        if scheme.compose {
            inner.with_normalizer(Some(NormalizerWrapper::from(NFC))).map_err(vocabulary)?;
        }
        Ok(Self::Library(Box::new(inner)))
    }

    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        match self {
            Self::Words { words, compose: false } => words.encode(text, ids),
            Self::Words { words, compose: true } => words.encode(&composed(text), ids),
            Self::Library(inner) => {
                for chunk in chunks(text) {
                    let encoding = inner.encode_fast(chunk, false);
                    // The only failure is a pattern that gives up on its input; its limit is far above a chunk.
                    let encoding = encoding.expect("invariant: a chunk is within the patterns' limits");
                    ids.extend_from_slice(encoding.get_ids());
                }
            }
        }
    }
}

/// The text in Unicode's composed form; all ASCII is.
fn composed(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut normalized = NormalizedString::from(text);
    match NFC.normalize(&mut normalized) {
        Ok(()) => Cow::Owned(normalized.get().to_owned()),
        // It has no way to fail; what it could not compose would stay as it is.
        Err(_) => Cow::Borrowed(text),
    }
}

fn one_pass(vocab: &Vocab, Merges { ids, merges }: &Merges, scheme: &Scheme) -> Option<Bpe> {
    let mut joined = String::new();
    let merges = merges.iter().filter_map(|(left, right)| {
        joined.clear();
        joined.extend([left.as_str(), right.as_str()]);
        Some(Merge { left: *ids.get(left)?, right: *ids.get(right)?, merged: *ids.get(&joined)? })
    });
    Bpe::of_merges(vocab, merges, scheme.ignore_merges)
}

/// The library panics on merges longer than the longest token, so every merge is checked to make a token first.
fn check_merges(Merges { ids, merges }: &Merges) -> Result<(), LoadError> {
    let mut joined = String::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        joined.clear();
        joined.extend([left.as_str(), right.as_str()]);
        if let Some(missing) = [left, right, &joined].into_iter().find(|text| !ids.contains_key(text.as_str())) {
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
