use gguf::TensorType;
use proptest::prelude::*;

use super::*;
use crate::cpu::fixtures::{self, Random};

/// Products of every row with every tile, one call per tile and `chunk` rows at once.
fn product(isa: Isa, matrix: &Matrix, x: &[f32], int8: bool, chunk: usize) -> Vec<[f32; LANES]> {
    let rows = x.len() / matrix.columns;
    let mut units = vec![ActUnit::default(); rows * matrix.units()];
    for (x, units) in x.chunks_exact(matrix.columns).zip(units.chunks_exact_mut(matrix.units())) {
        quantise(isa, x, units);
    }
    let input = Input { wide: x, int8: int8.then_some(&units) };
    let mut out = vec![[0.0; LANES]; rows * matrix.tiles()];
    for (tile, out) in out.chunks_exact_mut(rows).enumerate() {
        for first in (0..rows).step_by(chunk) {
            let last = rows.min(first + chunk);
            multiply(isa, matrix, tile, input, first, &mut out[first..last]);
        }
    }
    out
}

fn kind() -> impl Strategy<Value = TensorType> {
    prop::sample::select(TensorType::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Rules (b) and (f) of docs/numerics.md.
    #[test]
    fn instruction_sets_agree_bit_for_bit(kind in kind(), rows in 1..33_usize, int8: bool, seed in 1..u64::MAX) {
        let matrix = fixtures::matrix(kind, 40, 256, seed);
        let x = Random(seed).floats(rows * 256);
        let expected = product(Isa::scalar(), &matrix, &x, int8, rows);
        for isa in Isa::available() {
            prop_assert_eq!(&product(isa, &matrix, &x, int8, rows), &expected, "{}", isa.name());
        }
    }

    /// Rule (b): a row's product does not depend on the rows beside it.
    #[test]
    fn batch_sizes_agree_bit_for_bit(kind in kind(), rows in 2..33_usize, chunk in 1..32_usize, int8: bool, seed in 1..u64::MAX) {
        let matrix = fixtures::matrix(kind, 32, 256, seed);
        let x = Random(seed).floats(rows * 256);
        let isa = Isa::detect();
        prop_assert_eq!(product(isa, &matrix, &x, int8, rows), product(isa, &matrix, &x, int8, chunk));
    }

    /// Against f64 over the dequantised rows: the layout and the zero points are right, for every type.
    #[test]
    fn products_are_those_of_the_dequantised_weights(kind in kind(), seed in 1..u64::MAX) {
        let matrix = fixtures::matrix(kind, 33, 256, seed);
        let x = Random(seed).floats(256);
        let mut row = vec![0.0; 256];
        for (int8, tolerance) in [(false, 1e-5), (true, 1e-2)] {
            let found = product(Isa::detect(), &matrix, &x, int8, 1);
            for index in 0..33 {
                matrix.row(Isa::detect(), index, &mut row);
                let exact: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let size: f64 = row.iter().map(|w| f64::from(w.abs())).sum();
                let error = (f64::from(found[index / LANES][index % LANES]) - exact).abs();
                prop_assert!(error <= tolerance * size, "{kind}, row {index}: off by {error} of {size}");
            }
        }
    }
}

/// Rule (a): one scale for each 32, and the value that carries it comes out as +-127.
#[test]
fn activations_are_quantised_by_32() {
    let mut x = vec![0.5; 64];
    (x[3], x[40]) = (-2.0, 1.0);
    let mut units = [ActUnit::default(); 2];
    for isa in Isa::available() {
        quantise(isa, &x, &mut units);
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
    quantise(Isa::detect(), &[0.0; 32], &mut units);
    assert_eq!(units[0], ActUnit::default());
}
