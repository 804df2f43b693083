//! The real tokenizers (loaded once), golden files, and small vocabularies written for a test.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use gguf::write::{Entry, Writer};
use serde_json::Value;
use tokenizer::{LoadError, Tokenizer};

pub const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.gguf";
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

#[expect(clippy::disallowed_methods, reason = "the test run names the folder with the real models")]
pub fn model(name: &str) -> PathBuf {
    let folder = std::env::var_os("PENSTOCK_TEST_MODELS")
        .expect("set PENSTOCK_TEST_MODELS to the folder with the two model files (tests/run does)");
    PathBuf::from(folder).join(name)
}

pub fn load(name: &str) -> Tokenizer {
    Tokenizer::from_gguf(&gguf::File::open_metadata(model(name)).unwrap()).unwrap()
}

pub static SMOL: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(load(SMOLLM2)));
pub static GEMMA: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(load(GEMMA3)));

pub fn golden(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub fn golden_text() -> String {
    std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/text_dev.txt")).unwrap()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// CPU seconds of this thread, so that a busy machine does not matter.
#[expect(unsafe_code, reason = "std does not tell how long a thread has run")]
pub fn cpu_seconds() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid, writable timespec, and the clock exists on every supported kernel.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    assert_eq!(code, 0);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// A byte-level vocabulary of the 26 small letters, the space and a few control tokens.
pub fn small_byte_level(pre: &str) -> Writer {
    let mut tokens: Vec<String> = ('a'..='z').map(String::from).collect();
    tokens.extend(["Ġ", "ab", "<|end|>", "<think>", "<", "|", ">"].map(String::from));
    let mut kinds = vec![1; tokens.len()];
    (kinds[28], kinds[29]) = (3, 4);
    Writer::new()
        .key("tokenizer.ggml.model", Entry::String("gpt2".into()))
        .key("tokenizer.ggml.pre", Entry::String(pre.into()))
        .key("tokenizer.ggml.tokens", Entry::strings(tokens))
        .key("tokenizer.ggml.token_type", Entry::I32s(kinds))
        .key("tokenizer.ggml.merges", Entry::strings(["a b"]))
}

pub fn written(writer: Writer) -> Result<Tokenizer, LoadError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&writer.finish()).unwrap();
    Tokenizer::from_gguf(&gguf::File::open(file.path()).unwrap())
}
