//! `penstock bench quota`: reserve and settle pairs against the two stores, without HTTP. The ledger itself is not
//! known here: `cli` brings a [`Connect`] that makes [`Pairs`] of it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use tokio::task::JoinSet;

use crate::{
    load::Series,
    proc::{self, Cost},
    processes::{self, Error, Process},
    report::{Figure, Machine, Report, Section},
};

/// Which store a run is against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    Memory,
    Redis { url: String },
}

/// Opens a ledger with `orgs` orgs, each with limits at four levels that the run cannot reach.
pub trait Connect {
    fn connect<'a>(&'a self, store: &'a Store, orgs: usize) -> BoxFuture<'a, Result<Arc<dyn Pairs>, String>>;
}

/// A ledger to be measured.
pub trait Pairs: Send + Sync {
    /// Reserves for one of the subjects of `org` and hands the settlement over.
    fn pair(&self, org: usize) -> BoxFuture<'_, Result<(), String>>;

    /// Returns once every settlement handed over has reached the store.
    fn settled(&self) -> BoxFuture<'_, Result<(), String>>;
}

#[derive(Clone, Debug)]
pub struct Options {
    pub memory: bool,
    pub redis: bool,
    pub repetitions: usize,
    /// Of one case.
    pub measured: Duration,
    pub in_flight: Vec<usize>,
    /// The number of orgs in the case of many.
    pub orgs: usize,
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory: true,
            redis: true,
            repetitions: 3,
            measured: Duration::from_secs(2),
            in_flight: vec![1, 8, 32],
            orgs: 1000,
            threads: 2,
        }
    }
}

impl Options {
    /// About a second: that it works, not what it costs.
    pub fn quick() -> Self {
        Self { repetitions: 1, measured: Duration::from_millis(100), orgs: 10, ..Self::default() }
    }
}

/// One measured window.
struct Case {
    pairs: u64,
    elapsed: Duration,
    took: Vec<Series>,
    own: Cost,
    redis: Option<Cost>,
}

/// Blocks for as long as the options say, on a runtime of its own.
pub fn run(options: &Options, connect: &dyn Connect, progress: &mut dyn FnMut(&str)) -> Result<Report, Error> {
    let machine = Machine::here();
    let folder = tempfile::tempdir().map_err(Error::io("making a scratch folder"))?;
    let redis = if options.redis { Some(processes::redis(folder.path())?) } else { None };
    let mut stores = Vec::new();
    if options.memory {
        stores.push(("memory", Store::Memory, None));
    }
    if let Some((process, address)) = &redis {
        stores.push(("Redis", Store::Redis { url: format!("redis://{address}/0") }, Some(process)));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.threads.max(1))
        .enable_all()
        .build()
        .map_err(Error::io("starting a runtime"))?;
    let mut sections = Vec::new();
    for (name, store, process) in &stores {
        let mut section = Section::new(
            &format!("{name}: reserve + settle over four levels"),
            &["pairs/s", "reserve p50 ms", "p99 ms", "own CPU us/pair", "Redis CPU us/pair"],
        );
        for (orgs, shape) in [(1, "one org"), (options.orgs.max(1), "many orgs")] {
            for in_flight in &options.in_flight {
                let row = format!("{shape}, {in_flight} in flight");
                progress(&format!("{name}: {row}"));
                let case = |_| runtime.block_on(measure(options, connect, store, orgs, *in_flight, *process));
                let cases = (0..options.repetitions.max(1)).map(case).collect::<Result<Vec<_>, _>>()?;
                section.row(&row, cells(&cases));
            }
        }
        sections.push(section);
    }
    Ok(Report {
        title: "penstock bench quota".into(),
        machine,
        sections,
        notes: vec![format!(
            "median [min .. max] over {} repetitions of {:.1} s; pairs/s counts until every settlement has reached \
             the store; {} runtime threads; own CPU includes the measuring loop",
            options.repetitions.max(1),
            options.measured.as_secs_f64(),
            options.threads.max(1)
        )],
        targets: Vec::new(),
    })
}

async fn measure(
    options: &Options,
    connect: &dyn Connect,
    store: &Store,
    orgs: usize,
    in_flight: usize,
    redis: Option<&Process>,
) -> Result<Case, Error> {
    let wrong = |why| Error::wrong("the ledger", why);
    let pairs = connect.connect(store, orgs).await.map_err(wrong)?;
    // Fills caches: chains, scripts, connections.
    for org in 0..orgs {
        pairs.pair(org).await.map_err(wrong)?;
    }
    pairs.settled().await.map_err(wrong)?;

    let costs = || -> Result<(Cost, Option<Cost>), Error> {
        let own = proc::read(std::process::id()).map_err(Error::io("reading /proc"))?;
        let redis = redis.map(|process| proc::read(process.pid())).transpose().map_err(Error::io("reading /proc"))?;
        Ok((own, redis))
    };
    let before = costs()?;
    let began = Instant::now();
    let end = began + options.measured;
    let mut workers = JoinSet::new();
    for worker in 0..in_flight.max(1) {
        workers.spawn(worker_loop(pairs.clone(), worker, in_flight.max(1), orgs, end));
    }
    let mut took = Vec::new();
    while let Some(series) = workers.join_next().await {
        took.push(series.map_err(|error| wrong(error.to_string()))?.map_err(wrong)?);
    }
    pairs.settled().await.map_err(wrong)?;
    let elapsed = began.elapsed();
    let after = costs()?;
    Ok(Case {
        pairs: took.iter().map(Series::count).sum(),
        elapsed,
        took,
        own: after.0.since(&before.0),
        redis: after.1.zip(before.1).map(|(after, before)| after.since(&before)),
    })
}

/// One pair after the other, over the orgs in turn.
async fn worker_loop(
    pairs: Arc<dyn Pairs>,
    worker: usize,
    workers: usize,
    orgs: usize,
    end: Instant,
) -> Result<Series, String> {
    let mut took = Series::default();
    let mut turn = worker;
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(took);
        }
        pairs.pair(turn % orgs).await?;
        took.add_ns(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        turn += workers;
        // A store that never waits would keep the runtime from the settler.
        tokio::task::consume_budget().await;
    }
}

fn cells(cases: &[Case]) -> Vec<Option<Figure>> {
    let over = |value: &dyn Fn(&Case) -> Option<f64>| Figure::of(cases.iter().filter_map(value));
    let quantile = |case: &Case, at: f64| {
        let mut all = Series::default();
        case.took.iter().for_each(|series| all.merge(series));
        all.quantile_ms(at)
    };
    // Seconds per thousand are milliseconds per pair.
    let us = |cost: &Cost, pairs: u64| cost.per_thousand(pairs).map(|ms| ms * 1e3);
    vec![
        over(&|case| Some(case.pairs as f64 / case.elapsed.as_secs_f64())),
        over(&|case| quantile(case, 0.5)),
        over(&|case| quantile(case, 0.99)),
        over(&|case| us(&case.own, case.pairs)),
        over(&|case| case.redis.as_ref().and_then(|cost| us(cost, case.pairs))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Takes a millisecond for a pair, and refuses from some pair on.
    #[derive(Default)]
    struct Slow {
        pairs: AtomicU64,
        settled: AtomicU64,
        fails_after: Option<u64>,
    }

    impl Pairs for Slow {
        fn pair(&self, _org: usize) -> BoxFuture<'_, Result<(), String>> {
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let before = self.pairs.fetch_add(1, Relaxed);
                if self.fails_after.is_some_and(|most| before >= most) { Err("refused".into()) } else { Ok(()) }
            })
        }

        fn settled(&self) -> BoxFuture<'_, Result<(), String>> {
            self.settled.fetch_add(1, Relaxed);
            Box::pin(async { Ok(()) })
        }
    }

    struct Fixed(Arc<Slow>);

    impl Connect for Fixed {
        fn connect<'a>(&'a self, _: &'a Store, _: usize) -> BoxFuture<'a, Result<Arc<dyn Pairs>, String>> {
            let pairs: Arc<dyn Pairs> = self.0.clone();
            Box::pin(async move { Ok(pairs) })
        }
    }

    fn options() -> Options {
        Options { redis: false, in_flight: vec![1, 8], ..Options::quick() }
    }

    #[test]
    fn in_flight_pairs_run_side_by_side() {
        let slow = Arc::new(Slow::default());
        let report = run(&options(), &Fixed(slow.clone()), &mut |_| {}).unwrap();
        let rate = |row: usize| report.sections[0].rows[row].cells[0].unwrap().median;
        assert_eq!(report.sections[0].rows.len(), 4);
        assert!(rate(0) <= 1000.0 && rate(1) > 3.0 * rate(0), "{} {}", rate(0), rate(1));
        assert_eq!(slow.settled.load(Relaxed), 4 * 2, "after the warm-up and after the window of each case");
    }

    #[test]
    fn a_refusal_ends_the_run() {
        let slow = Arc::new(Slow { fails_after: Some(20), ..Slow::default() });
        let error = run(&options(), &Fixed(slow), &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }
}
