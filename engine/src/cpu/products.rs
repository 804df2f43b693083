//! Products over the threads: which tiles of which matrices are one task, and where their outputs go. The arithmetic of
//! a tile is in `gemm`.
#![expect(unsafe_code, reason = "each task writes its own tiles' outputs")]

use std::ops::Range;

use super::acts::Input;
use super::buffer::Disjoint;
use super::gemm;
use super::norm;
use super::pool::Pool;
use super::simd::{Isa, LANES};
use super::weights::Matrix;
use crate::backend::Error;
use crate::model::Activation;

/// Activation rows multiplied in one go: their products of one tile stay on the stack, their inputs in L2.
const ROWS: usize = 64;

/// The products of all `matrices`, beside each other in each row of `out`.
pub fn project(
    isa: Isa,
    threads: &mut Pool,
    matrices: &[&Matrix],
    input: Input,
    rows: usize,
    out: &mut [f32],
) -> Result<(), Error> {
    let tiles = matrices.iter().map(|matrix| matrix.tiles()).sum();
    each_tile(threads, tiles, rows, out, |tile, first_row, [products]: [&mut Products; 1]| {
        let (matrix, tile, offset) = locate(matrices, tile);
        gemm::multiply(isa, matrix, tile, input, first_row, products);
        lanes(matrix, tile, offset)
    })
}

/// The matrix of the `tile`th tile of all, the tile in it, and where its outputs begin in a row.
fn locate<'a>(matrices: &[&'a Matrix], tile: usize) -> (&'a Matrix, usize, usize) {
    let (mut tile, mut offset) = (tile, 0);
    for matrix in &matrices[..matrices.len() - 1] {
        if tile < matrix.tiles() {
            return (matrix, tile, offset);
        }
        tile -= matrix.tiles();
        offset += matrix.rows;
    }
    (matrices[matrices.len() - 1], tile, offset)
}

/// activation(gate) * up.
pub fn gated(
    isa: Isa,
    threads: &mut Pool,
    activation: Activation,
    [gate, up]: [&Matrix; 2],
    input: Input,
    out: &mut [f32],
) -> Result<(), Error> {
    let rows = out.len() / gate.rows;
    each_tile(threads, gate.tiles(), rows, out, |tile, first_row, [gates, ups]: [&mut Products; 2]| {
        gemm::multiply(isa, gate, tile, input, first_row, gates);
        gemm::multiply(isa, up, tile, input, first_row, ups);
        norm::gate(isa, activation, gates, ups);
        lanes(gate, tile, 0)
    })
}

/// Where a tile's outputs go in a row in which those of its matrix begin at `offset`: the last tile may be narrower.
fn lanes(matrix: &Matrix, tile: usize, offset: usize) -> Range<usize> {
    let first = tile * LANES;
    offset + first..offset + matrix.rows.min(first + LANES)
}

/// Products of one tile. (rows, 16)
type Products = [[f32; LANES]];

/// Every tile for every row. `multiply` is given a tile, the first of some rows, and room for P products of each; it
/// leaves the outputs in the first of them and says which columns of `out`, (rows, columns), they are.
fn each_tile<const P: usize>(
    threads: &mut Pool,
    tiles: usize,
    rows: usize,
    out: &mut [f32],
    multiply: impl Fn(usize, usize, [&mut Products; P]) -> Range<usize> + Sync,
) -> Result<(), Error> {
    let row_len = out.len() / rows;
    let per_task = tiles_per_task(tiles, threads.threads());
    let out = Disjoint::new(out);
    threads.run(tiles.div_ceil(per_task), &|task, _| {
        let mut products = [[[0.0; LANES]; ROWS]; P];
        for first_row in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first_row);
            for tile in task * per_task..tiles.min((task + 1) * per_task) {
                let columns = multiply(tile, first_row, products.each_mut().map(|products| &mut products[..count]));
                for (row, product) in (first_row..).zip(&products[0][..count]) {
                    let start = row * row_len;
                    // SAFETY: a tile of a row belongs to one task.
                    let out = unsafe { out.slice(start + columns.start..start + columns.end) };
                    out.copy_from_slice(&product[..columns.len()]);
                }
            }
        }
    })?;
    Ok(())
}

/// Tiles per task: enough tasks that a late thread still finds some, not so many that taking them costs.
fn tiles_per_task(tiles: usize, threads: usize) -> usize {
    (tiles / (8 * threads)).clamp(1, 64)
}
