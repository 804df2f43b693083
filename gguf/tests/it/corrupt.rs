//! Single wrong fields: each is refused by a message that names the place.

use gguf::write::{Entry, Writer};
use gguf::{Error, File, TensorType};

use crate::fixture::{open, patched, patched_after, refusal, valid, writer};

/// Asserts that the file is refused and the message says `expect`.
fn refused(bytes: Vec<u8>, expect: &str) {
    let error = refusal(&bytes);
    assert!(error.contains(expect), "{error:?} does not say {expect:?}");
}

#[test]
fn a_missing_file_and_a_folder_are_named() {
    let error = File::open("/nonexistent/model.gguf").unwrap_err().to_string();
    assert!(error.contains("/nonexistent/model.gguf"), "{error}");
    assert!(matches!(File::open("/").unwrap_err(), Error::Open { .. }));
}

#[test]
fn other_formats_and_versions_are_refused() {
    refused(b"PK\x03\x04 a zip file".to_vec(), "not a GGUF file");
    refused(b"".to_vec(), "not a GGUF file");
    refused(patched_after(valid(), b"GGUF", &1u32.to_le_bytes()), "version 1 is not supported");
    refused(patched_after(valid(), b"GGUF", &4u32.to_le_bytes()), "version 4 is not supported");
    refused(patched_after(valid(), b"GGUF", &3u32.to_be_bytes()), "big-endian");
}

#[test]
fn version_2_is_read() {
    assert_eq!(open(&patched_after(valid(), b"GGUF", &2u32.to_le_bytes())).unwrap().version(), 2);
}

#[test]
fn absurd_counts_are_refused_before_anything_is_allocated() {
    refused(patched_after(valid(), b"GGUF\x03\0\0\0", &u64::MAX.to_le_bytes()), "tensor count");
    refused(patched_after(valid(), b"GGUF\x03\0\0\0\x03\0\0\0\0\0\0\0", &u64::MAX.to_le_bytes()), "metadata count");
    refused(patched_after(valid(), b"ggml.tokens\x09\0\0\0\x08\0\0\0", &(1u64 << 61).to_le_bytes()), "ggml.tokens");
    refused(patched_after(valid(), b"ggml.scores\x09\0\0\0\x06\0\0\0", &u64::MAX.to_le_bytes()), "ggml.scores");
    refused(patched_after(valid(), b"nested\x09\0\0\0\x09\0\0\0", &(1u64 << 60).to_le_bytes()), "nested");
    refused(patched_after(valid(), b"general.architecture\x08\0\0\0", &u64::MAX.to_le_bytes()), "general.architecture");
}

#[test]
fn unknown_value_types_and_bools_are_refused() {
    refused(patched_after(valid(), b"llama.block_count", &13u32.to_le_bytes()), "unknown value type 13");
    refused(patched_after(valid(), b"add_bos_token\x07\0\0\0", &[2]), "bool 2");
}

#[test]
fn text_that_is_not_utf8_is_refused_in_keys_and_values() {
    refused(patched(valid(), b"llama.block_count", b"llama.block_c\xFFunt"), "not UTF-8");
    refused(patched_after(valid(), b"architecture\x08\0\0\0\x05\0\0\0\0\0\0\0", b"ll\xC0ma"), "general.architecture");
}

#[test]
fn a_key_or_tensor_that_occurs_twice_is_named() {
    refused(writer().key("nested", Entry::U32(1)).finish(), "\"nested\" occurs twice");
    refused(writer().tensor("b.weight", &[1], TensorType::F32, vec![0; 4]).finish(), "\"b.weight\" occurs twice");
}

#[test]
fn a_tensor_type_the_engine_lacks_is_named_with_its_tensor() {
    let dims = [64u64.to_le_bytes()].concat();
    let anchor = [b"b.weight\x01\0\0\0", dims.as_slice()].concat();
    let iq4 = patched_after(valid(), &anchor, &20u32.to_le_bytes());
    refused(iq4.clone(), "tensor \"b.weight\" has type IQ4_NL (id 20)");
    refused(patched_after(valid(), &anchor, &4711u32.to_le_bytes()), "unknown (id 4711)");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, &iq4).unwrap();
    assert_eq!(File::open_metadata(file.path()).unwrap().u32("llama.block_count").unwrap(), 2);
}

#[test]
fn shapes_that_make_no_sense_are_refused() {
    let f32s = |dims: &[u64]| Writer::new().tensor("t", dims, TensorType::F32, vec![0; 4]).finish();
    refused(f32s(&[]), "0 dimensions");
    refused(f32s(&[1, 1, 1, 1, 1]), "5 dimensions");
    refused(f32s(&[4, 0]), "shape [4, 0]");
    refused(f32s(&[1 << 32, 1 << 32]), "overflows");
    refused(f32s(&[1 << 62]), "overflows");
    refused(Writer::new().tensor("t", &[48], TensorType::Q8_0, vec![0; 68]).finish(), "whole Q8_0 blocks of 32");
}

#[test]
fn data_outside_the_file_or_on_top_of_another_tensor_is_refused() {
    refused(Writer::new().tensor("t", &[100], TensorType::F32, vec![0; 4]).finish(), "data of tensor \"t\"");
    let anchor = [&b"b.weight\x01\0\0\0"[..], &64u64.to_le_bytes(), &8u32.to_le_bytes()].concat();
    refused(patched_after(valid(), &anchor, &0u64.to_le_bytes()), "overlaps");
    refused(patched_after(valid(), &anchor, &33u64.to_le_bytes()), "not a multiple of the alignment 32");
    refused(patched_after(valid(), &anchor, &(u64::MAX - 31).to_le_bytes()), "data of tensor \"b.weight\"");
}

#[test]
fn alignment_must_be_a_power_of_two() {
    let with = |alignment| Writer::new().key("general.alignment", Entry::U32(alignment)).finish();
    assert!(open(&with(64)).is_ok());
    refused(with(0), "general.alignment");
    refused(with(48), "general.alignment");
    refused(Writer::new().key("general.alignment", Entry::Bool(true)).finish(), "general.alignment");
}

#[test]
fn deep_nesting_is_refused() {
    let deep = (0..6).fold(Entry::I32s(vec![1]), |inner, _| Entry::Arrays(vec![inner]));
    refused(Writer::new().key("deep", deep).finish(), "nested more than");
}
