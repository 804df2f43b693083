//! The hand-over from the engine's thread to whoever waits for tokens. The engine never waits for a reader: what is
//! not read yet is kept, and the request's own `max_tokens` bounds it. Dropping the reader cancels the request.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::request::FinishReason;

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Log-probabilities of the prompt, one per token; the first has none. Sent once, before any token.
    Prompt {
        choice: u32,
        scores: Vec<Score>,
    },
    Token {
        choice: u32,
        token: Score,
        text: String,
    },
    Finished {
        choice: u32,
        text: String,
        reason: FinishReason,
        cached: u32,
    },
}

impl Event {
    pub fn choice(&self) -> u32 {
        match self {
            Self::Prompt { choice, .. } | Self::Token { choice, .. } | Self::Finished { choice, .. } => *choice,
        }
    }
}

/// A token with what was asked about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    pub token: u32,
    pub logprob: Option<f32>,
    pub top: Vec<(u32, f32)>,
}

/// Events of all choices of one request, in order. A [`futures_util::Stream`] that ends once every choice has
/// finished; [`TokenStream::next_blocking`] serves callers without a runtime.
#[derive(Debug)]
pub struct TokenStream {
    shared: Arc<Shared>,
}

/// The engine's end: one per choice. Dropped without a `Finished`, it reports a failure.
#[derive(Debug)]
pub(crate) struct Outlet {
    shared: Arc<Shared>,
    choice: u32,
    finished: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
    abandoned: AtomicBool,
}

#[derive(Debug)]
struct Queue {
    events: VecDeque<Event>,
    /// Choices that have not finished.
    open: u32,
    waker: Option<Waker>,
}

pub(crate) fn channel(choices: u32) -> (Vec<Outlet>, TokenStream) {
    let shared = Arc::new(Shared {
        queue: Mutex::new(Queue { events: VecDeque::new(), open: choices, waker: None }),
        ready: Condvar::new(),
        abandoned: AtomicBool::new(false),
    });
    let outlet = |choice| Outlet { shared: Arc::clone(&shared), choice, finished: false };
    let outlets = (0..choices).map(outlet).collect();
    (outlets, TokenStream { shared })
}

impl Shared {
    /// A poisoned queue is whole: nothing between lock and unlock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlet {
    pub(crate) fn choice(&self) -> u32 {
        self.choice
    }

    /// The reader is gone: nobody wants the rest.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.shared.abandoned.load(Ordering::Relaxed)
    }

    pub(crate) fn send(&mut self, event: Event) {
        let finishes = matches!(event, Event::Finished { .. });
        self.finished |= finishes;
        let mut queue = self.shared.lock();
        queue.events.push_back(event);
        queue.open -= u32::from(finishes);
        let waker = queue.waker.take();
        drop(queue);
        self.shared.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn fail(&mut self, why: &str) {
        let reason = FinishReason::Failed(why.to_owned());
        self.send(Event::Finished { choice: self.choice, text: String::new(), reason, cached: 0 });
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        if !self.finished {
            self.fail("the engine stopped before the answer was complete");
        }
    }
}

impl TokenStream {
    /// The next event, waiting at most `timeout`; `None` at the end or when the time is over.
    pub fn next_blocking(&mut self, timeout: Duration) -> Option<Event> {
        let waits = |queue: &mut Queue| queue.events.is_empty() && queue.open > 0;
        let queue = self.shared.ready.wait_timeout_while(self.shared.lock(), timeout, waits);
        queue.unwrap_or_else(PoisonError::into_inner).0.events.pop_front()
    }

    /// An event that is there already: lets a writer send together what came together.
    pub fn try_next(&mut self) -> Option<Event> {
        self.shared.lock().events.pop_front()
    }
}

impl futures_util::Stream for TokenStream {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut queue = self.shared.lock();
        if let Some(event) = queue.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if queue.open == 0 {
            return Poll::Ready(None);
        }
        queue.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    fn finished(choice: u32) -> Event {
        Event::Finished { choice, text: String::new(), reason: FinishReason::Stop, cached: 0 }
    }

    #[test]
    fn the_stream_ends_when_every_choice_has_finished() {
        let (mut outlets, mut stream) = channel(2);
        outlets[1].send(finished(1));
        assert_eq!(stream.next_blocking(SOON), Some(finished(1)));
        assert_eq!(stream.next_blocking(Duration::from_millis(1)), None);
        outlets[0].send(finished(0));
        assert_eq!(stream.next_blocking(SOON), Some(finished(0)));
        assert_eq!(stream.next_blocking(SOON), None);
    }

    #[test]
    fn an_engine_that_dies_ends_its_streams_with_a_failure() {
        let (outlets, mut stream) = channel(1);
        drop(outlets);
        let event = stream.next_blocking(SOON);
        assert!(matches!(event, Some(Event::Finished { reason: FinishReason::Failed(_), .. })), "{event:?}");
    }

    #[test]
    fn dropping_the_reader_is_seen_by_the_engine() {
        let (outlets, stream) = channel(1);
        assert!(!outlets[0].is_abandoned());
        drop(stream);
        assert!(outlets[0].is_abandoned());
    }
}
