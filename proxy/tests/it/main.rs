//! The surface of the gateway crate, tested from outside. One binary: every further one would link everything again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod faults;
mod gateway;
mod quota;
