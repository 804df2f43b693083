//! Weights times activations. Lanes run over 16 output rows; the units of a row are accumulated in order and never
//! split, for any number of activation rows: a product depends on its own operands only. Which threads multiply what
//! is decided in `ops`.

use std::marker::PhantomData;

use super::quant::UNIT;
use super::simd::{Isa, Kernel, LANES, Simd};
use super::tiles::{Format, GROUPS, Quants, Scale, Source, Tiles};
use super::weights::{Matrix, with_tiles};

/// `body` for i = 0 .. count (at most 8), written out: arrays of vectors stay in registers only if no loop indexes them,
/// and whether the compiler unrolls one depends on the profile.
macro_rules! for_each {
    ($i:ident < $count:expr, $body:expr) => {
        for_each!(@ $i, $count, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident, $count:expr, $body:expr, $($index:literal)+) => {
        $(if $index < $count {
            let $i: usize = $index;
            $body;
        })+
    };
}

/// 32 activations as signed bytes with one scale: x = q * scale; or, with a [`LowUnit`], x = (256 * q + low) * scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct ActUnit {
    /// Four bytes each, the lowest first.
    q: [i32; GROUPS],
    scale: f32,
    /// scale * (sum of all that it scales): what a minimum of the weights is multiplied by.
    min_scale: f32,
    /// Sums of the q of each half, for weights around a zero point.
    sums: [i32; 2],
}

/// The second bytes of 32 activations, where one is not precise enough.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct LowUnit {
    q: [i32; GROUPS],
    sums: [i32; 2],
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

/// Outputs 16 * tile ..+ 16 of the rows from `first_row` on, as many as `out` has.
pub fn multiply(isa: Isa, matrix: &Matrix, tile: usize, input: Input, first_row: usize, out: &mut [[f32; LANES]]) {
    let units = matrix.units();
    let first = tile * units;
    let wide = &input.wide[first_row * matrix.columns..(first_row + out.len()) * matrix.columns];
    let range = first_row * units..(first_row + out.len()) * units;
    with_tiles!(&matrix.data,
        quantised tiles => match input.int {
            Some(Quantised::Bytes(rows)) => isa.run(Bytes { tiles, first, units, rows: &rows[range], out }),
            Some(Quantised::Pairs(rows, low)) => {
                isa.run(Pairs { tiles, first, units, rows: &rows[range.clone()], low: &low[range], out });
            }
            None => isa.run(Wide { source: tiles, first, units, rows: wide, out }),
        },
        float source => isa.run(Wide { source, first, units, rows: wide, out }));
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

/// Quantised weights, quantised activations: whole numbers within a unit, f32 from unit to unit.
struct Bytes<'a, F: Format> {
    tiles: &'a Tiles<F>,
    first: usize,
    units: usize,
    rows: &'a [ActUnit],
    out: &'a mut [[f32; LANES]],
}

impl<F: Format> Kernel for Bytes<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let tile = IntTile::new(self.tiles, self.first, self.units);
        tile.multiply_all::<S, false>(s, self.rows, &[], self.out);
    }
}

/// The same with activations of two bytes.
struct Pairs<'a, F: Format> {
    tiles: &'a Tiles<F>,
    first: usize,
    units: usize,
    rows: &'a [ActUnit],
    low: &'a [LowUnit],
    out: &'a mut [[f32; LANES]],
}

impl<F: Format> Kernel for Pairs<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let tile = IntTile::new(self.tiles, self.first, self.units);
        tile.multiply_all::<S, true>(s, self.rows, self.low, self.out);
    }
}

struct IntTile<'a, F: Format> {
    quants: &'a [F::Quants],
    scales: &'a [F::Scale],
    mins: &'a [F::Scale],
}

impl<'a, F: Format> IntTile<'a, F> {
    fn new(tiles: &'a Tiles<F>, first: usize, units: usize) -> Self {
        let range = first..first + units;
        let mins = if F::HAS_MIN { &tiles.mins[range.clone()] } else { &[] };
        Self { quants: &tiles.quants[range.clone()], scales: &tiles.scales[range], mins }
    }

    /// LOW: the activations have second bytes, in `low`.
    #[inline(always)]
    fn multiply_all<S: Simd, const LOW: bool>(
        &self,
        s: S,
        rows: &[ActUnit],
        low: &[LowUnit],
        out: &mut [[f32; LANES]],
    ) {
        let units = self.quants.len();
        let (mut done, count) = (0, out.len());
        macro_rules! take {
            ($n:literal) => {{
                let low = if LOW { &low[done * units..] } else { low };
                self.multiply::<S, $n, LOW>(s, &rows[done * units..], low, &mut out[done..]);
                done += $n;
            }};
        }
        while S::ROWS_AT_ONCE >= 8 && count - done >= 8 {
            take!(8);
        }
        while S::ROWS_AT_ONCE >= 4 && count - done >= 4 {
            take!(4);
        }
        while count > done {
            take!(1);
        }
    }

    /// N rows at once share the unpacking of the weights; each row's arithmetic is the same for any N.
    #[inline(always)]
    fn multiply<S: Simd, const N: usize, const LOW: bool>(
        &self,
        s: S,
        rows: &[ActUnit],
        low: &[LowUnit],
        out: &mut [[f32; LANES]],
    ) {
        let units = self.quants.len();
        let rows: [&[ActUnit]; N] = std::array::from_fn(|n| &rows[n * units..(n + 1) * units]);
        let low: [&[LowUnit]; N] =
            std::array::from_fn(|n| if LOW { &low[n * units..(n + 1) * units] } else { &low[..0] });
        let mut sums = [s.splat(0.0); N];
        for (unit, q) in self.quants.iter().enumerate() {
            if N <= 4 {
                prefetch(s, q);
            }
            let weights = self.unit(s, q, unit);
            for_each!(n < N, {
                let low = if LOW { Some(&low[n][unit]) } else { None };
                sums[n] = weights.add_product(s, &rows[n][unit], low, sums[n]);
            });
        }
        for_each!(n < N, s.store(sums[n], &mut out[n]));
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
    fn add_product(&self, s: S, act: &ActUnit, low: Option<&LowUnit>, sum: S::F) -> S::F {
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

/// Weights of any type as f32, f32 activations: one fused multiply-add for each weight, columns in order.
struct Wide<'a, T> {
    source: &'a T,
    first: usize,
    units: usize,
    rows: &'a [f32],
    out: &'a mut [[f32; LANES]],
}

impl<T: Source> Kernel for Wide<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let columns = self.units * UNIT;
        let (mut done, count) = (0, self.out.len());
        while S::ROWS_AT_ONCE >= 8 && count - done >= 8 {
            let rows = &self.rows[done * columns..];
            wide::<S, T, 8>(s, self.source, self.first, self.units, rows, &mut self.out[done..]);
            done += 8;
        }
        while count > done {
            let rows = &self.rows[done * columns..];
            wide::<S, T, 1>(s, self.source, self.first, self.units, rows, &mut self.out[done..]);
            done += 1;
        }
    }
}

#[inline(always)]
fn wide<S: Simd, T: Source, const N: usize>(
    s: S,
    source: &T,
    first: usize,
    units: usize,
    rows: &[f32],
    out: &mut [[f32; LANES]],
) {
    let columns = units * UNIT;
    let rows: [&[[f32; 4]]; N] = std::array::from_fn(|n| rows[n * columns..(n + 1) * columns].as_chunks().0);
    let mut sums = [s.splat(0.0); N];
    for unit in 0..units {
        for group in 0..GROUPS {
            let weights = source.columns(s, first + unit, group);
            for_each!(n < N, {
                let x = &rows[n][unit * GROUPS + group];
                for_each!(i < 4, sums[n] = s.fma(weights[i], s.splat(x[i]), sums[n]));
            });
        }
    }
    for_each!(n < N, s.store(sums[n], &mut out[n]));
}

#[cfg(test)]
mod tests;
