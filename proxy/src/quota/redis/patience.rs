//! How long a call waits for its answer when the server is silent, and when it is we who are busy.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::timeout;

/// A burst of our own is not a slow server: a call waits so much longer for each one that was sent before it and has no
/// answer yet. A script takes a tenth of this.
const PER_CALL_AHEAD: Duration = Duration::from_millis(1);
/// Once the bound is over the answer may lie in our own socket, unread because this process was busy: everything that
/// can run here runs this many times more before the server counts as silent.
const TURNS: usize = 8;
const SECOND_LOOK: Duration = Duration::from_millis(2);

/// Calls that were sent and not answered.
#[derive(Debug, Default)]
pub struct Waiting(AtomicUsize);

/// One call among them, until it is dropped.
#[derive(Debug)]
pub struct Place<'w> {
    waiting: &'w AtomicUsize,
    ahead: u32,
}

impl Waiting {
    pub fn enter(&self) -> Place<'_> {
        let ahead = u32::try_from(self.0.fetch_add(1, Ordering::Relaxed)).unwrap_or(u32::MAX);
        Place { waiting: &self.0, ahead }
    }
}

impl Place<'_> {
    /// The longest wait of a call that would wait for `bound` if it were alone.
    pub fn patience(&self, bound: Duration) -> Duration {
        bound.saturating_add(PER_CALL_AHEAD.saturating_mul(self.ahead))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer, if it was here and this process had not come to read it; `late` is how late it came to look.
pub async fn second_look<T>(mut query: Pin<&mut impl Future<Output = T>>, late: Duration) -> Option<T> {
    if let Ok(answer) = timeout(SECOND_LOOK + late, &mut query).await {
        return Some(answer);
    }
    let turns = async {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        answer = query => Some(answer),
        () = turns => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_waits_for_those_before_it_and_not_for_those_that_have_left() {
        let (waiting, bound) = (Waiting::default(), Duration::from_millis(50));
        let places: Vec<Place<'_>> = (0..3).map(|_| waiting.enter()).collect();
        let waits: Vec<u128> = places.iter().map(|place| place.patience(bound).as_millis()).collect();
        assert_eq!(waits, [50, 51, 52]);
        drop(places);
        assert_eq!(waiting.enter().patience(bound), bound);
    }

    #[tokio::test]
    async fn an_answer_that_was_here_is_found_and_silence_ends() {
        assert_eq!(second_look(Box::pin(async { 7 }).as_mut(), Duration::ZERO).await, Some(7));
        assert_eq!(second_look(Box::pin(std::future::pending::<u8>()).as_mut(), Duration::ZERO).await, None);
    }
}
