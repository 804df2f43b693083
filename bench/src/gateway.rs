//! `penstock bench gateway`: what the gateway adds to a call, with quotas on at four levels. A mock upstream, the bare
//! proxy, a Redis and the gateway run as processes of their own; direct, raw and gateway are measured in turn within
//! each repetition, request by request where latency is compared.

mod config;
mod phases;
mod tables;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use tempfile::TempDir;

use crate::{
    load::{self, Target},
    processes::{self, Error, Process},
    report::{Machine, Report},
};
use phases::Repetition;

#[derive(Clone, Debug)]
pub struct Options {
    /// The binary with the `serve`, `bench mock` and `bench raw-proxy` subcommands: usually the running one.
    pub penstock: PathBuf,
    pub store: Store,
    /// Without them the gateway only authenticates, counts and forwards.
    pub quotas: bool,
    pub repetitions: usize,
    pub warmup: Duration,
    /// Of each phase at saturation.
    pub saturated: Duration,
    /// Of each phase at a given rate.
    pub paced: Duration,
    /// Requests per second and target when latency is compared.
    pub rate: f64,
    /// Requests per second and target when CPU at part load is measured.
    pub steady_rate: f64,
    /// Streams per second and target.
    pub stream_rate: f64,
    pub connections: usize,
    pub stream_connections: usize,
    /// Hold the figures against the project's bounds.
    pub judge: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Memory,
    Redis,
}

impl Options {
    /// About six minutes.
    pub fn full(penstock: PathBuf) -> Self {
        Self {
            penstock,
            store: Store::Redis,
            quotas: true,
            repetitions: 3,
            warmup: Duration::from_secs(1),
            saturated: Duration::from_secs(5),
            paced: Duration::from_secs(10),
            rate: 50.0,
            steady_rate: 500.0,
            stream_rate: 20.0,
            connections: 32,
            stream_connections: 16,
            judge: true,
        }
    }

    /// A few seconds: that it works, not what it costs.
    pub fn quick(penstock: PathBuf) -> Self {
        Self {
            repetitions: 1,
            warmup: Duration::from_millis(200),
            saturated: Duration::from_millis(500),
            paced: Duration::from_millis(800),
            judge: false,
            ..Self::full(penstock)
        }
    }
}

/// The bounds this project holds itself to.
const CPU_SECONDS_PER_THOUSAND: f64 = 0.08;
const ADDED_P50_MS: f64 = 0.7;

/// The three ways to the upstream, in the order of the tables.
const DIRECT: usize = 0;
const RAW: usize = 1;
const PENSTOCK: usize = 2;
const NAMES: [&str; 3] = ["direct", "raw proxy", "penstock"];

/// The chat body of every request: 400 bytes of prompt, as in the peers' figures.
fn body(stream: bool) -> String {
    let prompt: String = "All work and no play makes Jack a dull boy. ".chars().cycle().take(400).collect();
    let mut body = serde_json::json!({
        "model": config::MODEL,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": prompt},
        ],
        "max_tokens": 64,
    });
    if stream {
        body["stream"] = true.into();
        body["stream_options"] = serde_json::json!({"include_usage": true});
    }
    body.to_string()
}

/// Everything that runs. Fields drop in order: the gateway before what it needs.
struct Bed {
    gateway: Process,
    raw: Process,
    mock: Process,
    redis: Option<Process>,
    addresses: [SocketAddr; 3],
    /// From the start of the gateway's process to its first good answer.
    start_time: Duration,
    _folder: TempDir,
}

const MOCK_THREADS: usize = 1;
const RAW_THREADS: usize = 2;

impl Bed {
    fn set_up(options: &Options) -> Result<Self, Error> {
        let folder = tempfile::tempdir().map_err(Error::io("making a scratch folder"))?;
        let path = folder.path();
        let args = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let addresses = [processes::free_address()?, processes::free_address()?, processes::free_address()?];
        let [mock_address, raw_address, gateway_address] = addresses.map(|address| address.to_string());

        let threads = MOCK_THREADS.to_string();
        let words = args(&["bench", "mock", "--listen", &mock_address, "--threads", &threads, "--records", "0"]);
        let mut mock = Process::start("mock", &options.penstock, &words, path)?;
        mock.wait_listening(addresses[DIRECT])?;

        let threads = RAW_THREADS.to_string();
        let words =
            args(&["bench", "raw-proxy", "--listen", &raw_address, "--upstream", &mock_address, "--threads", &threads]);
        let mut raw = Process::start("raw-proxy", &options.penstock, &words, path)?;
        raw.wait_listening(addresses[RAW])?;

        let redis = match options.store {
            Store::Memory => None,
            Store::Redis => Some(processes::redis(path)?),
        };
        let store = redis.as_ref().map_or("memory".to_owned(), |(_, address)| format!("redis://{address}/0"));
        let file = path.join("penstock.yaml");
        let admin = processes::free_address()?.to_string();
        let yaml = config::yaml(&gateway_address, &admin, &mock_address, &store, options.quotas);
        std::fs::write(&file, yaml).map_err(Error::io("writing the gateway's config"))?;
        let words = args(&["serve", "--config", &file.to_string_lossy()]);
        let mut gateway = Process::start("penstock-serve", &options.penstock, &words, path)?;
        let probe = target(addresses[PENSTOCK], PENSTOCK, false);
        let start_time =
            gateway.wait(Duration::from_secs(20), || load::probe(&probe).and_then(|answer| answer.expect_ok()))?;

        let redis = redis.map(|(process, _)| process);
        let bed = Self { gateway, raw, mock, redis, addresses, start_time, _folder: folder };
        bed.check(options)?;
        Ok(bed)
    }

    /// That figures are of what they claim: all three answer alike, and the gateway's limits are in force.
    fn check(&self, options: &Options) -> Result<(), Error> {
        for (index, name) in NAMES.iter().enumerate() {
            for stream in [false, true] {
                let answer = load::probe(&self.target(index, stream)).map_err(|why| Error::wrong(name, why))?;
                answer.expect_ok().map_err(|why| Error::wrong(name, why))?;
                let limited = answer.head.to_ascii_lowercase().contains("x-ratelimit-remaining-tokens:");
                if index == PENSTOCK && options.quotas && !limited {
                    return Err(Error::wrong(name, "no x-ratelimit-remaining-tokens: its quotas are not in force"));
                }
            }
        }
        Ok(())
    }

    fn target(&self, index: usize, stream: bool) -> Target {
        target(self.addresses[index], index, stream)
    }

    fn targets(&self, stream: bool) -> [Target; 3] {
        [DIRECT, RAW, PENSTOCK].map(|index| self.target(index, stream))
    }

    /// The process between client and upstream, where there is one.
    fn pid(&self, index: usize) -> u32 {
        match index {
            DIRECT => self.mock.pid(),
            RAW => self.raw.pid(),
            _ => self.gateway.pid(),
        }
    }
}

fn target(address: SocketAddr, index: usize, stream: bool) -> Target {
    let keys = if index == PENSTOCK { config::keys() } else { Vec::new() };
    Target::post(address, "/v1/chat/completions", &keys, &body(stream), stream)
}

/// Blocks for as long as the options say. `progress` is told what is being done.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report, Error> {
    let machine = Machine::here();
    progress("starting mock upstream, raw proxy, redis-server and penstock serve");
    let bed = Bed::set_up(options)?;
    let idle = phases::memory(&bed)?;
    let mut repetitions = Vec::new();
    for number in 0..options.repetitions.max(1) {
        let label = format!("repetition {}/{}", number + 1, options.repetitions.max(1));
        repetitions
            .push(Repetition::measure(&bed, options, number, &mut |phase| progress(&format!("{label}: {phase}")))?);
    }
    let after = phases::memory(&bed)?;
    Ok(tables::report(options, machine, &repetitions, [idle, after], bed.start_time))
}
