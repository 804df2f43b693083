//! Quantised weights times quantised activations: whole numbers within a unit, f32 from unit to unit. How many rows
//! are multiplied at once is decided in `gemm`.

use std::marker::PhantomData;
use std::ops::Range;

use super::Tile;
use crate::cpu::acts::{ActUnit, LowUnit};
use crate::cpu::simd::{LANES, Simd};
use crate::cpu::tiles::{Format, GROUPS, Quants, Scale, Tiles};

/// Activations of one byte or of two; which of them is known when a kernel is compiled. (rows, columns / 32)
pub trait IntActs: Copy {
    fn units(self, range: Range<usize>) -> Self;
    fn unit(&self, index: usize) -> (&ActUnit, Option<&LowUnit>);
}

impl IntActs for &[ActUnit] {
    #[inline(always)]
    fn units(self, range: Range<usize>) -> Self {
        &self[range]
    }

    #[inline(always)]
    fn unit(&self, index: usize) -> (&ActUnit, Option<&LowUnit>) {
        (&self[index], None)
    }
}

impl IntActs for (&[ActUnit], &[LowUnit]) {
    #[inline(always)]
    fn units(self, range: Range<usize>) -> Self {
        (&self.0[range.clone()], &self.1[range])
    }

    #[inline(always)]
    fn unit(&self, index: usize) -> (&ActUnit, Option<&LowUnit>) {
        (&self.0[index], Some(&self.1[index]))
    }
}

pub struct IntTile<'a, F: Format, A> {
    quants: &'a [F::Quants],
    scales: &'a [F::Scale],
    mins: &'a [F::Scale],
    acts: A,
}

impl<'a, F: Format, A: IntActs> IntTile<'a, F, A> {
    /// `range`: the units of the tile.
    pub fn new(tiles: &'a Tiles<F>, range: Range<usize>, acts: A) -> Self {
        let mins = if F::HAS_MIN { &tiles.mins[range.clone()] } else { &[] };
        Self { quants: &tiles.quants[range.clone()], scales: &tiles.scales[range], mins, acts }
    }

    #[inline(always)]
    fn unit<S: Simd>(&self, s: S, q: &F::Quants, unit: usize) -> IntUnit<S, F> {
        let scales = &self.scales[unit];
        IntUnit {
            q: [
                q.group(s, 0),
                q.group(s, 1),
                q.group(s, 2),
                q.group(s, 3),
                q.group(s, 4),
                q.group(s, 5),
                q.group(s, 6),
                q.group(s, 7),
            ],
            scales: [scales.load(s, 0), scales.load(s, 1)],
            min: if F::HAS_MIN { self.mins[unit].load(s, 0) } else { s.splat(0.0) },
            format: PhantomData,
        }
    }
}

impl<F: Format, A: IntActs> Tile for IntTile<'_, F, A> {
    #[inline(always)]
    fn multiply<S: Simd, const N: usize>(&self, s: S, first_row: usize, out: &mut [[f32; LANES]]) {
        let units = self.quants.len();
        let row = |n| self.acts.units((first_row + n) * units..(first_row + n + 1) * units);
        let rows: [A; N] = std::array::from_fn(row);
        let mut sums = [s.splat(0.0); N];
        for (unit, q) in self.quants.iter().enumerate() {
            if N <= 4 {
                prefetch(s, q);
            }
            let weights = self.unit(s, q, unit);
            for_each!(n < N, sums[n] = weights.add_product(s, rows[n].unit(unit), sums[n]));
        }
        for_each!(n < N, s.store(sums[n], &mut out[n]));
    }
}

/// With few rows the weights come from memory as fast as it can: asks for those of a few units later, also over the
/// end of the tile, since the next tile follows.
#[inline(always)]
fn prefetch<S: Simd, Q>(s: S, current: &Q) {
    const AHEAD: usize = 6;
    let start: *const u8 = std::ptr::from_ref(current).wrapping_add(AHEAD).cast();
    for line in 0..size_of::<Q>() / 64 {
        s.prefetch(start.wrapping_add(64 * line));
    }
}

/// 32 columns of 16 weight rows, in registers.
struct IntUnit<S: Simd, F> {
    q: [S::B; GROUPS],
    scales: [S::F; 2],
    min: S::F,
    format: PhantomData<F>,
}

impl<S: Simd, F: Format> IntUnit<S, F> {
    /// sum + the products with one row's unit.
    #[inline(always)]
    fn add_product(&self, s: S, (act, low): (&ActUnit, Option<&LowUnit>), sum: S::F) -> S::F {
        let scale = s.splat(act.scale);
        let mut sum = sum;
        if F::Scale::HALVES {
            for_each!(half < 2, {
                let first = half * GROUPS / 2;
                let mut dot = self.dots::<{ GROUPS / 2 }>(s, first, &act.q, act.sums[half]);
                if let Some(low) = low {
                    dot = s.join(dot, self.dots::<{ GROUPS / 2 }>(s, first, &low.q, low.sums[half]));
                }
                sum = s.fma(s.to_f32(dot), s.mul(self.scales[half], scale), sum);
            });
        } else {
            let mut dot = self.dots::<GROUPS>(s, 0, &act.q, act.sums[0] + act.sums[1]);
            if let Some(low) = low {
                dot = s.join(dot, self.dots::<GROUPS>(s, 0, &low.q, low.sums[0] + low.sums[1]));
            }
            sum = s.fma(s.to_f32(dot), s.mul(self.scales[0], scale), sum);
        }
        if F::HAS_MIN { s.fma(self.min, s.splat(act.min_scale), sum) } else { sum }
    }

    /// Sum of (weight - zero) * q over COUNT groups, exact: the zero point goes in as -zero * (sum of q).
    #[inline(always)]
    fn dots<const COUNT: usize>(&self, s: S, first: usize, q: &[i32; GROUPS], sum: i32) -> S::I {
        let eight = <F::Quants as Quants>::EIGHT_BITS;
        let zero = if eight && S::SIGNED_BYTES { 0 } else { i32::from(F::ZERO) };
        let mut dot = s.splat_i(-zero * sum);
        for_each!(i < COUNT, {
            let (weights, q) = (self.q[first + i], q[first + i]);
            dot = if eight { s.dot8(dot, weights, q) } else { s.dot7(dot, weights, q) };
        });
        dot
    }
}
