//! What is read from a vocabulary besides its text, and the refusals of damaged or foreign ones.

use gguf::write::{Entry, Writer};
use tokenizer::{Special, Tokenizer};

use crate::fixture::{GEMMA, SMOL, small_byte_level, written};

#[test]
fn begin_and_end_tokens_of_the_real_models() {
    assert_eq!((SMOL.bos(), SMOL.adds_bos(), SMOL.eos()), (Some(1), false, Some(2)));
    assert_eq!(SMOL.eog_ids(), [0, 2]); // <|endoftext|>, <|im_end|>
    assert_eq!((GEMMA.bos(), GEMMA.adds_bos(), GEMMA.eos()), (Some(2), true, Some(1)));
    assert_eq!(GEMMA.eog_ids(), [1, 106]); // <eos>, <end_of_turn>
    assert_eq!((SMOL.vocab_size(), GEMMA.vocab_size()), (49_152, 262_144));
    assert_eq!(SMOL.control_token("<|im_start|>"), Some(1));
    assert!(SMOL.is_special(0) && !SMOL.is_special(100) && SMOL.is_special(49_152));
    assert_eq!(SMOL.token_bytes(49_152), None);
}

#[test]
fn frame_adds_a_begin_token_once() {
    assert_eq!(GEMMA.frame(vec![]), [2]);
    assert_eq!(GEMMA.frame(vec![2, 7]), [2, 7]);
    assert_eq!(SMOL.frame(vec![7]), [7]);
}

#[test]
fn an_end_token_of_the_wrong_type_is_still_a_control_token() {
    let tokenizer = written(small_byte_level("gpt-2").key("tokenizer.ggml.eos_token_id", Entry::U32(29))).unwrap();
    assert_eq!(tokenizer.eog_ids(), [28, 29]);
    assert_eq!(tokenizer.encode("<|end|>", Special::Parse), [28]);
    assert!(!tokenizer.encode("<|end|>", Special::Plain).contains(&28));
    assert!(!tokenizer.encode("<think>", Special::Plain).contains(&29));
}

#[test]
fn user_defined_tokens_are_found_in_any_text() {
    let tokenizer = written(small_byte_level("gpt-2")).unwrap();
    assert_eq!(tokenizer.encode("a<think>ab", Special::Plain), [0, 29, 27]);
}

/// Asserts that loading fails and the message says `expect`.
fn refused(writer: Writer, expect: &str) {
    let error = written(writer).unwrap_err().to_string();
    assert!(error.contains(expect), "{error:?} does not say {expect:?}");
}

#[test]
fn what_cannot_be_tokenised_exactly_is_refused_by_name() {
    refused(small_byte_level("brand-new"), "tokenizer.ggml.pre \"brand-new\" is unknown");
    refused(Writer::new().key("tokenizer.ggml.tokens", Entry::strings(["a"])), "\"tokenizer.ggml.model\" is missing");
    let model = |name: &str| {
        Writer::new()
            .key("tokenizer.ggml.model", Entry::String(name.into()))
            .key("tokenizer.ggml.tokens", Entry::strings(["a"]))
    };
    refused(model("t5"), "tokenizer.ggml.model \"t5\" is not supported");
    refused(model("llama"), "\"tokenizer.ggml.scores\" is missing");
    refused(model("gpt2"), "\"tokenizer.ggml.merges\" is missing");
    refused(model("llama").key("tokenizer.ggml.scores", Entry::F32s(vec![])), "0 scores for 1 tokens");
    refused(model("llama").key("tokenizer.ggml.token_type", Entry::I32s(vec![1, 1])), "2 token types for 1 tokens");
    refused(model("gpt2").key("tokenizer.ggml.merges", Entry::strings(["ab"])), "merge 0 is \"ab\"");
    refused(model("gpt2").key("tokenizer.ggml.merges", Entry::strings(["a b"])), "vocabulary");
    let eos = model("gpt2").key("tokenizer.ggml.merges", Entry::strings::<&str>([]));
    refused(eos.key("tokenizer.ggml.eos_token_id", Entry::U32(1)), "eos_token_id is 1, but there are 1 tokens");
}

#[test]
fn a_space_prefix_vocabulary_decodes_to_the_text_it_was_given() {
    let writer = Writer::new()
        .key("tokenizer.ggml.model", Entry::String("llama".into()))
        .key("tokenizer.ggml.tokens", Entry::strings(["<unk>", "<s>", "▁", "a", "▁a"]))
        .key("tokenizer.ggml.token_type", Entry::I32s(vec![2, 3, 1, 1, 1]))
        .key("tokenizer.ggml.scores", Entry::F32s(vec![0.0, 0.0, -2.0, -3.0, -1.0]))
        .key("tokenizer.ggml.bos_token_id", Entry::U32(1));
    let tokenizer = written(writer).unwrap();
    assert_eq!(tokenizer.frame(tokenizer.encode("a a", Special::Plain)), [1, 4, 4]);
    assert_eq!(tokenizer.decode(&[1, 4, 4], Special::Plain), "a a");
    assert!(tokenizer.encode("", Special::Plain).is_empty());
}

#[test]
fn built_in_encodings_know_their_tokens() {
    let tokenizer = Tokenizer::builtin("cl100k_base").unwrap();
    assert_eq!(tokenizer.encode("hello world", Special::Plain), [15339, 1917]);
    assert_eq!(tokenizer.token_bytes(1917), Some(&b" world"[..]));
    assert_eq!(tokenizer.encode("<|endoftext|>", Special::Parse), [100257]);
    assert!(tokenizer.count("<|endoftext|>") > 1 && tokenizer.is_special(100257));
    assert_eq!(Tokenizer::builtin("o200k_base").unwrap().count("hello world"), 2);
    assert!(Tokenizer::builtin("p50k").unwrap_err().to_string().contains("o200k_base or cl100k_base"));
}

#[test]
fn a_tokenizer_json_is_read_as_its_library_reads_it() {
    let json = serde_json::json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [{"id": 6, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "Ġ": 1, "Ġa": 2, "<": 3, "s": 4, ">": 5}, "merges": ["Ġ a"]}
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), json.to_string()).unwrap();
    let tokenizer = Tokenizer::from_file(file.path()).unwrap();
    assert_eq!(tokenizer.encode("a a a", Special::Plain), [0, 2, 2]); // truncation to 2 is ignored
    assert_eq!(tokenizer.encode("a<s>", Special::Plain), [0, 3, 4, 5]);
    assert_eq!(tokenizer.encode("a<s>", Special::Parse), [0, 6]);
    assert_eq!(tokenizer.frame(vec![0]), [6, 0]);
    assert_eq!(tokenizer.token_bytes(2), Some(&b" a"[..]));
    std::fs::write(file.path(), "{}").unwrap();
    assert!(Tokenizer::from_file(file.path()).unwrap_err().to_string().contains("expected a tokenizer.json"));
}
