//! The step loop, on its own thread. One step: admit, schedule, forward (the backend samples too), commit and publish.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use wire::load::KvBlocks;

use crate::backend::{Backend, Error, StepOut, StepPlan};
use crate::kv::KvCache;
use crate::metrics::Metrics;
use crate::scheduler::{Occupancy, Scheduler};
use crate::sequence::Sequence;

pub(crate) struct Engine {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) scheduler: Scheduler,
    pub(crate) kv: KvCache,
    pub(crate) inbox: Receiver<Vec<Sequence>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) board: Arc<Board>,
}

/// What the engine's thread shows to others after each step.
#[derive(Debug, Default)]
pub(crate) struct Board {
    posted: Mutex<Posted>,
    stopped: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posted {
    pub(crate) occupancy: Occupancy,
    pub(crate) kv: KvBlocks,
    /// When the step that runs now began.
    pub(crate) step_began: Option<Instant>,
}

impl Engine {
    /// Until every handle is gone and all work is done, or the backend fails.
    pub(crate) fn run(mut self) {
        while let Ok(arrivals) = self.arrivals() {
            if let Err(error) = self.step(arrivals) {
                tracing::error!(%error, "the engine stops");
                self.scheduler.fail_all(&error.to_string());
                break;
            }
        }
    }

    fn step(&mut self, arrivals: Vec<Sequence>) -> Result<(), Error> {
        self.board.begin(Instant::now());
        self.scheduler.admit(arrivals, &mut self.kv);
        if let Some(plan) = self.scheduler.schedule(&mut self.kv, Instant::now()) {
            let out = self.forward(plan)?;
            self.scheduler.commit(out, &mut self.kv, Instant::now());
        }
        self.post();
        Ok(())
    }

    /// Waits only when there is nothing else to do.
    fn arrivals(&mut self) -> Result<Vec<Sequence>, RecvError> {
        let mut arrivals = if self.scheduler.is_idle() { self.inbox.recv()? } else { Vec::new() };
        arrivals.extend(self.inbox.try_iter().flatten());
        Ok(arrivals)
    }

    fn forward(&mut self, plan: StepPlan) -> Result<StepOut, Error> {
        let (rows, wanted) = (plan.rows.len(), plan.samples.len());
        let ticket = self.backend.submit(plan)?;
        let out = self.backend.wait(ticket)?;
        if out.samples.len() != wanted {
            return Err(Error::Device(format!("{} samples came back for {wanted} asked", out.samples.len())));
        }
        self.metrics.stepped(rows);
        Ok(out)
    }

    fn post(&mut self) {
        let posted = Posted { occupancy: self.scheduler.occupancy(), kv: self.kv.usage(), step_began: None };
        self.board.post(posted);
        self.scheduler.take_happenings().iter().for_each(|happening| self.metrics.happened(happening));
    }
}

/// However the thread ends, a panic of the backend included.
impl Drop for Engine {
    fn drop(&mut self) {
        self.board.stopped.store(true, Ordering::Relaxed);
    }
}

impl Board {
    fn begin(&self, now: Instant) {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner).step_began = Some(now);
    }

    fn post(&self, posted: Posted) {
        *self.posted.lock().unwrap_or_else(PoisonError::into_inner) = posted;
    }

    pub(crate) fn read(&self) -> Posted {
        *self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
