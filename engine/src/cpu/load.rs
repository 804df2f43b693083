//! From tensor names to a model's weights: every tensor that the architecture has must be there in the right shape,
//! and one that it does not have is refused, since leaving it out would change the answers.

use std::collections::HashSet;

use super::pool::{Panicked, Pool};
use super::rope::Frequencies;
use super::weights::{self, Matrix};
use crate::model::{self, Architecture, ModelSpec};

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Model(#[from] model::Error),
    #[error("tensor {0:?} is missing; the file is incomplete, download or convert it again")]
    Missing(String),
    #[error("tensor {tensor:?} has dimensions {found:?}, expected {expected:?}; convert the model again")]
    Shape { tensor: String, found: Vec<u64>, expected: Vec<u64> },
    #[error("tensor {tensor:?} has rows of {found}; the CPU engine needs multiples of 32, choose another model")]
    RowLength { tensor: String, found: usize },
    #[error("tensor {tensor:?} has type {kind}, expected {expected}; convert the model again")]
    Type { tensor: String, kind: gguf::TensorType, expected: &'static str },
    #[error("tensor {0:?} is not part of this architecture as the engine computes it; choose another model")]
    Unknown(String),
    #[error("no memory for tensor {tensor:?}: {source}")]
    Memory { tensor: String, source: std::io::Error },
    #[error("no memory for {blocks} KV blocks: {source}; ask for fewer")]
    KvMemory { blocks: u32, source: std::io::Error },
    #[error("cannot start compute threads: {0}")]
    Threads(std::io::Error),
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

/// Shapes are (inputs, outputs).
pub struct Weights {
    /// (width, vocab)
    pub embedding: Matrix,
    /// (width, vocab); `None`: the embedding.
    pub output: Option<Matrix>,
    pub output_norm: Vec<f32>,
    pub layers: Vec<Layer>,
    /// Indexed by [`model::LayerSpec::rope`].
    pub frequencies: Vec<Frequencies>,
    /// Of all the bytes that the weights came from.
    pub digest: [u8; 32],
}

pub struct Layer {
    pub attn_norm: Vec<f32>,
    /// (width, heads * head_dim)
    pub q: Matrix,
    /// (width, kv_heads * head_dim)
    pub k: Matrix,
    pub v: Matrix,
    /// Of each head.
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    /// (heads * head_dim, width)
    pub o: Matrix,
    pub post_attn_norm: Option<Vec<f32>>,
    pub ffn_norm: Vec<f32>,
    /// (width, hidden)
    pub gate: Matrix,
    pub up: Matrix,
    /// (hidden, width)
    pub down: Matrix,
    pub post_ffn_norm: Option<Vec<f32>>,
}

impl Weights {
    pub fn load(file: &gguf::File, spec: &ModelSpec, pool: &mut Pool) -> Result<Self, LoadError> {
        let mut loader = Loader { file, pool, used: HashSet::new(), digest: blake3::Hasher::new() };
        let width = spec.width;
        let embedding = loader.matrix("token_embd.weight", width, spec.vocab_size)?;
        let output = match file.tensor("output.weight") {
            Some(_) => Some(loader.matrix("output.weight", width, spec.vocab_size)?),
            None => None,
        };
        let output_norm = loader.vector("output_norm.weight", width)?;
        let factors = match file.tensor("rope_freqs.weight") {
            Some(_) if spec.architecture == Architecture::Llama => {
                Some(loader.vector("rope_freqs.weight", spec.head_dim / 2)?)
            }
            _ => None,
        };
        let layers = (0..spec.layers.len()).map(|index| loader.layer(spec, index)).collect::<Result<_, _>>()?;
        let frequency = |rope: &model::RopeSpec| Frequencies::new(*rope, spec.head_dim, factors.as_deref());
        let frequencies = spec.ropes.iter().map(frequency).collect();
        let digest = loader.finish(spec)?;
        Ok(Self { embedding, output, output_norm, layers, frequencies, digest })
    }
}

struct Loader<'a> {
    file: &'a gguf::File,
    pool: &'a mut Pool,
    used: HashSet<&'a str>,
    digest: blake3::Hasher,
}

impl<'a> Loader<'a> {
    fn layer(&mut self, spec: &ModelSpec, index: usize) -> Result<Layer, LoadError> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let (width, dim, hidden) = (spec.width, spec.head_dim, spec.hidden);
        let (q_len, kv_len) = (spec.heads * dim, spec.kv_heads * dim);
        let optional = |loader: &mut Self, wanted: bool, part: &str, len: usize| {
            if wanted { loader.vector(&name(part), len).map(Some) } else { Ok(None) }
        };
        Ok(Layer {
            attn_norm: self.vector(&name("attn_norm"), width)?,
            q: self.matrix(&name("attn_q"), width, q_len)?,
            k: self.matrix(&name("attn_k"), width, kv_len)?,
            v: self.matrix(&name("attn_v"), width, kv_len)?,
            q_norm: optional(self, spec.qk_norms, "attn_q_norm", dim)?,
            k_norm: optional(self, spec.qk_norms, "attn_k_norm", dim)?,
            o: self.matrix(&name("attn_output"), q_len, width)?,
            post_attn_norm: optional(self, spec.post_norms, "post_attention_norm", width)?,
            ffn_norm: self.vector(&name("ffn_norm"), width)?,
            gate: self.matrix(&name("ffn_gate"), width, hidden)?,
            up: self.matrix(&name("ffn_up"), width, hidden)?,
            down: self.matrix(&name("ffn_down"), hidden, width)?,
            post_ffn_norm: optional(self, spec.post_norms, "post_ffw_norm", width)?,
        })
    }

    fn tensor(&mut self, name: &str) -> Result<&'a gguf::TensorInfo, LoadError> {
        let tensor = self.file.tensor(name).ok_or_else(|| LoadError::Missing(name.to_owned()))?;
        self.used.insert(&tensor.name);
        Ok(tensor)
    }

    fn matrix(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Matrix, LoadError> {
        let tensor = self.tensor(name)?;
        let (matrix, digest) = Matrix::load(self.file, tensor, [inputs, outputs], self.pool)?;
        self.absorb(tensor, &digest);
        Ok(matrix)
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let tensor = self.tensor(name)?;
        let vector = weights::vector(self.file, tensor, len)?;
        self.absorb(tensor, blake3::hash(self.file.bytes(tensor)).as_bytes());
        Ok(vector)
    }

    fn absorb(&mut self, tensor: &gguf::TensorInfo, digest: &[u8; 32]) {
        self.digest.update(format!("{} {} {:?}\n", tensor.name, tensor.kind, tensor.dims).as_bytes());
        self.digest.update(digest);
    }

    /// The model's digest: its shape (norms, RoPE and scales change answers too) and all its tensors.
    fn finish(mut self, spec: &ModelSpec) -> Result<[u8; 32], LoadError> {
        if let Some(unknown) = self.file.tensors().iter().find(|tensor| !self.used.contains(tensor.name.as_str())) {
            return Err(LoadError::Unknown(unknown.name.clone()));
        }
        self.digest.update(format!("{spec:?}").as_bytes());
        Ok(*self.digest.finalize().as_bytes())
    }
}
