//! One repetition: each phase over all three targets, and the raw numbers it left.

use std::{collections::BTreeMap, time::Duration};

use super::{Bed, DIRECT, NAMES, Options, PENSTOCK, RAW};
use crate::{
    load::{self, Arrivals, Outcome, Totals, Window},
    proc::{self, Cost},
    processes::Error,
};

/// A closed-loop phase of one target.
pub struct Saturated {
    pub per_second: f64,
    pub cpu_per_thousand: Option<f64>,
    pub redis_us_per_request: Option<f64>,
    pub failures: BTreeMap<String, u64>,
}

/// An open-loop phase of all targets.
pub struct Paced {
    /// By target.
    pub totals: Vec<Totals>,
    pub cpu_per_thousand: [Option<f64>; 3],
}

pub struct Repetition {
    pub saturated: Vec<Saturated>,
    pub streams_saturated: Vec<Saturated>,
    pub latency: Paced,
    pub steady: Paced,
    pub streams: Paced,
}

/// How a stream of the paced phase looks: the first chunk after 20 ms, 31 more each 5 ms.
const STREAM: &str = r#"{"stamp":true,"ttft_ms":20,"itl_ms":5}"#;
const PLAIN: &str = r#"{"stamp":true,"ttft_ms":0,"itl_ms":0}"#;

impl Repetition {
    /// The order of the targets turns with `number`, so that none always comes after the busiest.
    pub fn measure(bed: &Bed, options: &Options, number: usize, progress: &mut dyn FnMut(&str)) -> Result<Self, Error> {
        let window = |measured| Window { warmup: options.warmup, measured, timeout: Duration::from_secs(30) };
        set_mock(bed, PLAIN)?;
        let mut saturate = |stream: bool, connections: usize| -> Result<Vec<Saturated>, Error> {
            let what = if stream { "streams" } else { "requests" };
            let mut results = [const { None }; 3];
            for turn in 0..3 {
                let index = (turn + number) % 3;
                progress(&format!("{what} at saturation, {}", NAMES[index]));
                let watch = watched(bed, &[index]);
                let target = bed.target(index, stream);
                let outcome = load::closed(&target, connections, window(options.saturated), &watch)
                    .map_err(Error::io("closed loop"))?;
                results[index] = Some(saturated(&outcome, index));
            }
            Ok(results.into_iter().flatten().collect())
        };
        let saturated = saturate(false, options.connections)?;
        let streams_saturated = saturate(true, options.stream_connections)?;
        let watch = watched(bed, &[DIRECT, RAW, PENSTOCK]);
        let mut open = |what: &str, rate: f64, arrivals: Arrivals, measured: Duration, stream: bool| {
            progress(&format!("{what}, {rate}/s each"));
            load::open(&bed.targets(stream), rate, arrivals, window(measured), &watch)
                .map(|outcome| paced(&outcome))
                .map_err(Error::io("open loop"))
        };
        let latency = open("latency", options.rate, Arrivals::Fixed, options.paced, false)?;
        let seed = number as u64 + 1;
        let steady = open("part load", options.steady_rate, Arrivals::Poisson { seed }, options.saturated, false)?;
        set_mock(bed, STREAM)?;
        let streams = open("streams", options.stream_rate, Arrivals::Fixed, options.paced, true)?;
        Ok(Self { saturated, streams_saturated, latency, steady, streams })
    }

    /// What went wrong with one target, in all phases.
    pub fn failures(&self, index: usize) -> BTreeMap<&str, u64> {
        let closed = [&self.saturated[index].failures, &self.streams_saturated[index].failures];
        let open = [&self.latency, &self.steady, &self.streams].map(|paced| &paced.totals[index].failures);
        let mut all = BTreeMap::new();
        for (why, count) in closed.into_iter().chain(open).flatten() {
            *all.entry(why.as_str()).or_default() += count;
        }
        all
    }

    pub fn errors(&self, index: usize) -> u64 {
        self.failures(index).values().sum()
    }
}

/// The processes of `targets`, and Redis last if there is one.
fn watched(bed: &Bed, targets: &[usize]) -> Vec<u32> {
    targets.iter().map(|index| bed.pid(*index)).chain(bed.redis.as_ref().map(crate::processes::Process::pid)).collect()
}

fn saturated(outcome: &Outcome, index: usize) -> Saturated {
    let ok = outcome.totals[0].ok;
    // Seconds per thousand are milliseconds per request.
    let redis = outcome.costs.get(1).filter(|_| index == PENSTOCK).and_then(|cost| cost.per_thousand(ok));
    Saturated {
        per_second: outcome.per_second(0),
        cpu_per_thousand: outcome.costs[0].per_thousand(ok),
        redis_us_per_request: redis.map(|ms| ms * 1e3),
        failures: outcome.totals[0].failures.clone(),
    }
}

fn paced(outcome: &Outcome) -> Paced {
    let ok = |index: usize| outcome.totals[index].ok;
    // The mock serves all three.
    let all = ok(DIRECT) + ok(RAW) + ok(PENSTOCK);
    let requests = [all, ok(RAW), ok(PENSTOCK)];
    Paced {
        totals: outcome.totals.clone(),
        cpu_per_thousand: [DIRECT, RAW, PENSTOCK].map(|index| outcome.costs[index].per_thousand(requests[index])),
    }
}

fn set_mock(bed: &Bed, settings: &str) -> Result<(), Error> {
    let answer = load::put(bed.addresses[DIRECT], "/settings", settings).map_err(|why| Error::wrong("mock", why))?;
    answer.expect_ok().map_err(|why| Error::wrong("mock", why))
}

/// By target.
pub fn memory(bed: &Bed) -> Result<[Cost; 3], Error> {
    let read = |index: usize| proc::read(bed.pid(index)).map_err(Error::io("reading /proc"));
    Ok([read(DIRECT)?, read(RAW)?, read(PENSTOCK)?])
}
