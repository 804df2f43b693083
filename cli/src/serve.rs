//! `penstock serve`: the gateway, as its configuration file says.

use std::{num::NonZero, path::PathBuf};

use anyhow::Context;
use clap::Args as ClapArgs;

use crate::{
    config,
    gateway::{self, Listeners},
    huge_text, process,
    reload::Watch,
    runtime,
    signals::{Hangup, Signals},
    telemetry,
};

/// Run the gateway; it reads its configuration again when that changes, or on SIGHUP
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: penstock serve --config penstock.yaml")]
pub struct Args {
    /// The gateway's configuration (`penstock config schema` describes it)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Threads that serve requests [default: half of the cores]
    #[arg(long, value_name = "N")]
    workers: Option<NonZero<usize>>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    telemetry::install("info")?;
    huge_text::adopt();
    let config = config::load(&args.config)?;
    process::raise_open_files().context("cannot raise the limit of open files")?;
    runtime::run(args.workers, async {
        let shutdown = Signals::install(Hangup::Rereads)?.shutdown();
        let cure = format!("change `listen` or `admin` in {}", args.config.display());
        let listeners = Listeners::bind(config.listen, config.admin, &cure).await?;
        let proxy = gateway::start(&config).await?;
        let (api, admin) = (listeners.api_address()?, listeners.admin_address()?);
        tracing::info!(%api, %admin, "listening");
        let drain = config.limits.drain;
        let _watching = Watch::new(proxy.clone(), args.config, config, Box::new(Ok))?.start();
        gateway::serve(proxy, listeners, shutdown, drain).await
    })
}
