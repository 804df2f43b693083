//! `penstock quota parity`: how far the gateway's counts of prompts are from the truth. The truth is golden counts of
//! independent implementations, or the usage that upstreams reported in an access log.

mod golden;
mod log;
mod measured;

use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use serde::Serialize;

use crate::output;

const EXAMPLES: &str = "\
Examples:
  penstock quota parity
  penstock quota parity --golden tests/golden --json
  penstock quota parity --log access.jsonl";

/// Where a source checkout has its golden counts.
const CHECKOUT: &str = "tests/golden";

#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Parity {
    /// A folder of golden counts [default: tests/golden if it is here, else those built in]
    #[arg(long, value_name = "DIR", conflicts_with = "log")]
    golden: Option<PathBuf>,
    /// Compare what was held for prompts with the usage that upstreams reported, by an access log (- for standard input)
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Parity {
    pub fn run(self) -> anyhow::Result<()> {
        match &self.log {
            Some(file) => self.print(&log::read(file)?),
            None => self.golden(),
        }
    }

    /// Golden counts must be met to the token.
    fn golden(&self) -> anyhow::Result<()> {
        let checkout = Some(Path::new(CHECKOUT)).filter(|folder| folder.is_dir());
        let report = measured::measure(&match self.golden.as_deref().or(checkout) {
            Some(folder) => golden::Files::read(folder)?,
            None => golden::Files::built_in(),
        })?;
        self.print(&report)?;
        report.misses().for_each(|miss| output::note(&miss));
        if report.is_exact() { Ok(()) } else { Err(output::Shown.into()) }
    }

    fn print<R: Serialize + std::fmt::Display>(&self, report: &R) -> anyhow::Result<()> {
        if self.json { output::json(report) } else { output::line(&report.to_string()) }
    }
}
