//! Reads the tokenizer of a model file: which algorithm, which tokens, which of them begin and end texts.

use gguf::File;

use crate::byte_level::{ByteLevel, Merges};
use crate::error::LoadError;
use crate::pre_tokenizer::Scheme;
use crate::sentencepiece::SentencePiece;
use crate::vocab::{Kind, Vocab};
use crate::{Model, Tokenizer};

/// Tokens that end a turn or a text in some family of models. Files name one end token, models use several.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "[EOT]",
    "<eos>",
    "<｜end▁of▁sentence｜>",
];

pub(crate) fn load(file: &File) -> Result<Tokenizer, LoadError> {
    let kinds = kinds(file)?;
    let model_name = file.str("tokenizer.ggml.model")?;
    let (model, mut vocab, begins) = match model_name {
        "gpt2" => {
            let scheme = Scheme::named(file.opt_str(&key("pre"))?.unwrap_or("default"))?;
            let (model, vocab) = byte_level(file, &kinds, scheme)?;
            (model, vocab, scheme.begins)
        }
        "llama" => {
            let (model, vocab) = sentencepiece(file, &kinds)?;
            (model, vocab, true)
        }
        found => return Err(LoadError::Model { found: found.to_owned() }),
    };
    let token = |name: &str| token_id(file, &vocab, name);
    let (bos, eos) = (token("bos_token_id")?, token("eos_token_id")?);
    let mut ends: Vec<u32> = [eos, token("eot_token_id")?, token("eom_token_id")?].into_iter().flatten().collect();
    ends.extend(vocab.iter().filter(|&(_, text, kind)| is_end(text, kind)).map(|(id, ..)| id));
    ends.sort_unstable();
    ends.dedup();
    without_inner_end(&vocab, &mut ends);
    // A file may mistype its end tokens; as user-defined ones, text could spell them.
    for &id in &ends {
        vocab.set_kind(id, Kind::Control);
    }
    let flag = |name: &str, default| Ok::<_, LoadError>(file.opt_bool(&key(name))?.unwrap_or(default));
    let adds_bos = flag("add_bos_token", begins)?;
    let adds_eos = flag("add_eos_token", false)?;
    Tokenizer::new(model, vocab, bos, eos, adds_bos, adds_eos, ends)
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

/// Files sometimes type an end token as user-defined. `</s>` only counts as a control token: it is an HTML tag too.
pub(crate) fn is_end(text: &[u8], kind: Kind) -> bool {
    match kind {
        Kind::Control => text == b"</s>" || END_TEXTS.iter().any(|end| end.as_bytes() == text),
        Kind::UserDefined => END_TEXTS.iter().any(|end| end.as_bytes() == text),
        _ => false,
    }
}

/// Harmony vocabularies (with `<|return|>` and `<|call|>`) use `<|end|>` between the messages of one turn.
fn without_inner_end(vocab: &Vocab, ends: &mut Vec<u32>) {
    let has = |text: &str| ends.iter().any(|&id| vocab.bytes(id) == Some(text.as_bytes()));
    if has("<|return|>") && has("<|call|>") {
        ends.retain(|&id| vocab.bytes(id) != Some(b"<|end|>"));
    }
}

fn token_id(file: &File, vocab: &Vocab, name: &str) -> Result<Option<u32>, LoadError> {
    match file.opt_u32(&key(name))? {
        Some(id) if id as usize >= vocab.len() => {
            let reason = format!("{} is {id}, but there are {} tokens", key(name), vocab.len());
            Err(LoadError::Vocabulary { reason })
        }
        id => Ok(id),
    }
}

fn kinds(file: &File) -> Result<Vec<Kind>, LoadError> {
    let tokens = file.array(&key("tokens"))?.len();
    let Some(types) = file.opt_array(&key("token_type"))? else { return Ok(vec![Kind::Normal; tokens]) };
    if types.len() != tokens {
        return Err(LoadError::Vocabulary { reason: format!("{} token types for {tokens} tokens", types.len()) });
    }
    Ok(types.i32s()?.map(Kind::from_ggml).collect())
}

fn sentencepiece(file: &File, kinds: &[Kind]) -> Result<(Model, Vocab), LoadError> {
    let mut vocab = Vocab::with_capacity(kinds.len());
    for (piece, &kind) in file.array(&key("tokens"))?.strings()?.zip(kinds) {
        vocab.push_piece(piece, kind);
    }
    let scores = file.array(&key("scores"))?.f32s()?.collect();
    let first_unknown = || vocab.iter().find(|&(_, _, kind)| kind == Kind::Unknown).map(|(id, ..)| id);
    let unknown = token_id(file, &vocab, "unknown_token_id")?.or_else(first_unknown);
    let space_prefix = file.opt_bool(&key("add_space_prefix"))?.unwrap_or(true);
    let model = SentencePiece::new(&vocab, scores, unknown, space_prefix)?;
    Ok((Model::SentencePiece(Box::new(model)), vocab))
}

fn byte_level(file: &File, kinds: &[Kind], scheme: &Scheme) -> Result<(Model, Vocab), LoadError> {
    let (vocab, merges) = byte_level_parts(file, kinds)?;
    Ok((Model::ByteLevel(Box::new(ByteLevel::new(&vocab, merges, scheme)?)), vocab))
}

fn byte_level_parts(file: &File, kinds: &[Kind]) -> Result<(Vocab, Merges), LoadError> {
    let mut vocab = Vocab::with_capacity(kinds.len());
    let mut parts = Merges::default();
    for ((id, piece), &kind) in (0..).zip(file.array(&key("tokens"))?.strings()?).zip(kinds) {
        let piece = utf8(piece, "token", id)?;
        vocab.push_byte_level(piece, kind);
        // Text must never merge into a control token, so the model does not know them.
        if !matches!(kind, Kind::Control | Kind::Unknown) {
            parts.ids.insert(piece.to_owned(), id);
        }
    }
    for (rank, merge) in (0..).zip(file.array(&key("merges"))?.strings()?) {
        let merge = utf8(merge, "merge", rank)?;
        let Some((left, right)) = merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty())
        else {
            return Err(LoadError::Vocabulary { reason: format!("merge {rank} is {merge:?}, expected two pieces") });
        };
        parts.merges.push((left.to_owned(), right.to_owned()));
    }
    Ok((vocab, parts))
}

fn utf8<'a>(bytes: &'a [u8], what: &str, index: u32) -> Result<&'a str, LoadError> {
    std::str::from_utf8(bytes)
        .map_err(|error| LoadError::Vocabulary { reason: format!("{what} {index} is not UTF-8: {error}") })
}

#[cfg(test)]
pub(crate) fn sentencepiece_of(file: &File) -> Result<(Model, Vocab), LoadError> {
    sentencepiece(file, &kinds(file)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::sync::LazyLock;

    use super::*;
    use crate::real;

    /// SmolLM2 in one pass, and merge by merge through the library.
    static BOTH: LazyLock<[ByteLevel; 2]> = LazyLock::new(|| {
        let file = File::open_metadata(real::model(real::SMOLLM2)).unwrap();
        let (vocab, merges) = byte_level_parts(&file, &kinds(&file).unwrap()).unwrap();
        let scheme = Scheme::named("smollm").unwrap();
        let fast = ByteLevel::new(&vocab, merges.clone(), scheme).unwrap();
        assert!(matches!(fast, ByteLevel::Words { .. }), "the bundled model goes the fast way");
        [fast, ByteLevel::library(merges, scheme).unwrap()]
    });

    fn check(text: &str) {
        let [fast, library] = BOTH.each_ref().map(|model| {
            let mut ids = Vec::new();
            model.encode(text, &mut ids);
            ids
        });
        assert_eq!(fast, library, "{text:?}");
    }

    #[test]
    fn long_pieces_have_the_tokens_of_the_library() {
        for piece in ["a", "Ab", "xq", " ", "=", "\n", "z'", "漢", "😀", "字的", "é", "\u{301}", "-=", "7"] {
            [2, 31, 64, 200, 1000].into_iter().for_each(|length| check(&piece.repeat(length)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn any_text_has_the_tokens_of_the_library(
            text in "\\PC{0,80}|[abtehnsi]{0,400}|[的是不我一有大在人]{0,120}|[0-9A-Za-z+/]{0,300}|([a-z]{1,9}[ ,.'\n]{1,2}){0,30}"
        ) {
            check(&text);
        }
    }
}
