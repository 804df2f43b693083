//! A whole gateway in this process, between a scripted upstream and a client that both see raw bytes.

pub mod rig;
pub mod upstream;

mod answers;
mod calibrated;
mod compatibility;
mod demand;
mod leases;
mod ops;
mod overrun;
mod queue;
mod reload;
mod settlement;
mod shadow;
mod streams;
mod timing;
mod unseen;
