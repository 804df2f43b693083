//! `penstock bench engine`: against an engine that runs already, or one that is started for the run.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    thread,
    time::Duration,
};

use ::bench::engine;
use anyhow::Context;
use clap::Args as ClapArgs;

use crate::{
    listen::Address,
    model, output, runtime,
    supervisor::{Engine as Process, Supervised},
};

const QUICK_TOKENS: u64 = 16;
const TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Debug, ClapArgs)]
pub struct Engine {
    /// A bundled or pulled model; with --address, the name the engine serves it under
    #[arg(long, value_name = "NAME", default_value = "smollm2")]
    model: String,
    /// An engine that runs already; without, one is started
    #[arg(long, value_name = "IP:PORT")]
    address: Option<SocketAddr>,
    #[command(flatten)]
    common: super::Common,
}

impl Engine {
    pub fn run(self) -> anyhow::Result<()> {
        let started = match self.address {
            Some(_) => None,
            None => Some(start(&self.model)?),
        };
        let address = self.address.or(started.as_ref().map(|(_, address)| *address)).context("no engine")?;
        let defaults = engine::Options { timeout: TIMEOUT, ..engine::Options::new(address, &self.model) };
        let options = match self.common.quick {
            true => engine::Options { repetitions: 1, max_tokens: QUICK_TOKENS, ..defaults },
            false => defaults,
        };
        self.common.print(&engine::run(&options, &mut output::note)?)
    }
}

fn start(model: &str) -> anyhow::Result<(Supervised, SocketAddr)> {
    let path = model::ensure(model)?.path;
    // A port that is free now; the engine would say so if it no longer were.
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    let address = address.context("there is no free port")?;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let engine = Process { name: model.to_owned(), model: path, listen: Address::Tcp(address), threads };
    let supervised = Supervised::start(engine)?;
    runtime::run(None, supervised.ready())?;
    Ok((supervised, address))
}
