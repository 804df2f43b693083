//! OpenAI's encodings, compiled in. Each is built once per process, when a configuration first names it: 30 to 50 MB
//! of tables that most deployments never need.

use std::sync::OnceLock;

use tiktoken_rs::CoreBPE;

use crate::ascii::Ascii;
use crate::chunks::chunks;
use crate::error::LoadError;
use crate::specials::Special;
use crate::vocab::{Kind, Vocab};

#[derive(Clone, Copy)]
pub(crate) struct Builtin {
    inner: &'static CoreBPE,
    tokens: u32,
    /// The fast way for ASCII text, where there is one.
    ascii: Option<&'static Ascii>,
}

/// Built once per process, as the encoding is.
static O200K_ASCII: OnceLock<Ascii> = OnceLock::new();

impl Builtin {
    pub(crate) fn named(name: &str) -> Result<Self, LoadError> {
        match name {
            "o200k_base" => {
                let plain = Self { inner: tiktoken_rs::o200k_base_singleton(), tokens: 200_019, ascii: None };
                Ok(Self { ascii: Some(O200K_ASCII.get_or_init(|| Ascii::new(plain.vocab()))), ..plain })
            }
            "cl100k_base" => Ok(Self { inner: tiktoken_rs::cl100k_base_singleton(), tokens: 100_277, ascii: None }),
            _ => Err(LoadError::Builtin { name: name.to_owned() }),
        }
    }

    pub(crate) fn encode(self, text: &str, special: Special, ids: &mut Vec<u32>) {
        for chunk in chunks(text) {
            match (special, self.ascii) {
                (Special::Plain, Some(ascii)) if chunk.is_ascii() => {
                    ascii.encode(chunk, ids, |piece, ids| ids.extend(self.inner.encode_ordinary(piece)));
                }
                (Special::Plain, _) => ids.extend(self.inner.encode_ordinary(chunk)),
                (Special::Parse, _) => ids.extend(self.inner.encode_with_special_tokens(chunk)),
            }
        }
    }

    pub(crate) fn vocab(self) -> Vocab {
        let control = self.inner.special_tokens();
        let mut vocab = Vocab::with_capacity(self.tokens as usize);
        for id in 0..self.tokens {
            // Both encodings have a few unassigned ids between the text and the special tokens.
            match self.inner.decode_bytes(&[id]) {
                Ok(bytes) if std::str::from_utf8(&bytes).is_ok_and(|text| control.contains(text)) => {
                    vocab.push(bytes, Kind::Control);
                }
                Ok(bytes) => vocab.push(bytes, Kind::Normal),
                Err(_) => vocab.push([], Kind::Unused),
            }
        }
        vocab
    }
}
