//! `penstock bench`: runs behind the figures of the README. Measuring is the `bench` crate's part; here are the flags
//! and what is printed.

mod count;
mod counterparts;
mod engine;
mod hold;
mod ledger;

use ::bench::{Report, gateway, quota};
use anyhow::Context;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use crate::{huge_text, output, process};

/// Measure the gateway, the quota store, the count of prompts and the engine
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: penstock bench gateway --quick")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What the gateway adds to a call, beside a bare proxy and no proxy at all (about six minutes)
    #[command(after_help = "Example: penstock bench gateway --quick --json")]
    Gateway(Gateway),
    /// Reservations and settlements per second, without HTTP (about a minute)
    #[command(after_help = "Example: penstock bench quota --store memory")]
    Quota(Quota),
    /// What counting a prompt of 1 MiB costs, for text of every kind (about half a minute)
    #[command(after_help = "Example: penstock bench count --tokenizer o200k_base")]
    Count(count::Count),
    /// What calibrated holds let in of a trace, beside the worst case and lengths known beforehand (about a second)
    #[command(after_help = "Example: penstock bench hold --trace calls.csv --max-tokens 4096")]
    Hold(hold::Hold),
    /// Tokens per second of the engine at 1, 4 and 16 streams
    #[command(after_help = "Example: penstock bench engine --model smollm2")]
    Engine(engine::Engine),
    #[command(hide = true)]
    Mock(counterparts::Mock),
    #[command(hide = true)]
    RawProxy(counterparts::RawProxy),
}

#[derive(Debug, ClapArgs)]
struct Gateway {
    /// Where quotas are kept; `redis` starts a Redis of its own
    #[arg(long, value_enum, default_value_t = Store::Redis)]
    store: Store,
    /// Measure without quotas: authentication and forwarding only
    #[arg(long)]
    no_quotas: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, ClapArgs)]
struct Quota {
    /// One of the two stores [default: both]
    #[arg(long, value_enum)]
    store: Option<Store>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, ClapArgs)]
struct Common {
    /// A few seconds: whether it works, not what it costs
    #[arg(long)]
    quick: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Store {
    Memory,
    Redis,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    // The gateway does so, and what it is measured beside should have no less.
    huge_text::adopt();
    process::raise_open_files().context("cannot raise the limit of open files")?;
    match args.command {
        Command::Gateway(args) => args.run(),
        Command::Quota(args) => args.run(),
        Command::Count(args) => args.run(),
        Command::Hold(args) => args.run(),
        Command::Engine(args) => args.run(),
        Command::Mock(args) => args.run(),
        Command::RawProxy(args) => args.run(),
    }
}

impl Gateway {
    fn run(self) -> anyhow::Result<()> {
        let penstock = std::env::current_exe().context("cannot find this program's own file")?;
        let defaults =
            if self.common.quick { gateway::Options::quick(penstock) } else { gateway::Options::full(penstock) };
        let store = match self.store {
            Store::Memory => gateway::Store::Memory,
            Store::Redis => gateway::Store::Redis,
        };
        let options = gateway::Options { store, quotas: !self.no_quotas, ..defaults };
        self.common.print(&gateway::run(&options, &mut output::note)?)
    }
}

impl Quota {
    fn run(self) -> anyhow::Result<()> {
        let defaults = if self.common.quick { quota::Options::quick() } else { quota::Options::default() };
        let options = quota::Options {
            memory: self.store != Some(Store::Redis),
            redis: self.store != Some(Store::Memory),
            ..defaults
        };
        self.common.print(&quota::run(&options, &ledger::Ledger, &mut output::note)?)
    }
}

impl Common {
    /// A missed target is a failed check.
    fn print(&self, report: &Report) -> anyhow::Result<()> {
        output::line(&if self.json { report.to_json() } else { report.render() })?;
        if report.all_targets_met() { Ok(()) } else { Err(output::Shown.into()) }
    }
}
