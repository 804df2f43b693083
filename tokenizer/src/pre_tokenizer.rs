//! How byte-level vocabularies cut text into words before merging: one table from `tokenizer.ggml.pre` to the
//! patterns of the models' own tokenizers. A name that is not here is refused, since guessing would give other
//! tokens than the model was trained on, without any sign of it.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::error::LoadError;
use crate::pattern::Pattern;

/// One family of pre-tokenizers.
pub(crate) struct Scheme {
    names: &'static [&'static str],
    /// Applied in turn, each to the pieces of the one before.
    pub(crate) patterns: &'static [&'static str],
    /// The same by hand, where that is written.
    pub(crate) pattern: Option<Pattern>,
    /// A word that is a token as a whole is not built by merges.
    pub(crate) ignore_merges: bool,
    /// The tokenizer composes characters (NFC) first.
    pub(crate) compose: bool,
    /// Prompts begin with a token unless the file says otherwise.
    pub(crate) begins: bool,
}

/// What most families do; the table names the exceptions.
const USUAL: Scheme =
    Scheme { names: &[], patterns: &[], pattern: None, ignore_merges: false, compose: false, begins: false };

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const SCHEMES: &[Scheme] = &[
    Scheme {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        patterns: &[r"\p{N}", GPT2],
        pattern: Some(Pattern::Gpt2 { digits_apart: true }),
        ..USUAL
    },
    Scheme {
        names: &["gpt-2", "phi-2", "mpt", "olmo", "gigachat", "mellum", "exaone4", "trillion", "granite-docling"],
        patterns: &[GPT2],
        pattern: Some(Pattern::Gpt2 { digits_apart: false }),
        ..USUAL
    },
    Scheme {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        patterns: &[LLAMA3],
        pattern: Some(Pattern::Cl100k { digits: 3, tail: false }),
        ignore_merges: true,
        begins: true,
        ..USUAL
    },
    Scheme {
        names: &["dbrx", "smaug-bpe"],
        patterns: &[LLAMA3],
        pattern: Some(Pattern::Cl100k { digits: 3, tail: false }),
        ..USUAL
    },
    // Qwen's own tokenizer composes characters; its patterns are the same as those of the names below it.
    Scheme {
        names: &["qwen2", "deepseek-r1-qwen"],
        patterns: &[QWEN2],
        pattern: Some(Pattern::Cl100k { digits: 1, tail: false }),
        compose: true,
        ..USUAL
    },
    Scheme {
        names: &["stablelm2", "hunyuan", "megrez"],
        patterns: &[QWEN2],
        pattern: Some(Pattern::Cl100k { digits: 1, tail: false }),
        ..USUAL
    },
    Scheme {
        names: &["gpt-4o", "llama4"],
        patterns: &[GPT4O],
        pattern: Some(Pattern::O200k { digits: 3, contractions: true }),
        ..USUAL
    },
    Scheme {
        names: &["tekken"],
        patterns: &[TEKKEN],
        pattern: Some(Pattern::O200k { digits: 1, contractions: false }),
        ignore_merges: true,
        begins: true,
        ..USUAL
    },
    Scheme {
        names: &["deepseek-v3", "hunyuan-dense"],
        patterns: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
        ..USUAL
    },
    Scheme { names: &["falcon"], patterns: &[r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"], ..USUAL },
    // What llama.cpp does with files that name no pre-tokenizer.
    Scheme { names: &["default"], patterns: &[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..USUAL },
];

impl Scheme {
    pub(crate) fn named(pre: &str) -> Result<&'static Self, LoadError> {
        SCHEMES.iter().find(|scheme| scheme.names.contains(&pre)).ok_or_else(|| {
            let known = SCHEMES.iter().flat_map(|scheme| scheme.names).copied().collect::<Vec<_>>().join(", ");
            LoadError::Pre { found: pre.to_owned(), known }
        })
    }

    #[cfg(test)]
    pub(crate) fn all() -> impl Iterator<Item = &'static Self> {
        SCHEMES.iter()
    }

    pub(crate) fn build(&self) -> Result<PreTokenizerWrapper, LoadError> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::with_capacity(self.patterns.len() + 1);
        for pattern in self.patterns {
            let split = Split::new(SplitPattern::Regex((*pattern).to_owned()), SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| LoadError::Vocabulary { reason: format!("pattern {pattern}: {error}") })?;
            steps.push(split.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Sequence::new(steps).into())
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;

    fn words(pre: &str, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        Scheme::named(pre).unwrap().build().unwrap().pre_tokenize(&mut pieces).unwrap();
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (start, end), _)| text[start..end].to_owned()).collect()
    }

    #[test]
    fn every_pattern_compiles_and_loses_nothing() {
        let text = "It's 12345 x  \r\n\n été 漢字ひら\u{301} <|a|> DON'T\u{a0} end ";
        for scheme in SCHEMES {
            for name in scheme.names {
                assert_eq!(words(name, text).concat(), text, "{name}");
            }
        }
    }

    #[test]
    fn families_differ_where_their_models_do() {
        assert_eq!(words("gpt-2", "a 1234's"), ["a", " 1234", "'s"]);
        assert_eq!(words("smollm", "a 1234's"), ["a", " ", "1", "2", "3", "4", "'s"]);
        assert_eq!(words("llama-bpe", "a 1234'S"), ["a", " ", "123", "4", "'S"]);
        assert_eq!(words("qwen2", "a 12'S"), ["a", " ", "1", "2", "'S"]);
        assert_eq!(words("gpt-4o", "helloWorld's/x"), ["hello", "World's", "/x"]);
        assert_eq!(words("tekken", "helloWorld's"), ["hello", "World", "'s"]);
        assert_eq!(words("deepseek-v3", "漢字x 1234"), ["漢字", "x", " ", "123", "4"]);
        assert_eq!(words("default", "a 12345."), ["a", " ", "123", "45", "."]);
    }

    #[test]
    fn an_unknown_name_is_refused_and_the_known_ones_listed() {
        let error = Scheme::named("brand-new").err().unwrap().to_string();
        assert!(error.contains("\"brand-new\"") && error.contains("smollm"), "{error}");
    }
}
