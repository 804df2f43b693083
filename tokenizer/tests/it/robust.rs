//! Hostile text: no panic, no time that grows faster than the text.

use std::time::{Duration, Instant};

use tokenizer::{Special, Tokenizer};

use crate::fixture::{GEMMA, SMOL};

#[test]
fn long_monotonous_text_takes_linear_time() {
    let builtin = Tokenizer::builtin("o200k_base").unwrap();
    let cl100k = Tokenizer::builtin("cl100k_base").unwrap();
    let texts = ["a", " ", "\n", "\t ", "  \n", "é", "漢", "1", "!", "a1", "\u{0}", "\u{301}", "A", "'s", "▁", "<"];
    for text in texts.map(|unit| unit.repeat((300 << 10) / unit.len())) {
        for tokenizer in [&**SMOL, &**GEMMA, &builtin, &cl100k] {
            let start = Instant::now();
            assert!(tokenizer.count(&text) > 1_000, "{:?}", &text[..8]);
            // Milliseconds; quadratic algorithms take minutes.
            assert!(start.elapsed() < Duration::from_secs(5), "{tokenizer:?} {:?}", &text[..8]);
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
