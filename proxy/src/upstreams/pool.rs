//! The open connections to one upstream that no call uses. The warmest goes out first; those that stayed long are
//! closed, before the server does it under a request.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use super::line::Line;

/// Servers close idle connections after 5 s (uvicorn) to 75 s (nginx): closing first avoids the race.
const LONGEST_IDLE: Duration = Duration::from_secs(30);
const MOST_IDLE: usize = 1024;

#[derive(Default)]
pub struct Pool(Mutex<State>);

#[derive(Default)]
struct State {
    /// Longest idle first.
    idle: Vec<Idle>,
    /// A task looks after them.
    swept: bool,
}

struct Idle {
    line: Line,
    since: Instant,
}

impl Idle {
    fn is_good(&mut self) -> bool {
        self.since.elapsed() < LONGEST_IDLE && self.line.is_free()
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self) -> Option<Line> {
        loop {
            let mut newest = self.state().idle.pop()?;
            if newest.is_good() {
                return Some(newest.line);
            }
        }
    }

    /// Closes it instead if there are many already.
    pub(super) fn put(self: &Arc<Self>, line: Line) {
        let mut state = self.state();
        if state.idle.len() < MOST_IDLE {
            state.idle.push(Idle { line, since: Instant::now() });
        }
        if !std::mem::replace(&mut state.swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }
}

/// Closes what no call comes back for. Ends when nothing is idle or the pool is gone.
async fn sweep(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(LONGEST_IDLE / 2).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut state = pool.state();
        state.idle.retain_mut(Idle::is_good);
        if state.idle.is_empty() {
            state.swept = false;
            return;
        }
    }
}
