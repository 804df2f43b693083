//! Quantiles of a stream of counts in a few hundred bytes: logarithmic buckets as in `DDSketch` (Masson, Rim, Lee:
//! "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees", PVLDB 12(12), 2019), with
//! weights that fade (forward decay: Cormode et al., ICDE 2009), so that what is learned follows what is used.

/// Each bucket ends so much above the one before: a quantile is at most this factor too high, and never too low.
const GROWTH: f64 = 1.1;
/// The last bucket ends above ten million tokens.
const BUCKETS: usize = 171;
/// Counts after which a count weighs half.
const HALF_LIFE: f64 = 1000.0;
/// The newest count weighs at most so much; beyond it all weights are scaled down, before single precision tells.
const HEAVIEST: f64 = 1e6;

#[derive(Clone, Debug)]
pub struct Sketch {
    weights: Box<[f32; BUCKETS]>,
    total: f64,
    /// Of the next count.
    weight: f64,
    counts: u64,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { weights: Box::new([0.0; BUCKETS]), total: 0.0, weight: 1.0, counts: 0 }
    }
}

impl Sketch {
    pub fn add(&mut self, count: u64) {
        self.weights[bucket(count)] += self.weight as f32;
        self.total += self.weight;
        self.counts += 1;
        self.weight *= (std::f64::consts::LN_2 / HALF_LIFE).exp();
        if self.weight > HEAVIEST {
            self.weights.iter_mut().for_each(|weight| *weight /= self.weight as f32);
            self.total = self.weights.iter().map(|weight| f64::from(*weight)).sum();
            self.weight = 1.0;
        }
    }

    /// All that were ever added.
    pub fn counts(&self) -> u64 {
        self.counts
    }

    /// At least as much as this share of the counts, and less than [`GROWTH`] times the least that is.
    pub fn quantile(&self, share: f64) -> u64 {
        let mut above = self.total * (1.0 - share);
        for (at, weight) in self.weights.iter().enumerate().rev() {
            above -= f64::from(*weight);
            if above < 0.0 {
                return end(at);
            }
        }
        0
    }
}

fn bucket(count: u64) -> usize {
    let exact = (count.max(1) as f64).ln() / GROWTH.ln();
    // What lies on an end belongs below it, whatever the rounding of the logarithm.
    let at = exact.ceil() as usize;
    let at = if at > 0 && count <= end(at - 1) { at - 1 } else { at };
    at.min(BUCKETS - 1)
}

/// The largest count of a bucket.
fn end(bucket: usize) -> u64 {
    GROWTH.powi(bucket as i32).floor() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_quantile_is_never_too_low_and_at_most_a_tenth_too_high(
            counts in prop::collection::vec(0u64..2_000_000, 1..300),
            share in 0.0..1.0f64,
        ) {
            let mut sketch = Sketch::default();
            counts.iter().for_each(|count| sketch.add(*count));
            let found = sketch.quantile(share);
            let mut sorted = counts.clone();
            sorted.sort_unstable();
            // All weights are within a fifth of each other, so its rank is known to that.
            let rank = |share: f64| sorted[((share * sorted.len() as f64) as usize).min(sorted.len() - 1)];
            let (low, high) = (rank((share - 0.12).max(0.0)), rank((share + 0.12).min(1.0)));
            prop_assert!(found >= low && found as f64 <= (high.max(1) as f64) * GROWTH, "{found} of {low}..{high}");
        }
    }

    #[test]
    fn ends_of_buckets_belong_to_them() {
        for at in 0..BUCKETS - 1 {
            let (last, next) = (end(at), end(at) + 1);
            assert!(end(bucket(last)) == last && bucket(next) > bucket(last), "{last} in {}", bucket(last));
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
        assert!(end(BUCKETS - 1) > 10_000_000);
    }

    #[test]
    fn what_was_used_long_ago_fades() {
        let mut sketch = Sketch::default();
        (0..50_000).for_each(|_| sketch.add(4000));
        (0..3000).for_each(|_| sketch.add(100));
        assert_eq!(end(bucket(4000)), sketch.quantile(0.99), "a tenth of the weight is not gone");
        (0..5000).for_each(|_| sketch.add(100));
        assert_eq!(end(bucket(100)), sketch.quantile(0.99));
    }

    #[test]
    fn weights_stay_exact_over_any_number_of_counts() {
        let mut sketch = Sketch::default();
        for round in 0..200_000u64 {
            sketch.add(if round % 50 == 0 { 1000 } else { 10 });
        }
        assert_eq!((sketch.quantile(0.97), sketch.quantile(0.99)), (end(bucket(10)), end(bucket(1000))));
        let sum: f64 = sketch.weights.iter().map(|weight| f64::from(*weight)).sum();
        assert!((sketch.total / sum - 1.0).abs() < 1e-3, "{} of {sum}", sketch.total);
    }
}
