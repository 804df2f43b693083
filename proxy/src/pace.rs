//! How fast a model answers, learned from its finished calls: what an unseen answer is charged by.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

/// Weight of the newest call.
const NEWEST: f32 = 0.1;

/// Moving averages; until the first call, a guess that is slow to start and fast to write, which charges little for
/// calls that end at once.
pub struct Pace {
    /// Seconds, as the bits of an `f32`.
    ttft: AtomicU32,
    /// Output tokens per second, likewise.
    rate: AtomicU32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { ttft: AtomicU32::new(0.5f32.to_bits()), rate: AtomicU32::new(50f32.to_bits()) }
    }
}

impl Pace {
    /// A finished call: its first token came after `ttft`, all `tokens` after `e2e`.
    pub fn learn(&self, ttft: Duration, e2e: Duration, tokens: u64) {
        blend(&self.ttft, ttft.as_secs_f32());
        let writing = e2e.saturating_sub(ttft).as_secs_f32();
        if tokens > 1 && writing > 1e-3 {
            blend(&self.rate, (tokens - 1) as f32 / writing);
        }
    }

    /// A finished call that came whole after `e2e`. When its first token was written nobody saw, so it teaches the
    /// rate alone, and only where the wait for the first token is the smaller part.
    pub fn learn_whole(&self, e2e: Duration, tokens: u64) {
        let (ttft, e2e) = (f32::from_bits(self.ttft.load(Relaxed)), e2e.as_secs_f32());
        if tokens > 1 && e2e > 2.0 * ttft {
            blend(&self.rate, tokens as f32 / (e2e - ttft));
        }
    }

    /// Output tokens that a call may have produced unseen, `elapsed` after it was sent.
    pub fn unseen(&self, elapsed: Duration, held: u64) -> u64 {
        let (ttft, rate) = (f32::from_bits(self.ttft.load(Relaxed)), f32::from_bits(self.rate.load(Relaxed)));
        let tokens = (elapsed.as_secs_f32() - ttft).max(0.0) * rate;
        (tokens.ceil() as u64).min(held)
    }
}

/// Lost updates do no harm: it is an average.
fn blend(average: &AtomicU32, newest: f32) {
    let old = f32::from_bits(average.load(Relaxed));
    average.store((old + NEWEST * (newest - old)).to_bits(), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unseen_answer_never_costs_more_than_was_held() {
        let pace = Pace::default();
        assert_eq!(pace.unseen(Duration::from_millis(100), 1000), 0);
        assert_eq!(pace.unseen(Duration::from_millis(2500), 1000), 100);
        assert_eq!(pace.unseen(Duration::from_secs(3600), 1000), 1000);
    }

    #[test]
    fn the_pace_follows_what_was_seen() {
        let pace = Pace::default();
        (0..200).for_each(|_| pace.learn(Duration::from_secs(1), Duration::from_secs(3), 21));
        let unseen = pace.unseen(Duration::from_secs(2), 1000);
        assert!((10..=11).contains(&unseen), "{unseen}");
    }

    #[test]
    fn a_whole_answer_teaches_the_rate_and_never_the_wait() {
        let pace = Pace::default();
        (0..200).for_each(|_| pace.learn_whole(Duration::from_secs(20), 1950));
        let unseen = pace.unseen(Duration::from_secs(15), 10_000);
        assert!((1440..=1460).contains(&unseen), "{unseen}");
    }
}
