//! The command line as a type. Flags, defaults and help of a subcommand are declared in that subcommand's file.

use clap::{Parser, Subcommand};

use crate::{bench, model};

const EXIT_CODES: &str = "Exit codes: 0 ok, 1 failed or refused by a check, 2 usage.";

/// Meters tokens into models: an OpenAI-compatible gateway with exact token quotas, and a decode engine.
#[derive(Debug, Parser)]
#[command(name = "penstock", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Model(model::Args),
    Bench(bench::Args),
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Model(args) => model::run(args),
            Self::Bench(args) => bench::run(args),
        }
    }
}
