//! The gateway: authenticates, reserves, dispatches, relays, settles.

pub mod config;
pub mod quota;
