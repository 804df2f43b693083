//! `penstock quota`: looks into the shared quota store from outside. The embedded store lives inside its gateway, whose
//! metrics tell the same.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::{Args as ClapArgs, Subcommand};
use proxy::{
    config::StoreUrl,
    quota::{
        RedisOptions, Store,
        audit::{self, AccountAudit, Audit},
        redis::RedisStore,
    },
};
use serde_json::{Value, json};

use crate::{config, output, runtime};

const SHOW_EXAMPLES: &str = "\
Examples:
  penstock quota show --config penstock.yaml
  penstock quota show --store redis://127.0.0.1:6379/0 --json";

/// A store in use may change between two reads of an audit, so a fault must show this often in a row.
const AUDITS: u32 = 3;
const BETWEEN_AUDITS: Duration = Duration::from_millis(300);

/// Look into the quota store
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: penstock quota check --config penstock.yaml")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what each account reserved, used and got back, and what live calls hold
    #[command(after_help = SHOW_EXAMPLES)]
    Show(At),
    /// Check that the books balance to the token; exit code 1 if they do not
    #[command(after_help = "Example: penstock quota check --config penstock.yaml")]
    Check(At),
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
        Command::Show(at) => show(&runtime::run(None, at.audit())?, at.json),
        Command::Check(at) => check(&runtime::run(None, at.audit_until_balanced())?, at.json),
    }
}

impl At {
    async fn open(&self) -> anyhow::Result<Store> {
        let url = match &self.config {
            Some(file) => match config::load(file)?.store {
                StoreUrl::Redis(url) => url,
                StoreUrl::Memory => anyhow::bail!(
                    "{}: `store: memory` lives inside its gateway; see penstock_quota_* in the gateway's /metrics",
                    file.display()
                ),
            },
            None => self.store.clone().context("--store is missing")?,
        };
        Ok(Store::Redis(RedisStore::connect(&url, RedisOptions::default()).await?))
    }

    async fn audit(&self) -> anyhow::Result<Audit> {
        Ok(audit::audit(&self.open().await?).await?)
    }

    async fn audit_until_balanced(&self) -> anyhow::Result<Audit> {
        let store = self.open().await?;
        let mut found = audit::audit(&store).await?;
        for _ in 1..AUDITS {
            if found.is_balanced() {
                break;
            }
            tokio::time::sleep(BETWEEN_AUDITS).await;
            found = audit::audit(&store).await?;
        }
        Ok(found)
    }
}

fn show(audit: &Audit, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return output::json(&in_json(audit));
    }
    let columns = ["reserved", "settled", "refunded", "expired", "held"];
    output::line(&format!("{:<40} {}", "account", columns.map(|name| format!("{name:>14}")).join("")))?;
    for (key, account) in &audit.accounts {
        let figures = figures(account).map(|(_, value)| format!("{value:>14}")).join("");
        output::line(&format!("{key:<40} {figures}"))?;
    }
    output::line(&summary(audit))
}

fn check(audit: &Audit, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        output::json(&in_json(audit))?;
    } else if audit.is_balanced() {
        output::line(&format!("balanced: {}", summary(audit)))?;
    }
    if audit.is_balanced() {
        return Ok(());
    }
    audit.faults().iter().for_each(|fault| output::note(fault));
    Err(output::Shown.into())
}

fn figures(account: &AccountAudit) -> [(&'static str, f64); 5] {
    let totals = &account.totals;
    [
        ("reserved", totals.reserved),
        ("settled", totals.settled),
        ("refunded", totals.refunded),
        ("expired", totals.expired),
        ("held", account.live_tokens),
    ]
}

fn summary(audit: &Audit) -> String {
    let Audit { accounts, live_leases, expired_leases } = audit;
    format!("{} accounts, {live_leases} live leases, {expired_leases} expired ones still remembered", accounts.len())
}

fn in_json(audit: &Audit) -> Value {
    let accounts = audit.accounts.iter().map(|(key, account)| {
        let mut value: serde_json::Map<String, Value> =
            figures(account).into_iter().map(|(name, value)| (format!("{name}_tokens"), value.into())).collect();
        value.insert("leaked_tokens".to_owned(), account.leaked().into());
        (key.clone(), Value::from(value))
    });
    json!({
        "balanced": audit.is_balanced(),
        "leaked_tokens": audit.leaked(),
        "live_leases": audit.live_leases,
        "expired_leases": audit.expired_leases,
        "accounts": accounts.collect::<serde_json::Map<_, _>>(),
    })
}
