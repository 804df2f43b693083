//! OpenAI-shaped bodies, as far as gateway and engine need them typed. Unknown fields survive where a body is
//! forwarded (the gateway forwards bytes); the engine refuses or ignores them by name in its own code.

pub mod error;
pub mod models;
pub mod usage;

pub use error::{Error, ErrorBody};
pub use models::{Model, ModelList};
pub use usage::WireUsage;
