//! Streams of tokens: whole characters only, nothing lost, nothing invented.

use std::sync::Arc;

use proptest::prelude::*;
use tokenizer::{Detokenizer, Special, Tokenizer};

use crate::fixture::{GEMMA, SMOL};

fn stream(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> (Vec<String>, Vec<u8>) {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), Special::Plain);
    let texts = ids.iter().map(|&id| detokenizer.push(id).to_owned()).collect();
    (texts, detokenizer.finish())
}

#[test]
fn characters_of_several_tokens_come_whole() {
    let text = "😀 ďábelské 漢字 👩\u{200d}👩\u{200d}👧 ꙮ";
    for tokenizer in [&*SMOL, &*GEMMA] {
        let ids = tokenizer.encode(text, Special::Plain);
        assert!(ids.iter().any(|&id| std::str::from_utf8(tokenizer.token_bytes(id).unwrap()).is_err()));
        let (texts, rest) = stream(tokenizer, &ids);
        assert_eq!((texts.concat(), rest.len()), (text.to_owned(), 0));
        assert!(texts.iter().any(String::is_empty));
    }
}

#[test]
fn a_character_that_is_broken_off_is_not_text() {
    let ids = SMOL.encode("a😀", Special::Plain);
    let (texts, rest) = stream(&SMOL, &ids[..ids.len() - 1]);
    assert_eq!(texts.concat(), "a");
    assert!("😀".as_bytes().starts_with(&rest) && !rest.is_empty());
}

#[test]
fn control_tokens_are_hidden_unless_wanted() {
    let ids = SMOL.encode("<|im_start|>a<|im_end|>", Special::Parse);
    assert_eq!(stream(&SMOL, &ids).0.concat(), "a");
    let mut spelled = Detokenizer::new(SMOL.clone(), Special::Parse);
    assert_eq!(ids.iter().map(|&id| spelled.push(id).to_owned()).collect::<String>(), "<|im_start|>a<|im_end|>");
}

#[test]
fn ids_outside_the_vocabulary_are_no_text() {
    assert_eq!(stream(&SMOL, &[u32::MAX, 49_152]), (vec![String::new(), String::new()], vec![]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    // SmolLM2's vocabulary lacks a few control characters, which its reference drops too: they are left out here.
    #[test]
    fn text_survives_tokens_and_stream(text in "[a-zA-Z0-9\n\t \u{0}-\u{3}\u{7f}<|>ſ-ꙮ😀-😿]{0,60}") {
        for tokenizer in [&*SMOL, &*GEMMA] {
            let ids = tokenizer.encode(&text, Special::Plain);
            prop_assert!(!ids.iter().any(|&id| tokenizer.is_special(id)));
            let expect = if Arc::ptr_eq(tokenizer, &GEMMA) { text.replace('\u{2581}', " ") } else { text.clone() };
            let (texts, rest) = stream(tokenizer, &ids);
            prop_assert_eq!((texts.concat(), rest), (expect.clone(), vec![]));
            prop_assert_eq!(tokenizer.decode(&ids, Special::Plain), expect);
        }
    }

    #[test]
    fn any_tokens_stream_to_what_they_decode_to(ids in prop::collection::vec(0u32..60_000, 0..40)) {
        let (texts, rest) = stream(&SMOL, &ids);
        let whole = SMOL.decode(&ids, Special::Plain);
        let streamed = texts.concat();
        prop_assert!(whole.starts_with(&streamed));
        prop_assert_eq!(whole.len() > streamed.len(), !rest.is_empty());
    }
}
