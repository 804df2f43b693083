//! What the binary prints: results to standard output, errors to standard error.
//! A reader that goes away (`penstock model list | head -1`) is not an error.

use std::io::{self, ErrorKind, Write};

use anyhow::Context;
use serde::Serialize;

/// Writes `text` and a line end to standard output.
pub fn line(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// Tells the person what is going on; never part of a result.
pub fn note(text: &str) {
    // Nothing can be told to a person whose terminal is gone.
    drop(writeln!(io::stderr(), "{text}"));
}

/// The command failed, and what it found was shown already.
#[derive(Debug, thiserror::Error)]
#[error("refused")]
pub struct Shown;

pub fn error(error: &anyhow::Error) {
    if !error.is::<Shown>() {
        note(&format!("error: {error:#}"));
    }
}

/// `98.4 MB`: decimal units, as download pages show them.
pub fn bytes(count: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(size, _)| count >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", count as f64 / *size as f64),
        None => format!("{count} B"),
    }
}
