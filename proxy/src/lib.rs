//! The gateway: authenticates, reserves, dispatches, relays, settles.

pub mod quota;
