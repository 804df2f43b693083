//! SHA-256 sums as people write them.

use sha2::{Digest, Sha256};

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Ends `hasher` and writes its sum as 64 hex digits.
pub fn finish(hasher: Sha256) -> String {
    hex(&hasher.finalize())
}

/// Accepts 64 hex digits in either case, with or without the prefix `sha256:`.
pub fn parse(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    if digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(digits.to_ascii_lowercase())
    } else {
        Err("a SHA-256 sum has 64 hex digits".to_owned())
    }
}
