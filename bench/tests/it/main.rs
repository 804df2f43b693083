//! The crate's surface, driven over real sockets.

mod load;
mod mock;
mod raw;
mod raw_proxy;
