//! The engine's surface, tested from outside. One file per subject.

mod driver;
mod golden;
mod golden_http;
mod http;
mod invariance;
mod serving;
