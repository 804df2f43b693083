//! Text to tokens and back, chat templates, and the prompt count of OpenAI chat requests. Gateway and engine count
//! with the same code, so that what is reserved is what is used. No I/O but reading the tokenizer's own file.

mod bits;
mod blocks;
mod bpe;
mod builtin;
mod byte_level;
mod characters;
mod chat_prompt;
mod chat_template;
mod chunks;
mod count_cache;
mod detokenize;
mod error;
mod gguf_vocab;
mod hugging_face;
pub mod openai_chat;
mod pattern;
mod pieces;
mod pre_tokenizer;
mod prompt_counter;
mod sentencepiece;
mod specials;
mod stand_ins;
mod trie;
mod vocab;
mod words;

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

pub use chat_prompt::ChatPrompt;
pub use chat_template::{ChatTemplate, TemplateError};
pub use detokenize::Detokenizer;
pub use error::LoadError;
pub use gguf;
pub use prompt_counter::PromptCounter;
pub use specials::Special;

use crate::builtin::Builtin;
use crate::byte_level::ByteLevel;
use crate::hugging_face::HuggingFace;
use crate::sentencepiece::{Scratch, SentencePiece};
use crate::specials::{Part, Specials};
use crate::vocab::{Kind, Vocab};

enum Model {
    SentencePiece(Box<SentencePiece>),
    ByteLevel(Box<ByteLevel>),
    HuggingFace(Box<HuggingFace>),
    Builtin(Builtin),
}

/// One model's tokenizer. Immutable and shared between threads.
pub struct Tokenizer {
    model: Model,
    /// Of the built-in encodings it is made on first use: counting does not need it.
    vocab: OnceLock<Vocab>,
    specials: Specials,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
    adds_eos: bool,
    ends: Vec<u32>,
}

impl Tokenizer {
    /// The tokenizer inside a model file; metadata is enough ([`gguf::File::open_metadata`]). Nothing refers to the
    /// file afterwards.
    pub fn from_gguf(file: &gguf::File) -> Result<Self, LoadError> {
        gguf_vocab::load(file)
    }

    /// A `tokenizer.json`.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let model = HuggingFace::open(path.as_ref())?;
        let vocab = model.vocab();
        let (bos, eos) = model.frame();
        let ends = ends_by_text(&vocab);
        Self::new(Model::HuggingFace(Box::new(model)), vocab, bos, eos, bos.is_some(), eos.is_some(), ends)
    }

    /// `o200k_base` or `cl100k_base`.
    pub fn builtin(name: &str) -> Result<Self, LoadError> {
        Ok(Self {
            model: Model::Builtin(Builtin::named(name)?),
            vocab: OnceLock::new(),
            specials: Specials::of(&Vocab::default())?,
            bos: None,
            eos: None,
            adds_bos: false,
            adds_eos: false,
            ends: Vec::new(),
        })
    }

    fn new(
        model: Model,
        vocab: Vocab,
        bos: Option<u32>,
        eos: Option<u32>,
        adds_bos: bool,
        adds_eos: bool,
        ends: Vec<u32>,
    ) -> Result<Self, LoadError> {
        let specials = Specials::of(&vocab)?;
        Ok(Self { model, vocab: OnceLock::from(vocab), specials, bos, eos, adds_bos, adds_eos, ends })
    }

    /// The tokens of `text` alone: begin and end tokens are the caller's to add, see [`frame`](Self::frame).
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 1);
        match &self.model {
            Model::SentencePiece(model) => {
                let mut scratch = Scratch::default();
                self.specials.split(text, special, &mut |part| match part {
                    Part::Token(id) => ids.push(id),
                    Part::Text(text) => model.encode(self.vocab(), text, &mut scratch, &mut ids),
                });
            }
            Model::ByteLevel(model) => self.specials.split(text, special, &mut |part| match part {
                Part::Token(id) => ids.push(id),
                Part::Text(text) => model.encode(text, &mut ids),
            }),
            Model::HuggingFace(model) => model.encode(text, special, &mut ids),
            Model::Builtin(model) => model.encode(text, special, &mut ids),
        }
        ids
    }

    /// Tokens of a text whose control tokens count as such; every stretch between them goes through `restore` first
    /// and is plain text then.
    fn encode_parts<'t>(&self, text: &'t str, restore: impl Fn(&'t str) -> Cow<'t, str>) -> Vec<u32> {
        let mut ids = Vec::new();
        self.specials.split_control(text, &mut |part| match part {
            Part::Token(id) => ids.push(id),
            Part::Text(text) => ids.extend(self.encode(&restore(text), Special::Plain)),
        });
        ids
    }

    /// How many tokens `text` is, as plain text, without begin and end tokens.
    pub fn count(&self, text: &str) -> usize {
        self.encode(text, Special::Plain).len()
    }

    /// `text` in blocks of about `wanted` bytes whose tokens add up to those of the whole. The same beginning makes the
    /// same blocks, whatever comes after it.
    pub(crate) fn blocks<'t>(&self, text: &'t str, wanted: usize) -> impl Iterator<Item = &'t str> {
        blocks::blocks(text, wanted, |before| match &self.model {
            _ if self.specials.may_join_words() => false,
            Model::SentencePiece(model) => model.may_cut_after(before),
            Model::ByteLevel(_) | Model::Builtin(_) => true,
            // Whatever the file says.
            Model::HuggingFace(_) => false,
        })
    }

    /// Puts the begin and end tokens around a prompt that the model expects there, and that are not there yet.
    pub fn frame(&self, ids: Vec<u32>) -> Vec<u32> {
        let mut ids = self.begin(ids);
        if let Some(eos) = self.eos.filter(|eos| self.adds_eos && ids.last() != Some(eos)) {
            ids.push(eos);
        }
        ids
    }

    /// Puts the begin token first if the model expects it and it is not there yet.
    fn begin(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.bos.filter(|bos| self.adds_bos && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    /// The text of whole sequences; control tokens are left out with `Special::Plain`. Incomplete characters become
    /// U+FFFD. The space that some vocabularies put before the first word is taken away again.
    pub fn decode(&self, ids: &[u32], special: Special) -> String {
        let shown = ids.iter().filter(|&&id| special == Special::Parse || !self.is_special(id));
        let bytes: Vec<u8> = shown.filter_map(|&id| self.token_bytes(id)).flatten().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let prefixed = matches!(&self.model, Model::SentencePiece(model) if model.space_prefix());
        match text.strip_prefix(' ') {
            Some(rest) if prefixed => rest.to_owned(),
            _ => text.into_owned(),
        }
    }

    /// The bytes a token stands for: any bytes, not only whole characters. A control token's are its name.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocab().bytes(id)
    }

    /// Whether the token steers the model rather than being text. True for ids outside the vocabulary.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocab().kind(id).is_none_or(|kind| matches!(kind, Kind::Control | Kind::Unknown))
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab().len()
    }

    /// The id of the control token with this name, `<|im_end|>` for example.
    pub fn control_token(&self, text: &str) -> Option<u32> {
        let mut controls = self.vocab().iter().filter(|&(_, _, kind)| kind == Kind::Control);
        controls.find(|&(_, bytes, _)| bytes == text.as_bytes()).map(|(id, ..)| id)
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether a prompt begins with [`bos`](Self::bos).
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos.is_some()
    }

    /// Whether a prompt ends with [`eos`](Self::eos).
    pub fn adds_eos(&self) -> bool {
        self.adds_eos && self.eos.is_some()
    }

    /// Every token that ends a generation, in ascending order.
    pub fn eog_ids(&self) -> &[u32] {
        &self.ends
    }

    pub fn is_eog(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    fn vocab(&self) -> &Vocab {
        self.vocab.get_or_init(|| match &self.model {
            Model::Builtin(model) => model.vocab(),
            Model::HuggingFace(model) => model.vocab(),
            Model::SentencePiece(_) | Model::ByteLevel(_) => Vocab::default(),
        })
    }
}

fn ends_by_text(vocab: &Vocab) -> Vec<u32> {
    vocab.iter().filter(|&(_, text, kind)| gguf_vocab::is_end(text, kind)).map(|(id, ..)| id).collect()
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = match self.model {
            Model::SentencePiece(_) => "sentencepiece",
            Model::ByteLevel(_) => "byte-level",
            Model::HuggingFace(_) => "tokenizer.json",
            Model::Builtin(_) => "built-in",
        };
        f.debug_struct("Tokenizer").field("model", &model).finish_non_exhaustive()
    }
}

/// The two bundled models, for tests that stand beside the code.
#[cfg(test)]
mod real {
    use std::path::PathBuf;

    pub(crate) const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";
    pub(crate) const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

    #[expect(clippy::disallowed_methods, reason = "the test run names the folder with the real models")]
    pub(crate) fn model(name: &str) -> PathBuf {
        let folder = std::env::var_os("PENSTOCK_TEST_MODELS")
            .expect("set PENSTOCK_TEST_MODELS to the folder with the two model files (tests/run does)");
        PathBuf::from(folder).join(name)
    }
}
