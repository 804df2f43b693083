//! Keeps an engine process running below `penstock up`: starts it, restarts it when it dies or hangs, stops it.
//! Each is watched by a thread of its own, because a child's parent-death signal is tied to the thread that made it.

mod health;

use std::{
    io,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{environment, listen::Address, process};
use health::Health;

/// The gateway comes first when both want the processor.
const NICENESS: i32 = 5;
const POLL: Duration = Duration::from_millis(50);
/// From SIGTERM to SIGKILL. The gateway has drained before, so an engine has nothing left to finish.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// An engine that lived this long was well: its next restart is quick again.
const WELL_AFTER: Duration = Duration::from_secs(60);
/// Mapping a large model from a cold disk takes minutes.
const START_TIMEOUT: Duration = Duration::from_secs(600);
const START_POLL: Duration = Duration::from_millis(20);
const HEALTH_PAUSE: Duration = Duration::from_secs(2);
/// An engine that is stuck for this long is killed. Long, because a busy machine is no reason to.
const HUNG_AFTER: Duration = Duration::from_secs(30);

/// How to run one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub name: String,
    pub model: PathBuf,
    pub listen: Address,
    pub threads: usize,
}

/// A running engine. Dropping it stops the process.
pub struct Supervised {
    engine: Engine,
    deaths: Arc<Mutex<Option<String>>>,
    hung: Arc<AtomicBool>,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Supervised {
    pub fn start(engine: Engine) -> anyhow::Result<Self> {
        let (stop, stopped) = sync_channel(1);
        let deaths = Arc::new(Mutex::new(None));
        let hung = Arc::new(AtomicBool::new(false));
        let watch = Watch { engine: engine.clone(), stopped, deaths: deaths.clone(), hung: hung.clone() };
        let thread = thread::Builder::new()
            .name(format!("watch-{}", engine.name))
            .spawn(move || watch.run())
            .context("cannot start a thread")?;
        Ok(Self { engine, deaths, hung, stop: Some(stop), thread: Some(thread) })
    }

    /// Waits until the engine answers. An engine that dies before it ever answered would die again.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        let name = &self.engine.name;
        while health::check(&self.engine.listen).await != Health::Well {
            if let Some(cause) = self.deaths.lock().unwrap_or_else(PoisonError::into_inner).as_deref() {
                anyhow::bail!("the engine for {name} did not start: {cause}; what it said stands above");
            }
            anyhow::ensure!(Instant::now() < deadline, "the engine for {name} is not ready after {START_TIMEOUT:?}");
            tokio::time::sleep(START_POLL).await;
        }
        Ok(())
    }

    /// From now until the runtime ends, an engine that hangs is killed, and so started again.
    pub fn guard(&self) {
        let (listen, hung) = (self.engine.listen.clone(), self.hung.clone());
        tokio::spawn(async move {
            let mut stuck_since = None;
            loop {
                tokio::time::sleep(HEALTH_PAUSE).await;
                if health::check(&listen).await != Health::Stuck {
                    stuck_since = None;
                } else if stuck_since.get_or_insert_with(Instant::now).elapsed() >= HUNG_AFTER {
                    hung.store(true, Ordering::Relaxed);
                    stuck_since = None;
                }
            }
        });
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // The other end is gone only if the thread is.
        drop(self.stop.take());
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!(engine = %self.engine.name, "the watching thread panicked");
        }
    }
}

/// The watching thread.
struct Watch {
    engine: Engine,
    /// Disconnected: stop.
    stopped: Receiver<()>,
    /// Why the engine ended last.
    deaths: Arc<Mutex<Option<String>>>,
    /// The process is alive and does nothing.
    hung: Arc<AtomicBool>,
}

impl Watch {
    fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let started = Instant::now();
            let cause = match self.life() {
                Ok(None) => return,
                Ok(Some(status)) => status.to_string(),
                Err(error) => format!("{error:#}"),
            };
            if started.elapsed() > WELL_AFTER {
                pause = FIRST_PAUSE;
            }
            tracing::warn!(engine = %self.engine.name, %cause, ?pause, "the engine ended; starting it again");
            *self.deaths.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
            if self.stopped_within(pause) {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One process from start to end; `None` when it was stopped by us.
    fn life(&self) -> anyhow::Result<Option<ExitStatus>> {
        let mut child = self.spawn()?;
        // What was said of the process before does not concern this one.
        self.hung.store(false, Ordering::Relaxed);
        loop {
            if let Some(status) = child.try_wait().context("cannot watch the engine")? {
                return Ok(Some(status));
            }
            if self.hung.load(Ordering::Relaxed) {
                kill(&mut child).context("cannot kill the engine, which hangs")?;
                anyhow::bail!("it hung for {HUNG_AFTER:?} and was killed");
            }
            if self.stopped_within(POLL) {
                end(&mut child).context("cannot stop the engine")?;
                return Ok(None);
            }
        }
    }

    fn stopped_within(&self, time: Duration) -> bool {
        !matches!(self.stopped.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let Engine { name, model, listen, threads } = &self.engine;
        let binary = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(binary);
        command.arg("engine").arg("--model").arg(model).args(["--name", name, "--threads", &threads.to_string()]);
        command.args(["--listen", &listen.to_string()]);
        // Standard output belongs to the parent's results.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if environment::log_filter().is_none() {
            command.env("RUST_LOG", "warn");
        }
        process::subordinate(&mut command, NICENESS);
        command.spawn().context("cannot start the engine")
    }
}

/// Asks first, then kills.
fn end(child: &mut Child) -> io::Result<()> {
    process::terminate(child)?;
    let deadline = Instant::now() + STOP_TIMEOUT;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            return kill(child);
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn kill(child: &mut Child) -> io::Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}
