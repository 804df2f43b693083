//! The crate's surface, driven over real sockets.

mod mock;
mod raw;
