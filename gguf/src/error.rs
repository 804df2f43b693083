//! Why a file was refused: each variant names the place in the file, the key or the tensor, and what to do.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("not a GGUF file (it starts with {found:02x?}); expected a model file in GGUF format")]
    NotGguf { found: Vec<u8> },
    #[error("GGUF version {found} is not supported (2 and 3 are); convert the model again with a current converter")]
    Version { found: u32 },
    #[error("big-endian GGUF file; convert the model again for little-endian machines")]
    BigEndian,
    #[error(
        "file ends inside {place}: {needed} bytes wanted at offset {offset}, file has {len}; it is truncated, download it again"
    )]
    Truncated { place: String, offset: u64, needed: u64, len: u64 },
    #[error("{place}: {reason}; the file is corrupt, download or convert it again")]
    Corrupt { place: String, reason: String },
    #[error("{place}: {found} is above the limit of {limit}; no known model needs that many, the file is corrupt")]
    Limit { place: &'static str, found: u64, limit: u64 },
    #[error("metadata key {key:?} occurs twice; the file is corrupt, convert the model again")]
    DuplicateKey { key: String },
    #[error("tensor {name:?} occurs twice; the file is corrupt, convert the model again")]
    DuplicateTensor { name: String },
    #[error("tensor {name:?} has type {kind}, which is not supported; requantise the model to one of {supported}")]
    TensorType { name: String, kind: String, supported: String },
    #[error("metadata key {key:?} is missing; the file was made by an incomplete converter, convert the model again")]
    MissingKey { key: String },
    #[error("metadata key {key:?} is {found}, expected {expected}; convert the model again with a current converter")]
    KeyType { key: String, found: String, expected: &'static str },
}
