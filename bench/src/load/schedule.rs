//! When requests of an open loop are due. The schedule is fixed before the first is sent and waits for nobody, which
//! is what keeps a stalled server from hiding behind fewer requests.

use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::sync::mpsc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Evenly spaced.
    Fixed,
    /// Exponential gaps, as many independent clients make them.
    Poisson { seed: u64 },
}

/// The due times, as offsets from the start, of `rate` requests per second for `length`.
pub fn due(arrivals: Arrivals, rate: f64, length: Duration) -> Vec<Duration> {
    if !rate.is_finite() || rate <= 0.0 {
        return Vec::new();
    }
    let length = length.as_secs_f64();
    match arrivals {
        Arrivals::Fixed => {
            (0u32..).map(|n| f64::from(n) / rate).take_while(|at| *at < length).map(Duration::from_secs_f64).collect()
        }
        Arrivals::Poisson { seed } => {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut at = 0.0;
            let next = || {
                // 1 - u is in (0, 1], whose logarithm is finite.
                at -= (1.0 - random.random::<f64>()).ln() / rate;
                Some(at)
            };
            std::iter::from_fn(next).take_while(|at| *at < length).map(Duration::from_secs_f64).collect()
        }
    }
}

/// One due request: its number and when it should start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub index: usize,
    pub at: Instant,
}

/// Sends each arrival when it is due, from a thread that sleeps by the kernel's clock: the runtime's own timer steps by
/// a millisecond. When the receiver falls behind, arrivals come late but keep the time at which they were due.
pub fn pace(begin: Instant, due: Vec<Duration>) -> mpsc::Receiver<Arrival> {
    let (send, receive) = mpsc::channel(1024);
    std::thread::spawn(move || {
        for (index, offset) in due.into_iter().enumerate() {
            let at = begin + offset;
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if send.blocking_send(Arrival { index, at }).is_err() {
                return;
            }
        }
    });
    receive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_arrivals_are_even() {
        let due = due(Arrivals::Fixed, 50.0, Duration::from_secs(2));
        assert_eq!(due.len(), 100);
        assert_eq!(due[1] - due[0], Duration::from_millis(20));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_one() {
        let due = due(Arrivals::Poisson { seed: 7 }, 1000.0, Duration::from_secs(20));
        // 20,000 expected, standard deviation 141: five of them.
        assert!((due.len() as f64 - 20_000.0).abs() < 705.0, "{}", due.len());
        let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "an exponential's deviation is its mean");
        assert_eq!(due, super::due(Arrivals::Poisson { seed: 7 }, 1000.0, Duration::from_secs(20)));
    }

    #[test]
    fn a_rate_that_is_none_has_no_arrivals() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(due(Arrivals::Fixed, rate, Duration::from_secs(1)).is_empty());
        }
    }
}
