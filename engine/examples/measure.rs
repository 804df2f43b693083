//! Prints the backend's speed, for people to standard error and as JSON to standard output:
//! `cargo run --release -p engine --example measure -- MODEL.gguf [THREADS]`.

use std::io::Write;
use std::time::Instant;

use engine::backend::Backend;
use engine::cpu::{CpuBackend, CpuOptions};
use engine::measure::{Workload, measure};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("the model file is missing")?;
    let threads = args.next().map_or(Ok(2), |threads| threads.parse())?;
    let start = Instant::now();
    let file = gguf::File::open(path)?;
    let mut backend = CpuBackend::load(&file, CpuOptions { threads, exact: false, kv_blocks: 1024 })?;
    let groups = backend.spec().kv.groups.len();
    eprintln!("{}, {groups} KV groups, loaded in {:?}", backend.instruction_set(), start.elapsed());
    let report = measure(&mut backend, &Workload::default())?;
    eprintln!("{report}");
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}
