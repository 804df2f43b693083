//! The decode engine: GGUF models, paged KV, continuous batching. The core is synchronous, on its own thread.

pub mod backend;
pub mod philox;
pub mod sampler;
