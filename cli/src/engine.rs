//! `penstock engine`: loads one GGUF model and serves it over HTTP.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use ::engine::{
    Config, LoadOptions,
    cpu::CpuOptions,
    http::{Options, Server},
};
use anyhow::Context;
use clap::{Args as ClapArgs, ValueEnum};
use serde::Serialize;
use tokio::task::JoinHandle;

use crate::{
    huge_text,
    listen::{self, Address, Bound},
    output, process, runtime,
    signals::{Hangup, Signals},
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

/// For the answers that a failed engine broke off: their clients are still to be told.
const FAILED_LINGER: Duration = Duration::from_secs(2);

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
    huge_text::adopt();
    process::raise_open_files().context("cannot raise the limit of open files")?;
    tracing::info!(device = probe.device, threads = probe.threads, "{}", probe.why);
    runtime::run(None, args.serve(probe.threads))
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
        let shutdown = Signals::install(Hangup::Ends)?.shutdown();
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
        until_end(&server, serving, shutdown).await
    }
}

/// Serves until `shutdown` and lets running answers end. An engine that failed ends the process: whoever watches
/// over it starts another.
async fn until_end(server: &Server, serving: JoinHandle<()>, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let failed = tokio::select! {
        () = shutdown => false,
        () = server.failed() => true,
    };
    server.drain();
    if !failed {
        return serving.await.context("serving panicked");
    }
    if tokio::time::timeout(FAILED_LINGER, serving).await.is_err() {
        tracing::warn!("some clients did not take the news of the failure");
    }
    anyhow::bail!("the engine failed (the log says how)")
}

fn file_stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use ::engine::{
        Request,
        backend::{self, Backend, BlockCopy, KvGroup, KvLayout, Spec, StepOut, StepPlan, Ticket},
        http::{Listener, Model},
    };
    use tokenizer::Tokenizer;

    use super::*;

    /// A device that is gone by the first step.
    struct Gone(Spec);

    impl Gone {
        fn new() -> Self {
            let groups = vec![KvGroup { layers: vec![0], window: None }];
            let kv = KvLayout { groups, total_blocks: 8, bytes_per_block: 1 };
            let numerics_id = "none".to_owned();
            Self(Spec { vocab_size: 100, context_length: 64, kv, numerics_id, model_digest: [0; 32] })
        }
    }

    impl Backend for Gone {
        fn spec(&self) -> &Spec {
            &self.0
        }

        fn submit(&mut self, _: StepPlan) -> Result<Ticket, backend::Error> {
            Err(backend::Error::Device("pulled out".to_owned()))
        }

        fn wait(&mut self, _: Ticket) -> Result<StepOut, backend::Error> {
            Err(backend::Error::Plan("nothing was submitted".to_owned()))
        }

        fn copy_blocks(&mut self, _: &[BlockCopy]) -> Result<(), backend::Error> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_failed_engine_ends_the_process() {
        let tokenizer = Arc::new(Tokenizer::builtin("cl100k_base").expect("it is built in"));
        let handle = ::engine::spawn(Box::new(Gone::new()), Box::new(tokenizer.clone()), "gone", Config::default());
        let handle = handle.expect("a thread");
        let server = Arc::new(Server::new(Options::new("gone")));
        server.install(Model { handle: handle.clone(), tokenizer, template: None });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let serving = tokio::spawn({
            let server = server.clone();
            async move { server.serve(Listener::Tcp(listener)).await }
        });
        let answer = handle.submit(Request::greedy(vec![1], 4)).expect("taken");
        let end = until_end(&server, serving, std::future::pending());
        let end = tokio::time::timeout(Duration::from_secs(10), end).await.expect("it ends");
        assert!(end.is_err_and(|error| error.to_string().contains("failed")));
        drop(answer);
    }
}
