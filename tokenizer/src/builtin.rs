//! OpenAI's encodings, compiled in. Each is built once per process, when a configuration first names it: 30 to 50 MB
//! of tables that most deployments never need. The library that brings the vocabularies encodes only text with
//! special tokens in it; what clients wrote goes the fast way.

use std::sync::OnceLock;

use tiktoken_rs::CoreBPE;

use crate::bpe::Bpe;
use crate::chunks::chunks;
use crate::error::LoadError;
use crate::pattern::Pattern;
use crate::specials::Special;
use crate::vocab::{Kind, Vocab};
use crate::words::Words;

#[derive(Clone, Copy)]
pub(crate) struct Builtin {
    inner: &'static CoreBPE,
    tokens: u32,
    words: &'static Words,
}

static O200K: OnceLock<Words> = OnceLock::new();
static CL100K: OnceLock<Words> = OnceLock::new();

impl Builtin {
    pub(crate) fn named(name: &str) -> Result<Self, LoadError> {
        match name {
            "o200k_base" => {
                let pattern = Pattern::O200k { digits: 3, contractions: true };
                Ok(Self::new(tiktoken_rs::o200k_base_singleton(), 200_019, pattern, &O200K))
            }
            "cl100k_base" => {
                let pattern = Pattern::Cl100k { digits: 3, tail: true };
                Ok(Self::new(tiktoken_rs::cl100k_base_singleton(), 100_277, pattern, &CL100K))
            }
            _ => Err(LoadError::Builtin { name: name.to_owned() }),
        }
    }

    fn new(inner: &'static CoreBPE, tokens: u32, pattern: Pattern, words: &'static OnceLock<Words>) -> Self {
        let words = words.get_or_init(|| {
            let vocab = vocab(inner, tokens);
            // The ids of these encodings are the order of their merges.
            let bpe = Bpe::of_order(&vocab, 0..tokens, |text| text.len() == 1, true);
            Words::new(pattern, bpe.expect("invariant: tokens of these encodings are made of earlier ones"))
        });
        Self { inner, tokens, words }
    }

    pub(crate) fn encode(self, text: &str, special: Special, ids: &mut Vec<u32>) {
        match special {
            Special::Plain => self.words.encode(text, ids),
            Special::Parse => {
                chunks(text).for_each(|chunk| ids.extend(self.inner.encode_with_special_tokens(chunk)));
            }
        }
    }

    pub(crate) fn vocab(self) -> Vocab {
        vocab(self.inner, self.tokens)
    }
}

fn vocab(inner: &CoreBPE, tokens: u32) -> Vocab {
    let control = inner.special_tokens();
    let mut vocab = Vocab::with_capacity(tokens as usize);
    for id in 0..tokens {
        // Both encodings have a few unassigned ids between the text and the special tokens.
        match inner.decode_bytes(&[id]) {
            Ok(bytes) if std::str::from_utf8(&bytes).is_ok_and(|text| control.contains(text)) => {
                vocab.push(bytes, Kind::Control);
            }
            Ok(bytes) => vocab.push(bytes, Kind::Normal),
            Err(_) => vocab.push([], Kind::Unused),
        }
    }
    vocab
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str) {
        for name in ["o200k_base", "cl100k_base"] {
            let encoding = Builtin::named(name).unwrap();
            let mut ids = Vec::new();
            encoding.encode(text, Special::Plain, &mut ids);
            assert_eq!(ids, encoding.inner.encode_ordinary(text), "{name} {text:?}");
        }
    }

    #[test]
    fn long_pieces_of_every_kind() {
        for piece in ["a", "Ab", "xq", " ", "=", "\n", "/", "z'", "漢", "😀", "字的", "é", "\u{301}", "Ünï", "-=", "0"]
        {
            for length in [2, 31, 64, 65, 200, 1000] {
                check(&piece.repeat(length));
            }
        }
    }

    #[test]
    fn every_token_by_itself_and_beside_others() {
        let vocab = Builtin::named("o200k_base").unwrap().vocab();
        let texts: Vec<&str> = vocab.iter().filter_map(|(_, text, _)| std::str::from_utf8(text).ok()).collect();
        for some in texts.chunks(997) {
            check(&some.concat());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn any_text_has_the_tokens_of_the_library(text in "\\PC{0,80}") {
            check(&text);
        }

        #[test]
        fn long_runs_of_few_letters_too(text in "[abtehnsi]{0,400}|[的是不我一有大在人]{0,120}|[0-9A-Za-z+/]{0,300}") {
            check(&text);
        }

        #[test]
        fn text_of_words_signs_and_spaces_too(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "the", "The", "THE", "qzx", "Xy", "'s", "'LL", "'re", "'", " ", "  ", "\n", "\r\n", "\t", "1", "12",
                    "1234", "/", "//", ".", "!?", "(", "internationalization", "0x", "_", "漢字", "é", "\u{301}", "😀",
                ]),
                0..40,
            )
        ) {
            check(&parts.concat());
        }
    }
}
