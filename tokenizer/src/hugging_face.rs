//! A `tokenizer.json` through the `tokenizers` library, as its own model defines it.

use std::path::Path;
use std::sync::OnceLock;

use tokenizers::Tokenizer;

use crate::error::LoadError;
use crate::specials::Special;
use crate::vocab::{Kind, Vocab, parse_byte};

#[derive(Debug)]
pub(crate) struct HuggingFace {
    /// Reads special tokens in text as text.
    plain: Tokenizer,
    /// Parses them; only chat templates need it, so it is made when first asked for.
    parse: OnceLock<Tokenizer>,
}

impl HuggingFace {
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let refuse = |reason: String| LoadError::Json { path: path.display().to_string(), reason };
        let mut plain = Tokenizer::from_file(path).map_err(|error| refuse(error.to_string()))?;
        // A file may carry the training run's truncation and padding; a count must see the whole text and no more.
        plain.with_truncation(None).map_err(|error| refuse(error.to_string()))?.with_padding(None);
        plain.set_encode_special_tokens(true);
        Ok(Self { plain, parse: OnceLock::new() })
    }

    pub(crate) fn encode(&self, text: &str, special: Special, ids: &mut Vec<u32>) {
        let tokenizer = match special {
            Special::Plain => &self.plain,
            Special::Parse => self.parse.get_or_init(|| {
                let mut parse = self.plain.clone();
                parse.set_encode_special_tokens(false);
                parse
            }),
        };
        // Models without an unknown token refuse text they cannot spell; such text then has no tokens.
        if let Ok(encoding) = tokenizer.encode_fast(text, false) {
            ids.extend_from_slice(encoding.get_ids());
        }
    }

    /// What the file's post-processor puts before and after a text: usually one begin-of-text token and nothing.
    pub(crate) fn frame(&self) -> (Option<u32>, Option<u32>) {
        let framed = self.plain.encode_fast("", true);
        match framed.as_ref().map(|encoding| encoding.get_ids()).unwrap_or_default() {
            [] => (None, None),
            [begin] => (Some(*begin), None),
            [begin, .., end] => (Some(*begin), Some(*end)),
        }
    }

    pub(crate) fn vocab(&self) -> Vocab {
        let tokenizer = &self.plain;
        let added = tokenizer.get_added_tokens_decoder();
        let byte_level = self.is_byte_level();
        let ids = tokenizer.get_vocab(true).into_values().max().map_or(0, |last| last + 1);
        let mut vocab = Vocab::with_capacity(ids as usize);
        for id in 0..ids {
            match (added.get(&id), tokenizer.id_to_token(id)) {
                (Some(token), _) if token.special => vocab.push(token.content.bytes(), Kind::Control),
                (Some(token), _) => vocab.push(token.content.bytes(), Kind::UserDefined),
                (None, Some(text)) if byte_level => vocab.push_byte_level(&text, Kind::Normal),
                (None, Some(text)) if parse_byte(text.as_bytes()).is_some() => {
                    vocab.push_piece(text.as_bytes(), Kind::Byte);
                }
                (None, Some(text)) => vocab.push_piece(text.as_bytes(), Kind::Normal),
                (None, None) => vocab.push([], Kind::Unused),
            }
        }
        vocab
    }

    /// Decoders are nested; the name occurs in their JSON form whatever the nesting.
    fn is_byte_level(&self) -> bool {
        let decoder = self.plain.get_decoder().and_then(|decoder| serde_json::to_string(decoder).ok());
        decoder.is_some_and(|json| json.contains("\"ByteLevel\""))
    }
}
