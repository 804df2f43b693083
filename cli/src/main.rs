//! The `penstock` binary: parses the command line, sets what is global to a process, and runs one subcommand.
//! What a subcommand does lives in the file of its name.

mod args;
mod bench;
mod config;
mod engine;
mod environment;
mod gateway;
mod huge_text;
mod listen;
mod model;
mod output;
mod process;
mod quota;
mod reload;
mod runtime;
mod serve;
mod signals;
mod supervisor;
mod telemetry;
mod up;

use std::process::ExitCode;

use clap::Parser;

/// A call makes a hundred small allocations: see docs/decisions/0007.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Usage errors leave here with exit code 2, `--help` and `--version` with 0.
    let args = args::Args::parse();
    match install_globals().and_then(|()| args.command.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

/// One TLS implementation for every client of this process.
fn install_globals() -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("another TLS provider is installed already"))
}
