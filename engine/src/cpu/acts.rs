//! Activations as products read them: f32, and whole numbers of one or two bytes with a scale for each 32. What
//! multiplies them is in `gemm`.

use super::quant::UNIT;
use super::simd::{Isa, Kernel, LANES, Simd};
use super::tiles::GROUPS;

/// 32 activations as signed bytes with one scale: x = q * scale; or, with a [`LowUnit`], x = (256 * q + low) * scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct ActUnit {
    /// Four bytes each, the lowest first.
    pub q: [i32; GROUPS],
    pub scale: f32,
    /// scale * (sum of all that it scales): what a minimum of the weights is multiplied by.
    pub min_scale: f32,
    /// Sums of the q of each half, for weights around a zero point.
    pub sums: [i32; 2],
}

/// The second bytes of 32 activations, where one is not precise enough.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct LowUnit {
    pub q: [i32; GROUPS],
    pub sums: [i32; 2],
}

/// How quantised weights see activations. (rows, columns / 32)
#[derive(Clone, Copy)]
pub enum Quantised<'a> {
    Bytes(&'a [ActUnit]),
    Pairs(&'a [ActUnit], &'a [LowUnit]),
}

/// Activation rows for one product: `wide` always, `int` where quantised weights take it.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// (rows, columns)
    pub wide: &'a [f32],
    /// `None` in exact mode.
    pub int: Option<Quantised<'a>>,
}

/// Quantises one row: each 32 share the scale max |x| / 127, rounded to nearest, ties to even. With `low`, what the
/// rounding leaves is kept in a second byte, of 1/256 of that.
pub fn quantise(isa: Isa, x: &[f32], out: &mut [ActUnit], low: Option<&mut [LowUnit]>) {
    match low {
        None => isa.run(Quantise { x, out }),
        Some(low) => isa.run(QuantisePairs { x, out, low }),
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    out: &'a mut [ActUnit],
}

impl Kernel for Quantise<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.as_chunks::<UNIT>().0.iter().zip(self.out) {
            let halves = x.as_chunks::<LANES>().0;
            let (low, high) = (s.load(&halves[0]), s.load(&halves[1]));
            let largest = s.largest(s.max(s.abs(low), s.abs(high)));
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            let q = [s.quantise(low, inverse), s.quantise(high, inverse)];
            let (sums, scale) = (q.map(sum), largest / 127.0);
            *out = ActUnit { q: pack(&q), scale, min_scale: scale * (sums[0] + sums[1]) as f32, sums };
        }
    }
}

struct QuantisePairs<'a> {
    x: &'a [f32],
    out: &'a mut [ActUnit],
    low: &'a mut [LowUnit],
}

impl Kernel for QuantisePairs<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for ((x, out), low) in self.x.as_chunks::<UNIT>().0.iter().zip(self.out).zip(self.low) {
            let halves = x.as_chunks::<LANES>().0;
            let x = [s.load(&halves[0]), s.load(&halves[1])];
            let largest = s.largest(s.max(s.abs(x[0]), s.abs(x[1])));
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            let q = [s.quantise(x[0], inverse), s.quantise(x[1], inverse)];
            let rest = [rest(s, x[0], inverse), rest(s, x[1], inverse)];
            let rest = [s.quantise(rest[0], 256.0), s.quantise(rest[1], 256.0)];
            let scale = largest / (127.0 * 256.0);
            let (sums, low_sums) = (q.map(sum), rest.map(sum));
            let total = 256 * (sums[0] + sums[1]) + low_sums[0] + low_sums[1];
            *out = ActUnit { q: pack(&q), scale, min_scale: scale * total as f32, sums };
            *low = LowUnit { q: pack(&rest), sums: low_sums };
        }
    }
}

/// What rounding x * inverse to a whole number leaves, at most 127/256 either way.
#[inline(always)]
fn rest<S: Simd>(s: S, x: S::F, inverse: f32) -> S::F {
    const SHIFT: f32 = 12_582_912.0;
    let scaled = s.mul(x, s.splat(inverse));
    let rounded = s.sub(s.add(scaled, s.splat(SHIFT)), s.splat(SHIFT));
    let limit = 127.0 / 256.0;
    s.min(s.max(s.sub(scaled, rounded), s.splat(-limit)), s.splat(limit))
}

#[inline(always)]
fn sum(half: [i8; LANES]) -> i32 {
    half.iter().map(|q| i32::from(*q)).sum()
}

#[inline(always)]
fn pack(q: &[[i8; LANES]; 2]) -> [i32; GROUPS] {
    let bytes = q.as_flattened().as_chunks::<4>().0;
    std::array::from_fn(|i| i32::from_le_bytes(bytes[i].map(|byte| byte as u8)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::fixtures::Random;

    /// Rule (a): one scale for each 32, and the value that carries it comes out as +-127.
    #[test]
    fn activations_are_quantised_by_32() {
        let mut x = vec![0.5; 64];
        (x[3], x[40]) = (-2.0, 1.0);
        let mut units = [ActUnit::default(); 2];
        for isa in Isa::available() {
            quantise(isa, &x, &mut units, None);
            assert_eq!([units[0].scale, units[1].scale], [2.0 / 127.0, 1.0 / 127.0]);
            let bytes = units[0].q.map(i32::to_le_bytes);
            assert_eq!(bytes.as_flattened()[3] as i8, -127);
            // 0.5 / 2 * 127 = 31.75; 15 of them in the first half beside the -127.
            assert_eq!(units[0].sums, [15 * 32 - 127, 16 * 32]);
            assert_eq!(units[0].min_scale, units[0].scale * (31.0 * 32.0 - 127.0));
            // 0.5 / 1 * 127 = 63.5: ties go to the even 64.
            assert_eq!(units[1].sums, [15 * 64 + 127, 16 * 64], "{}", isa.name());
        }
    }

    #[test]
    fn a_row_of_zeros_stays_zero() {
        let mut units = [ActUnit { scale: 7.0, ..ActUnit::default() }];
        quantise(Isa::detect(), &[0.0; 32], &mut units, None);
        assert_eq!(units[0], ActUnit::default());
    }

    #[test]
    fn a_second_byte_keeps_what_the_first_rounds_off() {
        let x = Random(11).floats(64);
        for isa in Isa::available() {
            let (mut units, mut low) = ([ActUnit::default(); 2], [LowUnit::default(); 2]);
            quantise(isa, &x, &mut units, Some(&mut low));
            for (i, x) in x.iter().enumerate() {
                let byte = |q: &[i32; GROUPS]| f32::from(q.map(i32::to_le_bytes).as_flattened()[i % 32] as i8);
                let (unit, low) = (&units[i / 32], &low[i / 32]);
                let found = (256.0 * byte(&unit.q) + byte(&low.q)) * unit.scale;
                assert!((found - x).abs() <= 1.01 * unit.scale, "{x} became {found}, {}", isa.name());
            }
        }
    }
}
