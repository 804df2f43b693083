//! Every golden item, exactly.

use serde_json::Value;
use tokenizer::{Special, Tokenizer};

use crate::fixture::{GEMMA, SMOL, golden, ids};

fn check_ids(tokenizer: &Tokenizer, item: &Value) {
    let special = if item["parse_special"] == true { Special::Parse } else { Special::Plain };
    let mut found = tokenizer.encode(item["text"].as_str().unwrap(), special);
    if item["add_special"] == true {
        found = tokenizer.frame(found);
    }
    assert_eq!(found, ids(&item["ids"]), "{} {:?}", item["id"], item["text"]);
}

fn check_bytes(tokenizer: &Tokenizer, item: &Value) {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (id, piece) in ids(&item["ids"]).into_iter().zip(item["pieces_hex"].as_array().unwrap()) {
        assert_eq!(hex(tokenizer.token_bytes(id).unwrap()), piece.as_str().unwrap(), "token {id}");
    }
}

fn check_file(tokenizer: &Tokenizer, name: &str) {
    let golden = golden(name);
    let items = golden["items"].as_array().unwrap();
    assert!(items.len() >= 40);
    for item in items {
        check_ids(tokenizer, item);
        check_bytes(tokenizer, item);
    }
}

#[test]
fn smollm2_tokens_are_those_of_the_reference() {
    check_file(&SMOL, "smollm2_tokenize.json");
}

#[test]
fn gemma3_tokens_are_those_of_the_reference() {
    check_file(&GEMMA, "gemma3_tokenize.json");
}

#[test]
fn prompts_and_long_texts_are_those_of_the_reference() {
    for (tokenizer, model) in [(&SMOL, "smollm2"), (&GEMMA, "gemma3")] {
        let text = golden(&format!("{model}_perplexity.json"));
        let expect = ids(&text["ids"]);
        let found = tokenizer.frame(tokenizer.encode(&crate::fixture::golden_text(), Special::Plain));
        assert_eq!(found, expect, "{model}");
    }
}

#[test]
fn generations_of_the_reference_end_at_our_end_tokens_only() {
    for (tokenizer, model) in [(&SMOL, "smollm2"), (&GEMMA, "gemma3")] {
        for item in golden(&format!("{model}_greedy.json"))["items"].as_array().unwrap() {
            let ids = ids(&item["greedy_ids"]);
            let (last, before) = ids.split_last().unwrap();
            assert!(!before.iter().any(|&id| tokenizer.is_eog(id)), "{model} {}", item["id"]);
            assert_eq!(tokenizer.is_eog(*last), ids.len() < 64, "{model} {}", item["id"]);
        }
    }
}

#[test]
fn openais_encodings_count_as_other_implementations_do() {
    let golden = golden("openai_text_counts.json");
    let items = golden["items"].as_array().unwrap();
    assert!(items.len() >= 60);
    for name in ["cl100k_base", "o200k_base"] {
        let tokenizer = Tokenizer::builtin(name).unwrap();
        for item in items {
            let text = match (item["text"].as_str(), item["unit"].as_str()) {
                (Some(text), _) => text.to_owned(),
                (_, Some(unit)) => unit.repeat(usize::try_from(item["times"].as_u64().unwrap()).unwrap()),
                _ => crate::fixture::golden_text(),
            };
            assert_eq!(tokenizer.count(&text) as u64, item[name].as_u64().unwrap(), "{name} {}", item["id"]);
        }
    }
}
