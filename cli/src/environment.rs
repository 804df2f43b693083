//! The only reader of environment variables.

use std::{collections::HashMap, ffi::OsString, path::PathBuf};

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

/// Where the ledger of `penstock up` is kept: `penstock` in the user's data folder.
pub fn data_dir() -> anyhow::Result<PathBuf> {
    user_dir("XDG_DATA_HOME", ".local/share")
        .ok_or_else(|| anyhow::anyhow!("no data folder: set XDG_DATA_HOME (or HOME) to a folder that can be written"))
}

/// Where sockets go: a folder of this login session, else the one for temporary files.
pub fn runtime_dir() -> PathBuf {
    absolute("XDG_RUNTIME_DIR").filter(|dir| dir.is_dir()).unwrap_or_else(std::env::temp_dir)
}

/// `PENSTOCK_HUGE_TEXT=off` leaves the code where the loader put it: code that was moved belongs to no file, which
/// profilers and debuggers would need.
pub fn may_move_code() -> bool {
    read("PENSTOCK_HUGE_TEXT").is_none_or(|value| value != "off")
}

/// All that a configuration file may name as `${NAME}`.
pub fn all() -> HashMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn user_dir(variable: &str, below_home: &str) -> Option<PathBuf> {
    let base = absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))?;
    Some(base.join("penstock"))
}

/// The log filter, in the syntax of `tracing_subscriber`.
pub fn log_filter() -> Option<String> {
    read("RUST_LOG").and_then(|value| value.into_string().ok())
}
