//! Hostile text: no panic, no time that grows faster than the text.

use gguf::write::{Entry, Writer};
use proptest::prelude::*;
use tokenizer::{ChatTemplate, Special, Tokenizer};

use crate::fixture::{GEMMA, SMOL, cpu_seconds, small_byte_level};

/// CPU time of the quickest of a few counts: a busy machine matters little.
fn quickest(tokenizer: &Tokenizer, text: &str) -> f64 {
    let count = || {
        let start = cpu_seconds();
        assert!(tokenizer.count(text) > 0);
        cpu_seconds() - start
    };
    (0..3).map(|_| count()).min_by(f64::total_cmp).unwrap()
}

#[test]
fn text_without_word_boundaries_takes_linear_time() {
    let builtin = Tokenizer::builtin("o200k_base").unwrap();
    let cl100k = Tokenizer::builtin("cl100k_base").unwrap();
    let texts =
        ["a", " ", "\n", "\t ", "  \n", "é", "漢", "1", "!", "a1", "\u{0}", "\u{301}", "A", "'s", "▁", "<", "ab"];
    for unit in texts {
        let text = unit.repeat((1 << 20) / unit.len());
        for tokenizer in [&**SMOL, &**GEMMA, &builtin, &cl100k] {
            let whole = quickest(tokenizer, &text);
            let eighth = quickest(tokenizer, &text[..text.floor_char_boundary(text.len() / 8)]);
            // Linear is 8, and caches may make it somewhat more; quadratic is 64.
            assert!(whole < eighth * 24.0, "{tokenizer:?} {unit:?}: {whole} s, {eighth} s for an eighth");
        }
    }
}

#[test]
fn chunked_text_has_the_tokens_of_the_whole() {
    let words = "The quick brown fox, 12 jumps; isn't it?\n\n  Indented text here ".repeat(4_000);
    let ids = SMOL.encode(&words, Special::Plain);
    let one = SMOL.encode(&words[..words.len() / 4_000 * 400], Special::Plain);
    assert_eq!(ids[..one.len() - 2], one[..one.len() - 2]);
    assert_eq!(SMOL.decode(&ids, Special::Plain), words);
}

#[test]
fn nothing_a_user_writes_becomes_a_control_token() {
    for (tokenizer, texts) in [
        (&*SMOL, ["<|im_start|>", "<|im_end|>", "a<|endoftext|>b", "<|im_<|im_end|>end|>"]),
        (&*GEMMA, ["<bos>", "<eos>", "<start_of_turn>user", "<<eos>eos>"]),
    ] {
        for text in texts {
            let ids = tokenizer.encode(text, Special::Plain);
            assert!(!ids.iter().any(|&id| tokenizer.is_special(id)), "{text}: {ids:?}");
            assert!(tokenizer.encode(text, Special::Parse).iter().any(|&id| tokenizer.is_special(id)));
        }
    }
}

fn small_sentencepiece() -> Writer {
    Writer::new()
        .key("tokenizer.ggml.model", Entry::String("llama".into()))
        .key("tokenizer.ggml.tokens", Entry::strings(["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁a"]))
        .key("tokenizer.ggml.token_type", Entry::I32s(vec![2, 3, 3, 6, 1, 1, 1, 1, 4]))
        .key("tokenizer.ggml.scores", Entry::F32s(vec![0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -0.5, f32::NAN]))
        .key("tokenizer.ggml.eos_token_id", Entry::U32(2))
        .key("tokenizer.chat_template", Entry::String("{% for m in messages %}{{ m.content }}{% endfor %}".into()))
}

/// Loads a damaged vocabulary and uses what loads.
fn use_damaged(bytes: &[u8]) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let Ok(file) = gguf::File::open_metadata(file.path()) else { return };
    if let Ok(tokenizer) = Tokenizer::from_gguf(&file) {
        let ids = tokenizer.frame(tokenizer.encode("ab a\n<s>é<|end|> abc <think>", Special::Parse));
        assert!(ids.iter().all(|&id| tokenizer.token_bytes(id).is_some()));
        assert!(tokenizer.decode(&ids, Special::Parse).len() < 1_000);
    }
    if let Ok(Some(template)) = ChatTemplate::from_gguf(&file) {
        assert!(!format!("{template:?}").is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_vocabularies_never_panic(
        sentencepiece: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        swapped in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let writer = if sentencepiece { small_sentencepiece() } else { small_byte_level("llama-bpe") };
        let mut bytes = writer.finish();
        let (a, b) = (swapped.0.index(bytes.len()), swapped.1.index(bytes.len()));
        bytes.swap(a, b);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        use_damaged(&bytes);
    }
}

#[test]
fn merges_that_make_no_token_are_refused() {
    for merge in ["ab ab", "x <|end|>", "b a", " "] {
        let writer = Writer::new()
            .key("tokenizer.ggml.model", Entry::String("gpt2".into()))
            .key("tokenizer.ggml.pre", Entry::String("gpt-2".into()))
            .key("tokenizer.ggml.tokens", Entry::strings(["a", "b", "ab", "<|end|>", "x"]))
            .key("tokenizer.ggml.token_type", Entry::I32s(vec![1, 1, 1, 3, 1]))
            .key("tokenizer.ggml.merges", Entry::strings(["a b", merge]));
        let error = crate::fixture::written(writer).unwrap_err().to_string();
        assert!(error.contains("merge 1"), "{error}");
    }
}
