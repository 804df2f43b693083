use gguf::TensorType;
use proptest::prelude::*;

use super::*;
use crate::cpu::acts::{ActUnit, LowUnit, quantise};
use crate::cpu::fixtures::{self, Random};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Activations {
    Wide,
    Bytes,
    Pairs,
}

/// Products of every row with every tile, one call per tile and `chunk` rows at once.
fn product(isa: Isa, matrix: &Matrix, x: &[f32], activations: Activations, chunk: usize) -> Vec<[f32; LANES]> {
    let rows = x.len() / matrix.columns;
    let mut units = vec![ActUnit::default(); rows * matrix.units()];
    let mut low = vec![LowUnit::default(); rows * matrix.units()];
    let per_row = units.chunks_exact_mut(matrix.units()).zip(low.chunks_exact_mut(matrix.units()));
    for (x, (units, low)) in x.chunks_exact(matrix.columns).zip(per_row) {
        quantise(isa, x, units, (activations == Activations::Pairs).then_some(low));
    }
    let int = match activations {
        Activations::Wide => None,
        Activations::Bytes => Some(Quantised::Bytes(&units)),
        Activations::Pairs => Some(Quantised::Pairs(&units, &low)),
    };
    let input = Input { wide: x, int };
    let mut out = vec![[0.0; LANES]; rows * matrix.tiles()];
    for (tile, out) in out.chunks_exact_mut(rows).enumerate() {
        for first in (0..rows).step_by(chunk) {
            let last = rows.min(first + chunk);
            multiply(isa, matrix, tile, input, first, &mut out[first..last]);
        }
    }
    out
}

fn activations() -> impl Strategy<Value = Activations> {
    prop::sample::select(vec![Activations::Wide, Activations::Bytes, Activations::Pairs])
}

fn kind() -> impl Strategy<Value = TensorType> {
    prop::sample::select(TensorType::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Rules (b) and (f) of docs/numerics.md.
    #[test]
    fn instruction_sets_agree_bit_for_bit(kind in kind(), rows in 1..33_usize, acts in activations(), seed in 1..u64::MAX) {
        let matrix = fixtures::matrix(kind, 40, 256, seed);
        let x = Random(seed).floats(rows * 256);
        let expected = product(Isa::scalar(), &matrix, &x, acts, rows);
        for isa in Isa::available() {
            prop_assert_eq!(&product(isa, &matrix, &x, acts, rows), &expected, "{}", isa.name());
        }
    }

    /// Rule (b): a row's product does not depend on the rows beside it.
    #[test]
    fn batch_sizes_agree_bit_for_bit(kind in kind(), rows in 2..33_usize, chunk in 1..32_usize, acts in activations(), seed in 1..u64::MAX) {
        let matrix = fixtures::matrix(kind, 32, 256, seed);
        let x = Random(seed).floats(rows * 256);
        let isa = Isa::detect();
        prop_assert_eq!(product(isa, &matrix, &x, acts, rows), product(isa, &matrix, &x, acts, chunk));
    }

    /// Against f64 over the dequantised rows: the layout and the zero points are right, for every type.
    #[test]
    fn products_are_those_of_the_dequantised_weights(kind in kind(), seed in 1..u64::MAX) {
        let matrix = fixtures::matrix(kind, 33, 256, seed);
        let x = Random(seed).floats(256);
        let mut row = vec![0.0; 256];
        let modes = [(Activations::Wide, 1e-5), (Activations::Bytes, 1e-2), (Activations::Pairs, 5e-5)];
        for (acts, tolerance) in modes {
            let found = product(Isa::detect(), &matrix, &x, acts, 1);
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
