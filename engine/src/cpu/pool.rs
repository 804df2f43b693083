//! The engine's own threads. A job is a count of tasks that workers take one by one; idle workers spin for a moment,
//! then park. The caller works too and never waits for a worker that has not joined, so a busy machine slows a job
//! down but cannot stop it. What a task does is not known here.
#![expect(unsafe_code, reason = "tasks borrow the caller's stack; `run` outlives every worker's use of them")]

use std::cell::UnsafeCell;
use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle worker looks for the next job before it parks: longer than the gap between two operations of a
/// step, far shorter than a scheduler's time slice.
const SPIN: Duration = Duration::from_micros(20);

type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Bit 31: the job takes workers; bits 0..31: workers inside; bits 32..64: the job's number.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Job>,
    next: AtomicUsize,
    asleep: Vec<AtomicBool>,
    panicked: AtomicBool,
    stop: AtomicBool,
}

#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    tasks: usize,
}

// SAFETY: `job` is written by the one caller of `run` while no worker is inside, and read by workers that joined.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<(JoinHandle<()>, Thread)>,
    threads: usize,
}

/// A task panicked in a worker; the job's output is not complete.
#[derive(Debug, thiserror::Error)]
#[error("a compute thread panicked")]
pub struct Panicked;

impl Pool {
    /// `threads` counts the caller: 1 starts no thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(Job { task: &|_, _| (), tasks: 0 }),
            next: AtomicUsize::new(0),
            asleep: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut pool = Self { shared: shared.clone(), workers: Vec::new(), threads };
        for index in 1..threads {
            let shared = shared.clone();
            let spawned = thread::Builder::new().name(format!("compute-{index}")).spawn(move || shared.work(index))?;
            let handle = spawned.thread().clone();
            pool.workers.push((spawned, handle));
        }
        Ok(pool)
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `task(i, thread)` for every i below `tasks`, each once, on any thread, in any order.
    pub fn run(&mut self, tasks: usize, task: &Task<'_>) -> Result<(), Panicked> {
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|index| task(index, 0));
            return Ok(());
        }
        self.publish(tasks, task);
        // Closes the job on unwinding too: workers must be out before the borrow of `task` ends.
        let closer = Closer(&self.shared);
        self.shared.take_tasks(task, tasks, 0);
        drop(closer);
        match self.shared.panicked.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Panicked),
        }
    }

    fn publish(&self, tasks: usize, task: &Task<'_>) {
        let task: *const Task<'_> = task;
        // SAFETY: the state is closed with nobody inside (the last `run` waited for that), so no one reads the job;
        // the lifetime is erased only until `Closer` has waited for every worker that joined this job.
        unsafe {
            *self.shared.job.get() =
                Job { task: std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task), tasks };
        }
        self.shared.next.store(0, Ordering::Relaxed);
        let number = (self.shared.state.load(Ordering::Relaxed) >> 32).wrapping_add(1) << 32;
        self.shared.state.store(number | OPEN, Ordering::SeqCst);
        for (asleep, (_, worker)) in self.shared.asleep.iter().zip(&self.workers) {
            if asleep.load(Ordering::SeqCst) {
                worker.unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for (handle, worker) in self.workers.drain(..) {
            worker.unpark();
            // A worker that panicked has been reported by `run` already.
            drop(handle.join());
        }
    }
}

/// Lets no further worker in, then waits for those inside.
struct Closer<'a>(&'a Shared);

impl Drop for Closer<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!OPEN, Ordering::SeqCst);
        let mut rounds = 0_u32;
        while self.0.state.load(Ordering::Acquire) & INSIDE != 0 {
            // A worker inside may have lost its CPU: then spinning here only keeps it away longer.
            rounds += 1;
            if rounds.is_multiple_of(1024) { thread::yield_now() } else { hint::spin_loop() }
        }
    }
}

impl Shared {
    fn take_tasks(&self, task: &Task<'_>, tasks: usize, thread: usize) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= tasks {
                return;
            }
            task(index, thread);
        }
    }

    fn work(&self, thread: usize) {
        let mut last = 0;
        while let Some(number) = self.next_job(last, thread) {
            last = number;
            let leave = Leave(self);
            // SAFETY: this worker is counted as inside since `next_job`, so the caller of `run` keeps the task alive
            // and does not write the job before `leave` is dropped.
            let Job { task, tasks } = unsafe { *self.job.get() };
            // SAFETY: as above.
            self.take_tasks(unsafe { &*task }, tasks, thread);
            drop(leave);
        }
    }

    /// Joins the first open job that is not `last`; `None` when the pool stops.
    fn next_job(&self, last: u64, thread: usize) -> Option<u64> {
        let mut since = Instant::now();
        loop {
            for _ in 0..64 {
                if let Some(number) = self.join(last) {
                    return Some(number);
                }
                hint::spin_loop();
            }
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            if since.elapsed() > SPIN {
                self.park(last, thread);
                since = Instant::now();
            }
        }
    }

    fn join(&self, last: u64) -> Option<u64> {
        let state = self.state.load(Ordering::Acquire);
        let number = state >> 32;
        let open = state & OPEN != 0 && number != last;
        let joined = open && self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        joined.then_some(number)
    }

    fn park(&self, last: u64, thread: usize) {
        let asleep = &self.asleep[thread - 1];
        asleep.store(true, Ordering::SeqCst);
        // Looked at once more after the flag is up: a job published before it was seen by nobody is seen here.
        let state = self.state.load(Ordering::SeqCst);
        let pending = state & OPEN != 0 && state >> 32 != last;
        if !pending && !self.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        asleep.store(false, Ordering::SeqCst);
    }
}

/// Counts a worker out, on unwinding too.
struct Leave<'a>(&'a Shared);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.panicked.store(true, Ordering::Release);
        }
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
