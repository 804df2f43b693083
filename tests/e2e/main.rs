//! Promises to users, kept against real processes. One file for each promise; the harness is the `tests` library.

mod alerts;
mod bad_input;
mod clients;
mod clocks;
mod clustered;
mod conformance;
mod exact;
mod failover;
mod fates;
mod killed_gateway;
mod killed_queue;
mod operator;
mod relay;
mod soak;
mod up;
mod worked_example;
