//! The async runtime of a process: one worker per core.

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

pub fn start() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().context("cannot start the async runtime")
}

/// Runs `main` to its end. What still runs on the runtime then (a model being loaded) is not waited for.
pub fn run<T>(main: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = start()?;
    let result = runtime.block_on(main);
    runtime.shutdown_background();
    result
}
