//! Root-mean-square norms, and the gate of the feed-forward.

use super::math;
use super::simd::{Isa, Kernel, LANES, Simd};
use crate::model::Activation;

/// x / rms(x) * weight, to `out`.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let inverse = isa.run(InverseRms { x, eps });
    for ((x, weight), out) in x.iter().zip(weight).zip(out) {
        *out = x * inverse * weight;
    }
}

/// The same, in place.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    let inverse = isa.run(InverseRms { x, eps });
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * inverse * weight;
    }
}

struct InverseRms<'a> {
    x: &'a [f32],
    eps: f32,
}

impl Kernel for InverseRms<'_> {
    type Out = f32;

    /// Lanes take every sixteenth element, then the fixed tree.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (chunks, rest) = self.x.as_chunks::<LANES>();
        let mut last = [0.0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        let mut squares = s.splat(0.0);
        for chunk in chunks.iter().chain([&last]) {
            let x = s.load(chunk);
            squares = s.fma(x, x, squares);
        }
        1.0 / (s.sum(squares) / self.x.len() as f32 + self.eps).sqrt()
    }
}

/// activation(gate) * up, to `gate`.
pub fn gate(isa: Isa, activation: Activation, gate: &mut [[f32; LANES]], up: &[[f32; LANES]]) {
    isa.run(Gate { activation, gate, up });
}

struct Gate<'a> {
    activation: Activation,
    gate: &'a mut [[f32; LANES]],
    up: &'a [[f32; LANES]],
}

impl Kernel for Gate<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            let activated = match self.activation {
                Activation::Silu => math::silu(s, s.load(gate)),
                Activation::GeluTanh => math::gelu(s, s.load(gate)),
            };
            s.store(s.mul(activated, s.load(up)), gate);
        }
    }
}
