//! The crate's surface, driven over real sockets.

mod engine;
mod load;
mod mock;
mod raw;
mod raw_proxy;
