//! `penstock quota`: looks into the shared quota store from outside, and tries quotas on a log. The embedded store lives
//! inside its gateway, whose metrics tell the same.

mod parity;
mod replay;
mod show;

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::{Args as ClapArgs, Subcommand};
use proxy::{
    config::StoreUrl,
    quota::{
        Chain, RedisOptions, Store,
        audit::{self, Audit},
        redis::RedisStore,
    },
};

use crate::{config, output, runtime};
use show::Shown;

const SHOW_EXAMPLES: &str = "\
Examples:
  penstock quota show --config penstock.yaml
  penstock quota show --store redis://127.0.0.1:6379/0 --json";

/// A store in use may change between two reads of an audit, so a fault must show this often in a row.
const AUDITS: u32 = 3;
const BETWEEN_AUDITS: Duration = Duration::from_millis(300);

/// Look into the quota store, and at what calls are taken to cost
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: penstock quota check --config penstock.yaml")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what is left of each limit, who holds, and what each account reserved, used and got back
    #[command(after_help = SHOW_EXAMPLES)]
    Show(At),
    /// Check that the books balance to the token; exit code 1 if they do not
    #[command(after_help = "Example: penstock quota check --config penstock.yaml")]
    Check {
        #[command(flatten)]
        at: At,
        /// Make the books of accounts that do not balance agree with the live leases
        #[arg(long)]
        fix: bool,
    },
    /// Say who would have been refused: an access log through the quotas of a configuration
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::Args),
    /// How far the counts of prompts are from the truth; exit code 1 if a golden one is missed
    Parity(parity::Parity),
}

#[derive(Debug, ClapArgs)]
struct At {
    /// The gateway's configuration, whose `store` is meant
    #[arg(long, value_name = "FILE", required_unless_present = "store")]
    config: Option<PathBuf>,
    /// The store itself
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    store: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Show(at) => show(&at),
        Command::Check { at, fix } => check(&at, fix),
        Command::Replay(args) => replay::run(&args),
        Command::Parity(parity) => parity.run(),
    }
}

/// Which store is meant, and what the configuration, if one is given, knows of its accounts.
struct Target {
    url: String,
    chains: Vec<Chain>,
}

impl At {
    fn target(&self) -> anyhow::Result<Target> {
        let Some(file) = &self.config else {
            return Ok(Target { url: self.store.clone().context("--store is missing")?, chains: Vec::new() });
        };
        let config = config::load(file)?;
        match &config.store {
            StoreUrl::Redis(url) => Ok(Target { url: url.clone(), chains: show::chains(&config) }),
            StoreUrl::Memory => anyhow::bail!(
                "{}: `store: memory` lives inside its gateway; see penstock_quota_* in the gateway's /metrics",
                file.display()
            ),
        }
    }
}

async fn open(url: &str) -> anyhow::Result<Store> {
    Ok(Store::Redis(RedisStore::connect(url, RedisOptions::default()).await?))
}

async fn audited(store: &Store, chains: &[Chain]) -> anyhow::Result<Audit> {
    let mut found = audit::audit(store).await?;
    found.know(chains);
    Ok(found)
}

async fn audit_until_balanced(store: &Store, chains: &[Chain]) -> anyhow::Result<Audit> {
    let mut found = audited(store, chains).await?;
    for _ in 1..AUDITS {
        if found.is_balanced() {
            break;
        }
        tokio::time::sleep(BETWEEN_AUDITS).await;
        found = audited(store, chains).await?;
    }
    Ok(found)
}

fn show(at: &At) -> anyhow::Result<()> {
    let target = at.target()?;
    let audit = runtime::run(None, async { audited(&open(&target.url).await?, &target.chains).await })?;
    let shown = Shown::new(audit, &target.chains);
    if at.json { output::json(&shown.json()) } else { shown.print() }
}

/// What one audit found, what was mended of it, and what another one found then.
struct Checked {
    faults: Vec<String>,
    repaired: Vec<String>,
    audit: Audit,
}

async fn checked(target: &Target, fix: bool) -> anyhow::Result<Checked> {
    let store = open(&target.url).await?;
    let audit = audit_until_balanced(&store, &target.chains).await?;
    let faults = audit.faults();
    if !fix || faults.is_empty() {
        return Ok(Checked { faults, repaired: Vec::new(), audit });
    }
    let repaired = audit::repair(&store, &audit).await?;
    Ok(Checked { faults, repaired, audit: audit_until_balanced(&store, &target.chains).await? })
}

fn check(at: &At, fix: bool) -> anyhow::Result<()> {
    let target = at.target()?;
    let Checked { faults, repaired, audit } = runtime::run(None, checked(&target, fix))?;
    let shown = Shown::new(audit, &target.chains);
    let balanced = shown.audit.is_balanced();
    faults.iter().for_each(|fault| output::note(fault));
    if at.json {
        let mut value = shown.json();
        (value["faults"], value["repaired"]) = (faults.into(), repaired.into());
        output::json(&value)?;
    } else {
        repaired.iter().try_for_each(|key| output::line(&format!("{key}: repaired")))?;
        if balanced {
            output::line(&format!("balanced: {}", shown.summary()))?;
        }
    }
    if balanced { Ok(()) } else { Err(output::Shown.into()) }
}
