//! Reductions over one row of logits. Sums run in fixed chunks and lanes, so they are the same bits everywhere and
//! the compiler can vectorise them. NaN loses every comparison.

/// Sums restart here: the rounding of a sum depends on this constant and on nothing else.
pub(super) const CHUNK: usize = 4096;
const LANES: usize = 16;

/// The highest logit, ties to the lower id; token 0 if nothing is above -infinity.
pub(super) fn argmax(logits: &[f32]) -> u32 {
    let max = max(logits);
    logits.iter().position(|logit| *logit == max).unwrap_or(0) as u32
}

fn max(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = logits.chunks_exact(LANES);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |best, logit| if *logit > best { *logit } else { best })
}

/// Sum of at most [`CHUNK`] values: [`LANES`] running sums, added in order.
pub(super) fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f32; LANES];
    for chunk in values.chunks(LANES) {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    lanes.iter().map(|lane| f64::from(*lane)).sum()
}

/// The normaliser of log-softmax. -infinity if no token is possible.
pub(super) fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = max(logits);
    if !max.is_finite() {
        return f64::from(max);
    }
    let mut weights = [0.0_f32; CHUNK];
    let mut total = 0.0;
    for chunk in logits.chunks(CHUNK) {
        for (weight, logit) in weights.iter_mut().zip(chunk) {
            *weight = exp(logit - max);
        }
        total += sum(&weights[..chunk.len()]);
    }
    f64::from(max) + total.ln()
}

/// The `count` most likely tokens, most likely first, ties to the lower id.
pub(super) fn most_likely(logits: &[f32], count: usize) -> Vec<u32> {
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
    for (token, &logit) in (0_u32..).zip(logits) {
        let fits = best.len() < count || best.last().is_some_and(|(worst, _)| logit > *worst);
        if !fits || logit.is_nan() {
            continue;
        }
        let place = best.partition_point(|(other, _)| *other >= logit);
        best.insert(place, (logit, token));
        best.truncate(count);
    }
    best.into_iter().map(|(_, token)| token).collect()
}

/// e^x for x <= 0, relative error under 2e-7; 0 below -87 and for NaN. Branch-free, hence vectorisable, and
/// independent of the system's math library.
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let poly =
        ((((1.987_569_1e-4 * r + 1.398_2e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 1.666_666_5e-1) * r + 0.5;
    let mantissa = poly * r * r + r + 1.0;
    let scale = f32::from_bits(((n.max(-126.0) as i32 + 127) as u32) << 23);
    if x > -87.0 { mantissa * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_a_few_units_in_the_last_place() {
        for step in 0..870_000 {
            let x = -(step as f32) * 1e-4;
            let truth = f64::from(x).exp();
            assert!((f64::from(exp(x)) / truth - 1.0).abs() < 2e-7, "exp({x})");
        }
        assert_eq!([exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY), exp(f32::NAN)], [1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn argmax_prefers_the_lower_id_and_ignores_nan() {
        let mut logits = vec![0.0; 100];
        (logits[3], logits[40], logits[41], logits[99]) = (f32::NAN, 2.0, 2.0, 2.0);
        assert_eq!(argmax(&logits), 40);
        assert_eq!(argmax(&[f32::NAN, f32::NAN]), 0);
    }

    #[test]
    fn most_likely_breaks_ties_by_id() {
        assert_eq!(most_likely(&[1.0, 3.0, 3.0, f32::NAN, 2.0, 3.0], 4), [1, 2, 5, 4]);
        assert_eq!(most_likely(&[1.0], 4), [0]);
    }

    #[test]
    fn log_sum_exp_matches_double_precision() {
        let logits: Vec<f32> = (0..10_000).map(|i| ((i * 7919) % 1000) as f32 * 0.01).collect();
        let truth = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
        assert!((log_sum_exp(&logits) - truth).abs() < 1e-6);
    }
}
