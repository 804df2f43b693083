//! From a model file to a model that answers: tokenizer, chat template, backend, engine thread.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokenizer::{ChatTemplate, Tokenizer};

use crate::cpu::{self, CpuBackend, CpuOptions};
use crate::handle::{Config, spawn};
use crate::http::Model;

#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    pub cpu: CpuOptions,
    pub config: Config,
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    File(#[from] gguf::Error),
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::LoadError),
    #[error(transparent)]
    Model(#[from] cpu::LoadError),
    #[error("the KV cache of {blocks} blocks holds no sequence at all; raise --kv-blocks")]
    NoRoom { blocks: u32 },
    #[error("the engine's thread could not be started: {0}")]
    Thread(#[source] io::Error),
}

/// Blocks until the weights are ready. `name` is what clients will call the model.
pub fn load(path: &Path, name: &str, options: LoadOptions) -> Result<Model, LoadError> {
    let file = gguf::File::open(path)?;
    let tokenizer = Arc::new(Tokenizer::from_gguf(&file)?);
    let template = ChatTemplate::from_gguf(&file)?.map(Arc::new);
    let backend = CpuBackend::load(&file, options.cpu)?;
    let vocabulary = Box::new(Arc::clone(&tokenizer));
    let handle = spawn(Box::new(backend), vocabulary, name, options.config).map_err(LoadError::Thread)?;
    if handle.context() < 2 {
        return Err(LoadError::NoRoom { blocks: options.cpu.kv_blocks });
    }
    Ok(Model { handle, tokenizer, template })
}
