//! A small valid file with every shape of value, and helpers to damage and open it.

use std::io::Write as _;
use std::path::PathBuf;

use gguf::write::{Entry, Writer};
use gguf::{Error, File, TensorType};

pub fn writer() -> Writer {
    Writer::new()
        .key("general.architecture", Entry::String("llama".into()))
        .key("llama.block_count", Entry::U32(2))
        .key("llama.rope.freq_base", Entry::F32(10000.0))
        .key("tokenizer.ggml.add_bos_token", Entry::Bool(true))
        .key("tokenizer.ggml.tokens", Entry::strings([&b"a"[..], b"bc", b"", b"\xFF\xFE"]))
        .key("tokenizer.ggml.scores", Entry::F32s(vec![-1.0, 0.5]))
        .key("tokenizer.ggml.token_type", Entry::I32s(vec![1, 3, -7]))
        .key("nested", Entry::Arrays(vec![Entry::I32s(vec![1]), Entry::strings(["x", "yz"])]))
        .tensor("a.weight", &[4, 3], TensorType::F32, (0..48).collect())
        .tensor("b.weight", &[64], TensorType::Q8_0, vec![7; 68])
        .tensor("c.weight", &[256, 1, 2], TensorType::Q6_K, vec![9; 420])
}

pub fn valid() -> Vec<u8> {
    writer().finish()
}

pub fn open(bytes: &[u8]) -> Result<File, Error> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    File::open(file.path())
}

pub fn refusal(bytes: &[u8]) -> String {
    open(bytes).expect_err("this file must be refused").to_string()
}

/// The bytes with the first occurrence of `from` replaced by `to` (equal lengths, so that offsets stay).
pub fn patched(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len()).position(|window| window == from).expect("pattern is in the file");
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

/// As [`patched`], but replaces what follows `anchor`.
pub fn patched_after(mut bytes: Vec<u8>, anchor: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(anchor.len()).position(|window| window == anchor).expect("anchor is in the file");
    let at = at + anchor.len();
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

#[expect(clippy::disallowed_methods, reason = "the test run names the folder with the real models")]
pub fn model(name: &str) -> PathBuf {
    let folder = std::env::var_os("PENSTOCK_TEST_MODELS")
        .expect("set PENSTOCK_TEST_MODELS to the folder with the two model files (tests/run does)");
    PathBuf::from(folder).join(name)
}
