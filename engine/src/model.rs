//! What a GGUF file says about a model's shape, checked: the one description all backends compute from.
//! Tensors and their types are the backends' business.

use crate::backend::KvGroup;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    Gemma3,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    pub architecture: Architecture,
    pub vocab_size: usize,
    pub context_length: u32,
    /// Width of the residual stream.
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Width between the feed-forward projections.
    pub hidden: usize,
    pub activation: Activation,
    pub norm_eps: f32,
    /// Embedding rows are multiplied by this before the first layer.
    pub embedding_scale: f32,
    /// Q is multiplied by this before the scores.
    pub attention_scale: f32,
    pub rope_pairs: RopePairs,
    /// Indexed by [`LayerSpec::rope`].
    pub ropes: Vec<RopeSpec>,
    pub layers: Vec<LayerSpec>,
    /// Each head of Q and K has a norm of its own.
    pub qk_norms: bool,
    /// Attention and feed-forward are normed before they join the residual stream.
    pub post_norms: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    GeluTanh,
}

/// Which two elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// 2i and 2i + 1.
    Neighbours,
    /// i and i + head_dim / 2.
    Halves,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    pub base: f32,
    /// Positions are multiplied by this (linear scaling).
    pub scale: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    pub window: Option<u32>,
    pub rope: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    #[error("architecture {found:?} is not supported (llama and gemma3 are); choose a model of one of these")]
    Architecture { found: String },
    #[error("metadata key {key:?} is {found}: {reason}")]
    Value { key: String, found: String, reason: &'static str },
    #[error("tensor {0:?} is missing; the file is incomplete, download or convert it again")]
    MissingTensor(String),
}

impl ModelSpec {
    pub fn from_gguf(file: &gguf::File) -> Result<Self, Error> {
        let name = file.str("general.architecture")?;
        let architecture = match name {
            "llama" => Architecture::Llama,
            "gemma3" => Architecture::Gemma3,
            other => return Err(Error::Architecture { found: other.to_owned() }),
        };
        let spec = Self::read(architecture, &Keys { file, prefix: name })?;
        Ok(spec)
    }

    fn read(architecture: Architecture, keys: &Keys) -> Result<Self, Error> {
        const SMALL: u32 = 1 << 16;
        let width = keys.size("embedding_length", 1 << 20)?;
        let heads = keys.size("attention.head_count", SMALL)?;
        let kv_heads = keys.opt_size("attention.head_count_kv", SMALL)?.unwrap_or(heads);
        let head_dim = keys.opt_size("attention.key_length", SMALL)?.unwrap_or(width / heads);
        let layers = keys.size("block_count", 4096)?;
        keys.require("attention.head_count_kv", kv_heads, heads.is_multiple_of(kv_heads), "it must divide head_count")?;
        keys.require(
            "attention.key_length",
            head_dim,
            head_dim > 0 && head_dim.is_multiple_of(16),
            "it must be a multiple of 16",
        )?;
        let value_length = keys.opt_size("attention.value_length", SMALL)?.unwrap_or(head_dim);
        keys.require("attention.value_length", value_length, value_length == head_dim, "it must equal key_length")?;
        let rotated = keys.opt_size("rope.dimension_count", SMALL)?.unwrap_or(head_dim);
        keys.require("rope.dimension_count", rotated, rotated == head_dim, "partial rotation is not supported")?;
        let experts = keys.opt_u32("expert_count")?.unwrap_or(0);
        keys.require("expert_count", experts, experts == 0, "mixtures of experts are not supported")?;
        let gemma = architecture == Architecture::Gemma3;
        let (ropes, layers) = if gemma { gemma_layers(keys, layers)? } else { llama_layers(keys, layers)? };
        Ok(Self {
            architecture,
            vocab_size: vocab_size(keys.file)?,
            context_length: keys.size("context_length", 1 << 24)? as u32,
            width,
            heads,
            kv_heads,
            head_dim,
            hidden: keys.size("feed_forward_length", 1 << 22)?,
            activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
            norm_eps: keys.f32("attention.layer_norm_rms_epsilon", None)?,
            embedding_scale: if gemma { (width as f32).sqrt() } else { 1.0 },
            attention_scale: 1.0 / attention_norm(architecture, layers.len(), width, heads, head_dim).sqrt(),
            rope_pairs: if gemma { RopePairs::Halves } else { RopePairs::Neighbours },
            ropes,
            layers,
            qk_norms: gemma,
            post_norms: gemma,
        })
    }

    /// Groups of equal layer count, each of one kind: as many layers as divide both the global and the window ones.
    pub fn kv_groups(&self) -> Vec<KvGroup> {
        let kinds = [None, self.layers.iter().find_map(|layer| layer.window)];
        let of_kind = |window| -> Vec<u32> {
            (0..).zip(&self.layers).filter(|(_, layer)| layer.window == window).map(|(index, _)| index).collect()
        };
        let globals = of_kind(None);
        let windows = if kinds[1].is_some() { of_kind(kinds[1]) } else { Vec::new() };
        let size = gcd(globals.len(), windows.len()).max(1);
        let split = |layers: &[u32], window| -> Vec<KvGroup> {
            layers.chunks(size).map(|layers| KvGroup { layers: layers.to_vec(), window }).collect()
        };
        let mut groups = split(&globals, None);
        groups.extend(split(&windows, kinds[1]));
        groups
    }
}

/// Scores are divided by the root of this. The 27B Gemma 3 (62 layers) alone takes the width per head.
fn attention_norm(architecture: Architecture, layers: usize, width: usize, heads: usize, head_dim: usize) -> f32 {
    match architecture {
        Architecture::Gemma3 if layers == 62 => (width / heads) as f32,
        _ => head_dim as f32,
    }
}

fn llama_layers(keys: &Keys, count: usize) -> Result<(Vec<RopeSpec>, Vec<LayerSpec>), Error> {
    let rope = RopeSpec { base: keys.f32("rope.freq_base", Some(10_000.0))?, scale: keys.rope_scale()? };
    Ok((vec![rope], vec![LayerSpec { window: None, rope: 0 }; count]))
}

/// Every sixth layer is global; the others see a window and rotate ten thousand times slower positions.
fn gemma_layers(keys: &Keys, count: usize) -> Result<(Vec<RopeSpec>, Vec<LayerSpec>), Error> {
    let window = keys.size("attention.sliding_window", 1 << 24)? as u32;
    let period = keys.opt_size("attention.sliding_window_pattern", 4096)?.unwrap_or(6);
    let global = RopeSpec { base: keys.f32("rope.freq_base", Some(1_000_000.0))?, scale: keys.rope_scale()? };
    let local = RopeSpec { base: keys.f32("rope.freq_base_swa", Some(10_000.0))?, scale: 1.0 };
    let layer = |index: usize| match (index + 1).is_multiple_of(period) {
        true => LayerSpec { window: None, rope: 0 },
        false => LayerSpec { window: Some(window), rope: 1 },
    };
    Ok((vec![global, local], (0..count).map(layer).collect()))
}

fn vocab_size(file: &gguf::File) -> Result<usize, Error> {
    const NAME: &str = "token_embd.weight";
    let tensor = file.tensor(NAME).ok_or_else(|| Error::MissingTensor(NAME.to_owned()))?;
    match tensor.dims.as_slice() {
        &[_, rows] if rows <= 1 << 24 => Ok(rows as usize),
        dims => Err(Error::Value {
            key: NAME.to_owned(),
            found: format!("{dims:?}"),
            reason: "it must be a matrix of at most 2^24 rows",
        }),
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The keys of one architecture: `llama.block_count` is `block_count` here.
struct Keys<'a> {
    file: &'a gguf::File,
    prefix: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn opt_u32(&self, name: &str) -> Result<Option<u32>, Error> {
        Ok(self.file.opt_u32(&self.key(name))?)
    }

    /// A count from 1 to `limit`.
    fn opt_size(&self, name: &str, limit: u32) -> Result<Option<usize>, Error> {
        let Some(size) = self.opt_u32(name)? else { return Ok(None) };
        self.require(name, size, size > 0 && size <= limit, "no model has that size, the file is corrupt")?;
        Ok(Some(size as usize))
    }

    fn size(&self, name: &str, limit: u32) -> Result<usize, Error> {
        self.opt_size(name, limit)?.ok_or_else(|| gguf::Error::MissingKey { key: self.key(name) }.into())
    }

    fn f32(&self, name: &str, default: Option<f32>) -> Result<f32, Error> {
        let value = match (self.file.opt_f32(&self.key(name))?, default) {
            (Some(value), _) | (None, Some(value)) => value,
            (None, None) => return Err(gguf::Error::MissingKey { key: self.key(name) }.into()),
        };
        self.require(name, value, value > 0.0 && value.is_normal(), "it must be a positive number")?;
        Ok(value)
    }

    fn rope_scale(&self) -> Result<f32, Error> {
        let kind = self.file.opt_str(&self.key("rope.scaling.type"))?.unwrap_or("none");
        match kind {
            "none" => Ok(1.0),
            "linear" => Ok(1.0 / self.f32("rope.scaling.factor", Some(1.0))?),
            other => Err(Error::Value {
                key: self.key("rope.scaling.type"),
                found: format!("{other:?}"),
                reason: "only none and linear are supported",
            }),
        }
    }

    fn require(&self, name: &str, found: impl ToString, holds: bool, reason: &'static str) -> Result<(), Error> {
        match holds {
            true => Ok(()),
            false => Err(Error::Value { key: self.key(name), found: found.to_string(), reason }),
        }
    }
}
