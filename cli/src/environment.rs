//! The only reader of environment variables.

use std::{ffi::OsString, path::PathBuf};

#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn read(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// A folder named by a variable. A relative value is ignored, as the XDG base directory specification asks.
fn absolute(name: &str) -> Option<PathBuf> {
    read(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Where model files are kept: `$PENSTOCK_CACHE`, else `penstock` in the user's cache folder.
pub fn cache_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = read("PENSTOCK_CACHE") {
        return Ok(std::path::absolute(dir)?);
    }
    user_dir("XDG_CACHE_HOME", ".cache")
        .ok_or_else(|| anyhow::anyhow!("no cache folder: set PENSTOCK_CACHE (or HOME) to a folder that can be written"))
}

fn user_dir(variable: &str, below_home: &str) -> Option<PathBuf> {
    let base = absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))?;
    Some(base.join("penstock"))
}

/// The log filter, in the syntax of `tracing_subscriber`.
pub fn log_filter() -> Option<String> {
    read("RUST_LOG").and_then(|value| value.into_string().ok())
}
