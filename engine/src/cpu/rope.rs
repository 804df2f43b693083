//! Rotary positions: angles once per step, rotation per head. Frequencies are computed once per load.

use super::math;
use crate::model::{RopePairs, RopeSpec};

/// Angle per position of each pair of a head.
pub struct Frequencies(Vec<f64>);

impl Frequencies {
    /// base^(-2i / head_dim), divided by the file's factors if it has some.
    pub fn new(spec: RopeSpec, head_dim: usize, factors: Option<&[f32]>) -> Self {
        let ln_base = math::ln(f64::from(spec.base));
        let frequency = |i: usize| {
            let frequency = math::exp_f64(-ln_base * (2 * i) as f64 / head_dim as f64);
            frequency * f64::from(spec.scale) / factors.map_or(1.0, |factors| f64::from(factors[i]))
        };
        Self((0..head_dim / 2).map(frequency).collect())
    }

    /// (cos, sin) of each pair at `position`.
    pub fn angles(&self, position: u32, out: &mut [[f32; 2]]) {
        for (frequency, out) in self.0.iter().zip(out) {
            let (sin, cos) = math::sin_cos(f64::from(position) * frequency);
            *out = [cos as f32, sin as f32];
        }
    }
}

/// Rotates one head by the angles of its position.
pub fn rotate(pairs: RopePairs, head: &mut [f32], angles: &[[f32; 2]]) {
    let rotated = |a: f32, b: f32, [cos, sin]: [f32; 2]| (a * cos - b * sin, a * sin + b * cos);
    match pairs {
        RopePairs::Neighbours => {
            for (pair, angle) in head.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                (pair[0], pair[1]) = rotated(pair[0], pair[1], *angle);
            }
        }
        RopePairs::Halves => {
            let (low, high) = head.split_at_mut(angles.len());
            for ((a, b), angle) in low.iter_mut().zip(high).zip(angles) {
                (*a, *b) = rotated(*a, *b, *angle);
            }
        }
    }
}
