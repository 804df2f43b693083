//! The command line as a type. Flags, defaults and help of a subcommand are declared in that subcommand's file.

use clap::{Parser, Subcommand};

use crate::{bench, config, engine, model, quota, serve, up};

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
    Up(up::Args),
    Serve(serve::Args),
    Engine(engine::Args),
    Config(config::Args),
    Model(model::Args),
    Quota(quota::Args),
    Bench(bench::Args),
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Up(args) => up::run(args),
            Self::Serve(args) => serve::run(args),
            Self::Engine(args) => engine::run(args),
            Self::Config(args) => config::run(args),
            Self::Model(args) => model::run(args),
            Self::Quota(args) => quota::run(args),
            Self::Bench(args) => bench::run(args),
        }
    }
}
