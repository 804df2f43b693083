//! The engine's surface, tested from outside. One file per subject.

mod driver;
mod golden;
mod invariance;
