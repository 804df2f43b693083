//! The load generator. Open loop: requests start on a schedule and latency counts from there (no coordinated
//! omission), targets taking turns request by request so that noise meets them all alike. Closed loop: each of so many
//! connections sends its next request when the last one ended, which finds the throughput at saturation.

mod connection;
mod decode;
mod probe;
mod sample;
mod schedule;

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::task::LocalSet;

pub use probe::{Answer, get, probe, put};
pub use sample::{Series, Totals};
pub use schedule::Arrivals;

use crate::proc::{self, Cost};
use connection::Connection;

/// What is asked, and of whom. Requests are whole HTTP/1.1 messages, sent in turn.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: SocketAddr,
    pub requests: Vec<Bytes>,
    /// The answer is an event stream.
    pub stream: bool,
}

impl Target {
    /// A target whose requests all POST `body` to `path`, once per key (once, without one, if there is none).
    pub fn post(address: SocketAddr, path: &str, keys: &[String], body: &str, stream: bool) -> Self {
        let request = |authorization: String| {
            Bytes::from(format!(
                "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n{authorization}\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            ))
        };
        let requests = if keys.is_empty() {
            vec![request(String::new())]
        } else {
            keys.iter().map(|key| request(format!("authorization: Bearer {key}\r\n"))).collect()
        };
        Self { address, requests, stream }
    }
}

/// How long: what starts in the warm-up is sent but not counted.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub warmup: Duration,
    pub measured: Duration,
    /// After this long an exchange has failed.
    pub timeout: Duration,
}

/// The totals per target, and what each watched process cost over the measured window.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub totals: Vec<Totals>,
    pub costs: Vec<Cost>,
    pub measured: Duration,
}

impl Outcome {
    pub fn per_second(&self, target: usize) -> f64 {
        self.totals[target].ok as f64 / self.measured.as_secs_f64()
    }
}

/// Most exchanges one open loop keeps in flight; what is due beyond that is counted as failed.
const MAX_IN_FLIGHT: usize = 4096;

/// Requests to each of `targets`, `rate` per second and target, on schedule. `watch` are processes.
pub fn open(targets: &[Target], rate: f64, arrivals: Arrivals, window: Window, watch: &[u32]) -> io::Result<Outcome> {
    let due = schedule::due(arrivals, rate * targets.len() as f64, window.warmup + window.measured);
    run(targets, window, watch, async |load| {
        let mut paced = schedule::pace(load.begin, due);
        let mut tasks = tokio::task::JoinSet::new();
        while let Some(arrival) = paced.recv().await {
            let target = arrival.index % load.targets.len();
            if load.in_flight.get() >= MAX_IN_FLIGHT {
                load.count(target, arrival.at, |totals| totals.failed("generator at its limit of requests in flight"));
                continue;
            }
            load.in_flight.set(load.in_flight.get() + 1);
            let load = load.clone();
            tasks.spawn_local(async move {
                load.exchange(target, arrival.index / load.targets.len(), arrival.at).await;
                load.in_flight.set(load.in_flight.get() - 1);
            });
            while tasks.try_join_next().is_some() {}
        }
        while tasks.join_next().await.is_some() {}
    })
}

/// `connections` workers on one target, each as fast as it is answered.
pub fn closed(target: &Target, connections: usize, window: Window, watch: &[u32]) -> io::Result<Outcome> {
    run(std::slice::from_ref(target), window, watch, async |load| {
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..connections {
            let load = load.clone();
            workers.spawn_local(async move {
                let mut turn = worker;
                while Instant::now() < load.end {
                    load.exchange(0, turn, Instant::now()).await;
                    turn += connections;
                }
            });
        }
        while workers.join_next().await.is_some() {}
    })
}

/// All requests of `target` at once, each on its own connection; measured until the last is answered.
pub fn burst(target: &Target, timeout: Duration) -> io::Result<Outcome> {
    let began = Cell::new(Instant::now());
    let window = Window { warmup: Duration::ZERO, measured: timeout, timeout };
    let mut outcome = run(std::slice::from_ref(target), window, &[], async |load| {
        tokio::time::sleep_until(load.begin.into()).await;
        began.set(Instant::now());
        let mut tasks = tokio::task::JoinSet::new();
        for turn in 0..load.targets[0].requests.len() {
            let load = load.clone();
            tasks.spawn_local(async move { load.exchange(0, turn, Instant::now()).await });
        }
        while tasks.join_next().await.is_some() {}
    })?;
    outcome.measured = began.get().elapsed();
    Ok(outcome)
}

struct Load {
    targets: Vec<Target>,
    begin: Instant,
    start: Instant,
    end: Instant,
    timeout: Duration,
    in_flight: Cell<usize>,
    /// Per target: connections that wait for their next request.
    idle: Vec<RefCell<Vec<Connection>>>,
    totals: Vec<RefCell<Totals>>,
}

fn run(targets: &[Target], window: Window, watch: &[u32], drive: impl AsyncFnOnce(&Rc<Load>)) -> io::Result<Outcome> {
    if targets.is_empty() || targets.iter().any(|target| target.requests.is_empty()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "nothing to send"));
    }
    let begin = Instant::now() + Duration::from_millis(10);
    let start = begin + window.warmup;
    let load = Rc::new(Load {
        begin,
        start,
        end: start + window.measured,
        timeout: window.timeout,
        in_flight: Cell::new(0),
        idle: targets.iter().map(|_| RefCell::default()).collect(),
        totals: targets.iter().map(|_| RefCell::default()).collect(),
        targets: targets.to_vec(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let costs = LocalSet::new().block_on(&runtime, async {
        let watched = tokio::task::spawn_local(watch_costs(watch.to_vec(), load.start, load.end));
        drive(&load).await;
        watched.await
    });
    Ok(Outcome {
        totals: load.totals.iter().map(RefCell::take).collect(),
        costs: costs.map_err(io::Error::other)??,
        measured: window.measured,
    })
}

/// What `pids` cost between two instants.
async fn watch_costs(pids: Vec<u32>, start: Instant, end: Instant) -> io::Result<Vec<Cost>> {
    if pids.is_empty() {
        return Ok(Vec::new());
    }
    let read = || pids.iter().map(|pid| proc::read(*pid)).collect::<io::Result<Vec<_>>>();
    tokio::time::sleep_until(start.into()).await;
    let before = read()?;
    tokio::time::sleep_until(end.into()).await;
    Ok(read()?.into_iter().zip(&before).map(|(after, before)| after.since(before)).collect())
}

impl Load {
    fn count(&self, target: usize, scheduled: Instant, add: impl FnOnce(&mut Totals)) {
        if scheduled >= self.start && scheduled < self.end {
            add(&mut self.totals[target].borrow_mut());
        }
    }

    /// One exchange that was due at `scheduled`, counted.
    async fn exchange(&self, target: usize, turn: usize, scheduled: Instant) {
        let sent = Instant::now();
        let result = tokio::time::timeout(self.timeout, self.attempt(target, turn)).await;
        let ended = Instant::now();
        self.count(target, scheduled, |totals| {
            totals.slip.add_ns(sample::nanos(scheduled, sent));
            match result {
                Ok(Ok((200, stream))) => totals.succeeded(scheduled, ended, stream.as_ref()),
                Ok(Ok((status, _))) => totals.failed(format!("status {status}")),
                Ok(Err(error)) => totals.failed(error.to_string()),
                Err(_) => totals.failed("timed out"),
            }
        });
    }

    async fn attempt(
        &self,
        target: usize,
        turn: usize,
    ) -> Result<(u16, Option<sample::StreamSample>), connection::Error> {
        let to = &self.targets[target];
        let pooled = self.idle[target].borrow_mut().pop();
        let mut connection = match pooled {
            Some(connection) => connection,
            None => Connection::open(to.address).await?,
        };
        let mut stream = to.stream.then(sample::StreamSample::default);
        let request = &to.requests[turn % to.requests.len()];
        let answer = connection
            .exchange(request, |bytes| {
                if let Some(stream) = &mut stream {
                    stream.feed(bytes, Instant::now());
                }
            })
            .await?;
        if answer.keep_alive {
            self.idle[target].borrow_mut().push(connection);
        }
        Ok((answer.status, stream))
    }
}
