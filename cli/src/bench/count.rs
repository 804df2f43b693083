//! `penstock bench count`: which tokenizers are measured.

use ::bench::count;
use clap::Args as ClapArgs;
use proxy::config::TokenizerSource;

use crate::{model, output};

#[derive(Debug, ClapArgs)]
pub struct Count {
    /// An encoding (o200k_base, cl100k_base) or a bundled or pulled model; may be given several times
    #[arg(long, value_name = "NAME", default_values = ["o200k_base", "cl100k_base", "smollm2", "gemma3"])]
    tokenizer: Vec<String>,
    #[command(flatten)]
    common: super::Common,
}

impl Count {
    pub fn run(self) -> anyhow::Result<()> {
        let options = if self.common.quick { count::Options::quick() } else { count::Options::default() };
        let counters = self.tokenizer.iter().map(|name| named(name)).collect::<anyhow::Result<Vec<_>>>()?;
        self.common.print(&count::run(&options, &counters, &mut output::note))
    }
}

fn named(name: &str) -> anyhow::Result<count::Named> {
    let source = match name {
        "o200k_base" | "cl100k_base" => TokenizerSource::Builtin(name.to_owned()),
        model => TokenizerSource::Gguf(model::ensure(model)?.path),
    };
    Ok(count::Named { name: name.to_owned(), counter: proxy::prompt_counter(name, &source)? })
}
