//! The decode engine: GGUF models, paged KV, continuous batching. The core is synchronous, on its own thread.

pub mod backend;
pub mod cpu;
#[cfg(test)]
mod fake;
pub mod forward;
mod handle;
mod happening;
pub mod http;
pub mod kv;
mod load;
pub mod measure;
pub mod metrics;
pub mod model;
pub mod philox;
mod queue;
mod request;
pub mod sampler;
mod scheduler;
mod sequence;
mod step;
mod stream;
mod text;
mod vocabulary;

pub use handle::{Config, Handle, Load, Vocabulary, spawn};
pub use load::{LoadError, LoadOptions, load};
pub use request::{FinishReason, Refused, Request};
pub use stream::{Event, Score, TokenStream};
pub use text::TokenText;
