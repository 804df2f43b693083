//! Weights times activations. Lanes run over 16 output rows; the units of a row are accumulated in order and never
//! split, for any number of activation rows: a product depends on its own operands only. Products of whole numbers are
//! in `int`; which threads multiply what is decided in `products`.

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

mod int;

use int::IntTile;

use super::acts::{Input, Quantised};
use super::quant::UNIT;
use super::simd::{Isa, Kernel, LANES, Simd};
use super::tiles::{GROUPS, Source};
use super::weights::{Matrix, with_tiles};

/// Outputs 16 * tile ..+ 16 of the rows from `first_row` on, as many as `out` has.
pub fn multiply(isa: Isa, matrix: &Matrix, tile: usize, input: Input, first_row: usize, out: &mut [[f32; LANES]]) {
    let units = matrix.units();
    let first = tile * units;
    let of_tile = first..first + units;
    let range = first_row * units..(first_row + out.len()) * units;
    let wide = &input.wide[range.start * UNIT..range.end * UNIT];
    with_tiles!(&matrix.data,
        quantised tiles => match input.int {
            Some(Quantised::Bytes(acts)) => isa.run(Rows { tile: IntTile::new(tiles, of_tile, &acts[range]), out }),
            Some(Quantised::Pairs(acts, low)) => {
                let acts = (&acts[range.clone()], &low[range]);
                isa.run(Rows { tile: IntTile::new(tiles, of_tile, acts), out });
            }
            None => isa.run(Rows { tile: WideTile { source: tiles, first, units, acts: wide }, out }),
        },
        float source => isa.run(Rows { tile: WideTile { source, first, units, acts: wide }, out }));
}

/// One tile of weights and the activations it meets.
trait Tile {
    /// The products of N rows of activations. They share the reading of the weights; each row's arithmetic is the same
    /// for any N.
    fn multiply<S: Simd, const N: usize>(&self, s: S, first_row: usize, out: &mut [[f32; LANES]]);
}

/// The products of every row, as many at once as the instruction set has registers for.
struct Rows<'a, T> {
    tile: T,
    out: &'a mut [[f32; LANES]],
}

impl<T: Tile> Kernel for Rows<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (mut done, count) = (0, self.out.len());
        macro_rules! take {
            ($n:literal) => {
                while S::ROWS_AT_ONCE >= $n && count - done >= $n {
                    self.tile.multiply::<S, $n>(s, done, &mut self.out[done..]);
                    done += $n;
                }
            };
        }
        take!(8);
        take!(4);
        take!(1);
    }
}

/// Weights of any type as f32, f32 activations: one fused multiply-add for each weight, columns in order.
struct WideTile<'a, T> {
    source: &'a T,
    first: usize,
    units: usize,
    /// (rows, columns)
    acts: &'a [f32],
}

impl<T: Source> Tile for WideTile<'_, T> {
    #[inline(always)]
    fn multiply<S: Simd, const N: usize>(&self, s: S, first_row: usize, out: &mut [[f32; LANES]]) {
        let columns = self.units * UNIT;
        let row = |n| self.acts[(first_row + n) * columns..(first_row + n + 1) * columns].as_chunks().0;
        let rows: [&[[f32; 4]]; N] = std::array::from_fn(row);
        let mut sums = [s.splat(0.0); N];
        for unit in 0..self.units {
            for group in 0..GROUPS {
                let weights = self.source.columns(s, self.first + unit, group);
                for_each!(n < N, {
                    let x = &rows[n][unit * GROUPS + group];
                    for_each!(i < 4, sums[n] = s.fma(weights[i], s.splat(x[i]), sums[n]));
                });
            }
        }
        for_each!(n < N, s.store(sums[n], &mut out[n]));
    }
}

#[cfg(test)]
mod tests;
