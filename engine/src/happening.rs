//! What happens to sequences, with its times: facts for the metrics. Nothing here decides anything.

use std::time::{Duration, Instant};

use crate::request::FinishReason;

/// Facts for the metrics; times are those of the sequence they happened to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Happening {
    /// `queued`: how long it waited to run for the first time.
    Started {
        queued: Option<Duration>,
        prompt: u32,
        hit: u32,
    },
    Preempted,
    FirstToken {
        after: Duration,
    },
    NextToken {
        gap: Duration,
    },
    Finished(Finished),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finished {
    pub(crate) reason: FinishReason,
    pub(crate) prompt: u32,
    pub(crate) completion: u32,
    pub(crate) e2e: Duration,
    /// From the start of the prompt to the first token, and from there to the last.
    pub(crate) prefill: Duration,
    pub(crate) decode: Duration,
}

/// When the milestones of one sequence were.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    arrived: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Timing {
    pub(crate) fn new(arrived: Instant) -> Self {
        Self { arrived, started: None, first_token: None, last_token: None }
    }

    /// How long it waited, if it starts for the first time.
    pub(crate) fn start(&mut self, now: Instant) -> Option<Duration> {
        let first = self.started.is_none();
        self.started.get_or_insert(now);
        first.then(|| now - self.arrived)
    }

    /// A token came.
    pub(crate) fn token(&mut self, now: Instant) -> Happening {
        let last = self.last_token.replace(now);
        self.first_token.get_or_insert(now);
        match last {
            Some(last) => Happening::NextToken { gap: now - last },
            None => Happening::FirstToken { after: now - self.arrived },
        }
    }

    pub(crate) fn finish(&self, reason: FinishReason, prompt: u32, completion: u32, now: Instant) -> Finished {
        let first = self.first_token.unwrap_or(now);
        Finished {
            reason,
            prompt,
            completion,
            e2e: now - self.arrived,
            prefill: first - self.started.unwrap_or(self.arrived),
            decode: self.last_token.unwrap_or(first) - first,
        }
    }
}
