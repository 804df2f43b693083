//! `penstock up`: everything on this machine. Fetches the models, starts one engine process per model and the gateway
//! with the embedded store in this process, and says how to use it.

mod banner;
mod defaults;
mod sockets;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    thread,
};

use anyhow::Context;
use clap::Args as ClapArgs;

use crate::{
    config, environment,
    gateway::{self, Listeners},
    huge_text,
    listen::Address,
    model, output, process,
    reload::{Watch, Watching},
    runtime,
    signals::{Hangup, Signals},
    supervisor::{Engine, Supervised},
    telemetry,
};
use banner::Banner;
use defaults::{Complete, Local, Setup};
use sockets::Sockets;

const EXAMPLES: &str = "\
Examples:
  penstock up
  penstock up --models smollm2,gemma3 --listen 127.0.0.1:9000";

/// Start everything on this machine: models, engines, gateway and an embedded quota store
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Address of the API [default: 127.0.0.1:8080, or `listen` of the configuration file]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Address of metrics and health [default: 127.0.0.1:9090, or `admin` of the configuration file]
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<SocketAddr>,
    /// Models to serve: smollm2, gemma3, or the name of a pulled file
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "smollm2")]
    models: Vec<String>,
    /// A gateway configuration to use instead of the built-in one; the models are added to it. It is read again when it
    /// changes, or on SIGHUP
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    telemetry::install("warn")?;
    huge_text::adopt();
    let file = args.config.as_deref().map(config::load).transpose()?;
    process::raise_open_files().context("cannot raise the limit of open files")?;
    let runtime = runtime::start(None)?;

    let names = names(&args.models)?;
    // What cannot work should fail before a download: names, then ports.
    let setup = Setup::new(file, args.listen, args.admin);
    setup.refuse_taken(&names)?;
    let cure = "choose another port with --listen (the API) or --admin (metrics)";
    let listeners = runtime.block_on(Listeners::bind(setup.listen(), setup.admin(), cure))?;

    let sockets =
        Sockets::make(&environment::runtime_dir()).context("cannot make a folder for the engines' sockets")?;
    let locals = locals(&names, sockets.path())?;
    let engines = start_engines(&locals)?;
    let complete = setup.complete(&locals)?;
    let served = runtime.block_on(serve(complete, args.config, &locals, &engines, listeners));
    runtime.shutdown_background();
    // The engines end now, after the gateway has drained.
    drop(engines);
    served
}

/// The models asked for, each once.
fn names(models: &[String]) -> anyhow::Result<Vec<&str>> {
    let mut names: Vec<&str> = Vec::new();
    for name in models.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    anyhow::ensure!(!names.is_empty(), "--models names no model");
    Ok(names)
}

/// Fetched if absent.
fn locals(names: &[&str], sockets: &Path) -> anyhow::Result<Vec<Local>> {
    let local = |(index, name): (usize, &&str)| {
        let model = model::ensure(name)?;
        Local::new(name, model.path, sockets.join(format!("{index}.sock")))
    };
    names.iter().enumerate().map(local).collect()
}

/// The engines share the cores: together they have as many threads as there are.
fn start_engines(locals: &[Local]) -> anyhow::Result<Vec<Supervised>> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores / locals.len()).max(1);
    let engine = |local: &Local| Engine {
        name: local.name.clone(),
        model: local.path.clone(),
        listen: Address::Unix(local.socket.clone()),
        threads,
    };
    locals.iter().map(|local| Supervised::start(engine(local))).collect()
}

async fn serve(
    complete: Complete,
    file: Option<PathBuf>,
    locals: &[Local],
    engines: &[Supervised],
    listeners: Listeners,
) -> anyhow::Result<()> {
    let Complete { config, demo_key, own } = complete;
    let signals = Signals::install(if file.is_some() { Hangup::Rereads } else { Hangup::Ends })?;
    let mut shutdown = pin!(async {
        signals.shutdown().await;
        output::note("finishing the answers that run; press Ctrl-C again to stop at once");
    });
    let ready = futures_util::future::try_join_all(engines.iter().map(Supervised::ready));
    let proxy = gateway::start(&config).await?;
    tokio::select! {
        ready = ready => ready?,
        () = &mut shutdown => return Ok(()),
    };
    engines.iter().for_each(Supervised::guard);
    let (listen, admin) = (listeners.api_address()?, listeners.admin_address()?);
    let banner = Banner { listen, admin, key: demo_key, locals, config: &config };
    output::line(&banner.to_string())?;
    let drain = config.limits.drain;
    let watch = |file| Watch::new(proxy.clone(), file, config, Box::new(move |file| own.added_to(file)));
    let _watching: Option<Watching> = file.map(watch).transpose()?.map(Watch::start);
    gateway::serve(proxy, listeners, shutdown, drain).await
}
