//! Processes that a run starts beside the gateway: the upstream it talks to, and the proxy it is compared with.

use std::net::{SocketAddr, TcpListener};

use ::bench::{mock, raw_proxy};
use anyhow::Context;
use clap::Args as ClapArgs;

/// An upstream that answers like one, at a speed that is asked for
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: penstock bench mock --listen 127.0.0.1:9099")]
pub struct Mock {
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
pub struct RawProxy {
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    #[arg(long, value_name = "IP:PORT")]
    upstream: SocketAddr,
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
}

impl Mock {
    pub fn run(self) -> anyhow::Result<()> {
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

impl RawProxy {
    pub fn run(self) -> anyhow::Result<()> {
        raw_proxy::run(bind(self.listen)?, self.upstream, self.threads).context("the raw proxy ended")
    }
}

fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("cannot listen on {address}: choose another with --listen"))
}
