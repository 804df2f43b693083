//! What the writer wrote, the reader reads.

use gguf::{TensorType, Value};

use crate::fixture::{open, valid};

#[test]
fn scalars_come_back_typed() {
    let file = open(&valid()).unwrap();
    assert_eq!(file.version(), 3);
    assert_eq!(file.str("general.architecture").unwrap(), "llama");
    assert_eq!(file.u32("llama.block_count").unwrap(), 2);
    assert_eq!(file.u64("llama.block_count").unwrap(), 2);
    assert_eq!(file.f32("llama.rope.freq_base").unwrap(), 10000.0);
    assert!(file.bool("tokenizer.ggml.add_bos_token").unwrap());
    assert_eq!(file.metadata("llama.block_count"), Some(&Value::U32(2)));
    assert_eq!(file.opt_u32("llama.head_count").unwrap(), None);
}

#[test]
fn arrays_are_read_in_place() {
    let file = open(&valid()).unwrap();
    let tokens: Vec<&[u8]> = file.array("tokenizer.ggml.tokens").unwrap().strings().unwrap().collect();
    assert_eq!(tokens, [&b"a"[..], b"bc", b"", b"\xFF\xFE"]);
    let scores: Vec<f32> = file.array("tokenizer.ggml.scores").unwrap().f32s().unwrap().collect();
    assert_eq!(scores, [-1.0, 0.5]);
    let types: Vec<i32> = file.array("tokenizer.ggml.token_type").unwrap().i32s().unwrap().collect();
    assert_eq!(types, [1, 3, -7]);
}

#[test]
fn inner_arrays_are_read_in_place() {
    let file = open(&valid()).unwrap();
    let inner: Vec<_> = file.array("nested").unwrap().arrays().unwrap().collect();
    assert_eq!(inner[0].i32s().unwrap().collect::<Vec<_>>(), [1]);
    assert_eq!(inner[1].strings().unwrap().collect::<Vec<_>>(), [&b"x"[..], b"yz"]);
}

#[test]
fn tensors_lie_where_they_were_written() {
    let file = open(&valid()).unwrap();
    assert_eq!(file.tensors().len(), 3);
    let a = file.tensor("a.weight").unwrap();
    assert_eq!((a.dims.as_slice(), a.kind, a.elements()), (&[4, 3][..], TensorType::F32, 12));
    assert_eq!(file.bytes(a), (0..48).collect::<Vec<u8>>());
    assert_eq!(file.bytes(file.tensor("b.weight").unwrap()), [7; 68]);
    assert_eq!(file.bytes(file.tensor("c.weight").unwrap()), [9; 420]);
    assert_eq!(file.tensor("d.weight"), None);
}

#[test]
fn released_tensors_can_be_read_again() {
    let file = open(&valid()).unwrap();
    for tensor in file.tensors() {
        file.release(tensor).unwrap();
    }
    assert_eq!(file.bytes(file.tensor("c.weight").unwrap()), [9; 420]);
}

#[test]
fn a_key_of_another_type_is_named() {
    let file = open(&valid()).unwrap();
    let error = file.u32("general.architecture").unwrap_err().to_string();
    assert!(error.contains("\"general.architecture\" is a string of 5 bytes, expected an integer"), "{error}");
    let error = file.u32("llama.head_count").unwrap_err().to_string();
    assert!(error.contains("\"llama.head_count\" is missing"), "{error}");
    let error = file.array("tokenizer.ggml.tokens").unwrap().f32s().err().unwrap().to_string();
    assert!(error.contains("\"tokenizer.ggml.tokens\" is an array of 4 String, expected an array of f32"), "{error}");
}
