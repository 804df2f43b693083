//! Types that cross a process boundary: HTTP bodies, load reports, the access log. No I/O, no policy.

pub mod access;
pub mod capacity;
pub mod load;
pub mod openai;
pub mod slo;
pub mod sse;
pub mod tokens;

pub use tokens::{Metered, Usage};
