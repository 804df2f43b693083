//! Log lines: to standard error, filtered by `RUST_LOG`. The access log is not a log line and goes elsewhere.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, fmt};

use crate::environment;

/// Installs the subscriber of this process; `default` is the filter when `RUST_LOG` is not set.
pub fn install(default: &str) -> anyhow::Result<()> {
    let filter = environment::log_filter().unwrap_or_else(|| default.to_owned());
    let filter = EnvFilter::try_new(&filter).map_err(|error| anyhow::anyhow!("RUST_LOG: {error}"))?;
    fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .try_init()
        .map_err(|error| anyhow::anyhow!("cannot install the log subscriber: {error}"))
}
