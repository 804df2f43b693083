//! The async runtime of a process.

use std::{num::NonZero, thread};

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

/// Half of the cores. A call is a handful of short steps: fewer workers that stay busy beat more that wake each other,
/// and the other half is for the store, the engine and long prompts, which are counted on threads of their own.
fn default_workers() -> NonZero<usize> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    NonZero::new(cores / 2).unwrap_or(NonZero::<usize>::MIN)
}

pub fn start(workers: Option<NonZero<usize>>) -> anyhow::Result<Runtime> {
    let workers = workers.unwrap_or_else(default_workers);
    Builder::new_multi_thread()
        .worker_threads(workers.get())
        .enable_all()
        .build()
        .context("cannot start the async runtime")
}

/// Runs `main` to its end. What still runs on the runtime then (a model being loaded) is not waited for.
pub fn run<T>(workers: Option<NonZero<usize>>, main: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = start(workers)?;
    let result = runtime.block_on(main);
    runtime.shutdown_background();
    result
}
