//! `penstock bench`: runs behind the figures of the README. Measuring is the `bench` crate's part; here are the flags
//! and what is printed. Helper processes of a run are hidden subcommands.

use std::net::{SocketAddr, TcpListener};

use ::bench::{mock, raw_proxy};
use anyhow::Context;
use clap::{Args as ClapArgs, Subcommand};

use crate::process;

/// Measure the gateway, the quota store and the engine
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: penstock bench gateway --quick")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(hide = true)]
    Mock(Mock),
    #[command(hide = true)]
    RawProxy(RawProxy),
}

/// An upstream that answers like one, at a speed that is asked for
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: penstock bench mock --listen 127.0.0.1:9099")]
struct Mock {
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Requests that are kept to be looked at
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    records: usize,
    /// Changes to the default behaviour, as JSON
    #[arg(long, value_name = "JSON")]
    settings: Option<serde_json::Value>,
}

/// The least a proxy can do: the floor that the gateway is compared with
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: penstock bench raw-proxy --listen 127.0.0.1:9098 --upstream 127.0.0.1:9099")]
struct RawProxy {
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    #[arg(long, value_name = "IP:PORT")]
    upstream: SocketAddr,
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    process::raise_open_files().context("cannot raise the limit of open files")?;
    match args.command {
        Command::Mock(mock) => mock.run(),
        Command::RawProxy(proxy) => {
            raw_proxy::run(bind(proxy.listen)?, proxy.upstream, proxy.threads).context("the raw proxy ended")
        }
    }
}

impl Mock {
    fn run(self) -> anyhow::Result<()> {
        let defaults = mock::Settings::default();
        let settings = match &self.settings {
            Some(patch) => defaults.patched(patch).map_err(|error| anyhow::anyhow!("--settings: {error}"))?,
            None => defaults,
        };
        let options = mock::Options {
            listen: self.listen,
            threads: self.threads,
            records: self.records,
            settings,
            ..mock::Options::default()
        };
        mock::run(bind(self.listen)?, options).context("the mock ended")
    }
}

fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("cannot listen on {address}: choose another with --listen"))
}
