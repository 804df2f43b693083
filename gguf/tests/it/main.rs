//! The reader against real files, cut files, corrupt fields and random damage.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod corrupt;
mod fixture;
mod hostile;
mod real_files;
mod round_trip;
