//! A fast mock of an OpenAI-compatible upstream that can be scripted to misbehave, on a thread of its own.
//! Scripts are [`Settings`]; what it saw is [`Stats`] and [`Record`]s. It binds where it is told and trusts everyone.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! use bench::mock::{Ending, Fault, Mock, Settings};
//! let mock = Mock::start(Default::default())?;
//! mock.push(Settings { status: 429, retry_after: Some("1".into()), ..Settings::default() }); // one request only
//! mock.set(Settings { fault: Some(Fault::Die { after_chunks: 3, ending: Ending::Reset }), ..Settings::default() });
//! // ... point a gateway at mock.url(), then:
//! assert_eq!(mock.requests().len(), 2);
//! # Ok(()) }
//! ```
//!
//! The same over HTTP: `PUT /settings` (a patch), `DELETE /settings`, `POST /next` (a patch for one request, first in
//! first out), `GET /stats`, `GET /requests`, `DELETE /requests`; per request the header `x-mock` or the body field
//! `x_mock`, each a JSON patch. Endpoints: chat/completions, completions, embeddings, models, under any prefix.

mod answers;
mod generated;
mod line;
mod record;
mod routes;
mod settings;
mod stream;

use std::{
    collections::VecDeque,
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError, RwLock},
    thread,
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::{net::TcpStream, sync::oneshot};

pub use record::{Ended, Record, Stats};
pub use settings::{Ending, Fault, Settings, Step, UsageMode};

use line::{BreakableStream, Line};
use record::Log;
use routes::Routes;

/// How to start a mock.
#[derive(Clone, Debug)]
pub struct Options {
    /// Port 0 takes any free one.
    pub listen: SocketAddr,
    /// 0 and 1 are a runtime on one thread.
    pub threads: usize,
    /// Requests kept for `requests()`; 0 for speed.
    pub records: usize,
    /// SO_SNDBUF of accepted connections: small makes `bytes_written` follow what the peer really read.
    pub send_buffer: Option<usize>,
    pub settings: Settings,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            threads: 1,
            records: 10_000,
            send_buffer: None,
            settings: Settings::default(),
        }
    }
}

struct State {
    initial: Settings,
    standing: RwLock<Arc<Settings>>,
    /// For one request each.
    next: Mutex<VecDeque<Arc<Settings>>>,
    log: Arc<Log>,
}

/// Most scripted requests that may wait.
const MAX_NEXT: usize = 10_000;

impl State {
    fn new(options: &Options) -> Arc<Self> {
        Arc::new(Self {
            initial: options.settings.clone(),
            standing: RwLock::new(Arc::new(options.settings.clone())),
            next: Mutex::default(),
            log: Arc::new(Log::new(options.records)),
        })
    }

    fn standing(&self) -> Arc<Settings> {
        self.standing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take_settings(&self) -> Arc<Settings> {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        next.unwrap_or_else(|| self.standing())
    }

    fn set(&self, settings: Settings) {
        *self.standing.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    fn patch(&self, patch: &Value) -> Result<(), String> {
        self.set(self.standing().patched(patch)?);
        Ok(())
    }

    fn push(&self, patch: &Value) -> Result<(), String> {
        self.queue(self.standing().patched(patch)?)
    }

    fn queue(&self, settings: Settings) -> Result<(), String> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.len() == MAX_NEXT {
            return Err(format!("{MAX_NEXT} requests are scripted already"));
        }
        next.push_back(Arc::new(settings));
        Ok(())
    }
}

/// A running mock; it stops, and cuts its connections, when this is dropped.
pub struct Mock {
    address: SocketAddr,
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<io::Result<()>>>,
}

impl Mock {
    pub fn start(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let state = State::new(&options);
        let (stop, stopped) = oneshot::channel();
        let served = state.clone();
        let thread = thread::Builder::new()
            .name("mock-upstream".into())
            .spawn(move || run_until(listener, options, served, stopped))?;
        Ok(Self { address, state, stop: Some(stop), thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL to configure as an upstream.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// For every request from now on.
    pub fn set(&self, settings: Settings) {
        self.state.set(settings);
    }

    /// For the next request that has none yet; may be called ahead for several.
    ///
    /// # Panics
    /// When ten thousand are waiting: a script that long is a mistake.
    pub fn push(&self, settings: Settings) {
        assert!(self.state.queue(settings).is_ok(), "too many scripted requests");
    }

    pub fn stats(&self) -> Stats {
        self.state.log.stats()
    }

    /// The requests seen, oldest first, those still running included.
    pub fn requests(&self) -> Vec<Record> {
        self.state.log.records()
    }

    pub fn forget(&self) {
        self.state.log.forget();
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its error was for `run`'s caller; here nobody is left to care.
            drop(thread.join());
        }
    }
}

/// Serves on `listener` until the process ends: the body of a mock that is its own process.
pub fn run(listener: TcpListener, options: Options) -> io::Result<()> {
    let state = State::new(&options);
    let (_never, stopped) = oneshot::channel();
    run_until(listener, options, state, stopped)
}

fn run_until(
    listener: TcpListener,
    options: Options,
    state: Arc<State>,
    stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let mut builder = match options.threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if options.threads > 1 {
        builder.worker_threads(options.threads);
    }
    let runtime = builder.enable_all().build()?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = accept(listener, options.send_buffer, state) => result,
            // Told to, or its owner is gone.
            _ = stopped => Ok(()),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn accept(listener: TcpListener, send_buffer: Option<usize>, state: Arc<State>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // A client that left before it was accepted, or no descriptor free: neither ends a mock.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
        };
        if let Some(bytes) = send_buffer {
            socket2::SockRef::from(&stream).set_send_buffer_size(bytes)?;
        }
        tokio::spawn(connection(stream, state.clone()));
    }
}

async fn connection(stream: TcpStream, state: Arc<State>) {
    let number = state.log.connected();
    let line = Line::new();
    let routes = Routes { state: state.clone(), line: line.clone(), connection: number };
    if stream.set_nodelay(true).is_ok() {
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(
                TokioIo::new(BreakableStream::new(stream, line)),
                service_fn(move |request| routes.clone().serve(request)),
            )
            .await;
        // A client that went away, or a fault that was ordered: both are on record.
        drop(served);
    }
    state.log.disconnected();
}
