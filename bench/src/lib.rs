//! What measures Penstock: a mock upstream that can be scripted to misbehave, a bare proxy as the floor, an open-
//! and closed-loop load generator, and the runs behind `penstock bench`. Nothing here prints: runs return reports.

pub mod clock;
pub mod count;
pub mod engine;
pub mod gateway;
pub mod load;
pub mod mock;
pub mod proc;
mod processes;
pub mod quota;
pub mod raw_proxy;
pub mod report;

pub use processes::Error;
pub use report::Report;
