//! `penstock engine`: loads one GGUF model and serves it over HTTP.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use ::engine::{
    Config, LoadOptions,
    cpu::CpuOptions,
    http::{Options, Server},
};
use anyhow::Context;
use clap::{Args as ClapArgs, ValueEnum};
use serde::Serialize;

use crate::{
    listen::{self, Address, Bound},
    output, process, runtime,
    signals::Signals,
    telemetry,
};

const EXAMPLES: &str = "\
Examples:
  penstock engine --model tiny.gguf --name tiny --listen 127.0.0.1:8000
  penstock engine --probe";

/// Run the decode engine on one model file
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The model
    #[arg(long, value_name = "PATH.gguf", required_unless_present = "probe")]
    model: Option<PathBuf>,
    /// What clients call the model [default: the file name without .gguf]
    #[arg(long)]
    name: Option<String>,
    /// HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000", value_parser = Address::parse)]
    listen: Address,
    /// What computes the model
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    device: Device,
    /// Threads that compute [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// The longest context of one sequence, in tokens [default: what the model was trained for]
    #[arg(long, value_name = "N")]
    ctx: Option<NonZeroU32>,
    /// Size of the KV cache: blocks of 16 tokens of one layer group. Memory is used as it fills
    #[arg(long, value_name = "N", default_value_t = DEFAULT_KV_BLOCKS)]
    kv_blocks: NonZeroU32,
    /// The most sequences computed together
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_SEQS)]
    max_num_seqs: NonZeroU32,
    /// Compute in f32 throughout: the reference, several times slower
    #[arg(long)]
    exact: bool,
    /// Say which device would be used and why, and end
    #[arg(long)]
    probe: bool,
    /// Print the probe's result as JSON
    #[arg(long, requires = "probe")]
    json: bool,
}

const DEFAULT_KV_BLOCKS: NonZeroU32 = NonZeroU32::new(4096).expect("invariant: not zero");
const DEFAULT_MAX_SEQS: NonZeroU32 = NonZeroU32::new(32).expect("invariant: not zero");

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// The best one this build and this machine have
    Auto,
    Cpu,
    Cuda,
}

/// What `--probe` finds.
#[derive(Debug, Serialize)]
struct Probe {
    device: &'static str,
    threads: usize,
    why: &'static str,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let probe = args.probe()?;
    if args.probe {
        let text = format!("{}, {} threads: {}", probe.device, probe.threads, probe.why);
        return if args.json { output::json(&probe) } else { output::line(&text) };
    }
    telemetry::install("info")?;
    process::raise_open_files().context("cannot raise the limit of open files")?;
    tracing::info!(device = probe.device, threads = probe.threads, "{}", probe.why);
    runtime::run(args.serve(probe.threads))
}

impl Args {
    fn probe(&self) -> anyhow::Result<Probe> {
        let why = match self.device {
            Device::Auto => "this build has no CUDA backend",
            Device::Cpu => "as asked for",
            Device::Cuda => anyhow::bail!("--device cuda: this build has no CUDA backend; take auto or cpu"),
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Ok(Probe { device: "cpu", threads: self.threads.map_or(cores, usize::from), why })
    }

    async fn serve(self, threads: usize) -> anyhow::Result<()> {
        let path = self.model.context("--model is missing")?;
        let name = self.name.unwrap_or_else(|| file_stem(&path));
        let shutdown = Signals::install()?.shutdown();
        // The port first: what cannot work should fail before a large file is read. Until then answers are 503.
        let bound = listen::bind(&self.listen, "choose another address with --listen").await?;
        let Bound { listener, address, file: _socket_file } = bound;
        let server = Arc::new(Server::new(Options::new(&name)));
        let serving = tokio::spawn({
            let server = server.clone();
            async move { server.serve(listener).await }
        });
        let options = LoadOptions {
            cpu: CpuOptions { threads, exact: self.exact, kv_blocks: self.kv_blocks.get() },
            config: Config {
                max_seqs: self.max_num_seqs.get(),
                context: self.ctx.map(NonZeroU32::get),
                ..Config::default()
            },
        };
        let loaded = tokio::task::spawn_blocking({
            let name = name.clone();
            move || ::engine::load(&path, &name, options).with_context(|| format!("cannot load {}", path.display()))
        });
        tokio::pin!(shutdown);
        tokio::select! {
            loaded = loaded => server.install(loaded.context("loading panicked")??),
            () = &mut shutdown => return Ok(()),
        }
        tracing::info!(model = name, %address, "ready");
        shutdown.await;
        server.drain();
        serving.await.context("serving panicked")
    }
}

fn file_stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned())
}
