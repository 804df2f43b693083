//! The crate's surface, driven over real sockets.
#![expect(clippy::unwrap_used, reason = "a test whose world cannot be set up fails there")]

mod engine;
mod load;
mod mock;
mod raw;
mod raw_proxy;
