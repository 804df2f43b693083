use super::*;
use crate::cpu::fixtures;

/// Each type as PyPI `gguf` writes it, and the values that it reads back (`engine/tests/quant_fixture.py`).
#[test]
fn every_type_reads_as_an_independent_encoder_wrote_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/quant-fixture.bin");
    let file = gguf::File::open(path).expect("the fixture is in the repository");
    let mut pool = Pool::new(2).expect("a thread starts");
    for kind in TensorType::ALL {
        let tensor = file.tensor(&kind.to_string()).expect("the fixture has every type");
        let expected = file.tensor(&format!("{kind}.expected")).expect("and its values");
        let (columns, rows) = (tensor.dims[0] as usize, tensor.dims[1] as usize);
        let (matrix, _) = Matrix::load(&file, tensor, [columns, rows], &mut pool).expect("it loads");
        let expected: Vec<f32> = file.bytes(expected).chunks_exact(4).map(f32::from_bytes).collect();
        for isa in Isa::available() {
            for (row, expected) in expected.chunks_exact(columns).enumerate() {
                let mut found = vec![0.0; columns];
                matrix.row(isa, row, &mut found);
                assert_eq!(found, expected, "{kind}, row {row}, {}", isa.name());
            }
        }
    }
}

/// More rows than one slice of the load and than whole tiles: every row is where it belongs.
#[test]
fn rows_are_found_across_tiles_and_slices() {
    let (rows, columns) = (4099, 512);
    let data = fixtures::Random(3).blocks(TensorType::Q8_0, (rows * columns) as u64);
    let file = fixtures::open(gguf::write::Writer::new().tensor(
        "m",
        &[columns as u64, rows as u64],
        TensorType::Q8_0,
        data.clone(),
    ));
    let mut pool = Pool::new(2).expect("a thread starts");
    let tensor = file.tensor("m").expect("it was written");
    let (matrix, _) = Matrix::load(&file, tensor, [columns, rows], &mut pool).expect("it loads");
    let row_bytes = columns / 32 * 34;
    for row in [0, 15, 16, 1000, 4095, 4098] {
        let mut found = vec![0.0; columns];
        matrix.row(Isa::scalar(), row, &mut found);
        let expected: Vec<f32> = data[row * row_bytes..(row + 1) * row_bytes]
            .chunks_exact(34)
            .flat_map(|block| {
                let scale = f16_to_f32(u16::from_bytes(block));
                block[2..].iter().map(move |q| f32::from(*q as i8) * scale).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(found, expected, "row {row}");
    }
}

#[test]
fn a_changed_byte_changes_the_digest() {
    let digest = |change: u8| {
        let mut data = fixtures::Random(5).blocks(TensorType::Q4_0, 40 * 64);
        data[1000] ^= change;
        let file = fixtures::open(gguf::write::Writer::new().tensor("m", &[64, 40], TensorType::Q4_0, data));
        let tensor = file.tensor("m").expect("it was written");
        let mut pool = Pool::new(1).expect("no thread is started");
        Matrix::load(&file, tensor, [64, 40], &mut pool).expect("it loads").1
    };
    assert_eq!(digest(0), digest(0));
    assert_ne!(digest(0), digest(1));
}
