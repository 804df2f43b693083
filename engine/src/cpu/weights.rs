//! A matrix in memory: packed once from a GGUF tensor, read by the kernels and, row by row, by embedding lookup.
//! The layout of a tile is in `tiles`; the meaning of tensors is in `load`.

use gguf::TensorType;

use super::LoadError;
use super::buffer::{Buffer, Disjoint};
use super::pool::{Panicked, Pool};
use super::quant::{self, UNIT};
use super::simd::{Isa, Kernel, LANES, Simd, f16_to_f32};
use super::tiles::{Bf16, Element, FloatTiles, Format, Q4_0, Q4_1, Q4_K, Q5_0, Q5_K, Q6_K, Q8_0, Quants, Scale, Tiles};

/// Bytes of source packed before its pages are given back: bounds what a load holds twice.
const SLICE: usize = 4 << 20;

/// (rows, columns), columns contiguous in the source and a multiple of 32.
pub struct Matrix {
    pub rows: usize,
    pub columns: usize,
    pub data: Data,
}

#[expect(non_camel_case_types, reason = "the names every GGUF tool and file uses")]
pub enum Data {
    Q4_0(Tiles<Q4_0>),
    Q4_1(Tiles<Q4_1>),
    Q5_0(Tiles<Q5_0>),
    Q8_0(Tiles<Q8_0>),
    Q4_K(Tiles<Q4_K>),
    Q5_K(Tiles<Q5_K>),
    Q6_K(Tiles<Q6_K>),
    F32(FloatTiles<f32>),
    F16(FloatTiles<u16>),
    BF16(FloatTiles<Bf16>),
}

/// Runs `$body` with `$tiles` bound to the matrix's tiles: `quantised` and `float` arms may differ.
macro_rules! with_tiles {
    ($data:expr, quantised $q:ident => $quantised:expr, float $f:ident => $float:expr) => {
        match $data {
            $crate::cpu::weights::Data::Q4_0($q) => $quantised,
            $crate::cpu::weights::Data::Q4_1($q) => $quantised,
            $crate::cpu::weights::Data::Q5_0($q) => $quantised,
            $crate::cpu::weights::Data::Q8_0($q) => $quantised,
            $crate::cpu::weights::Data::Q4_K($q) => $quantised,
            $crate::cpu::weights::Data::Q5_K($q) => $quantised,
            $crate::cpu::weights::Data::Q6_K($q) => $quantised,
            $crate::cpu::weights::Data::F32($f) => $float,
            $crate::cpu::weights::Data::F16($f) => $float,
            $crate::cpu::weights::Data::BF16($f) => $float,
        }
    };
}
pub(super) use with_tiles;

/// Digest of the source bytes, tile by tile.
type Packed = Result<[u8; 32], Panicked>;

impl Matrix {
    /// Packs `tensor`, a matrix of any supported type, and gives the source's pages back. Also returns a digest of
    /// its bytes, which pass through the cache anyway.
    pub fn load(
        file: &gguf::File,
        tensor: &gguf::TensorInfo,
        [columns, rows]: [usize; 2],
        pool: &mut Pool,
    ) -> Result<(Self, [u8; 32]), LoadError> {
        if tensor.dims != [columns as u64, rows as u64] {
            let expected = vec![columns as u64, rows as u64];
            return Err(LoadError::Shape { tensor: tensor.name.clone(), found: tensor.dims.clone(), expected });
        }
        if !columns.is_multiple_of(UNIT) {
            return Err(LoadError::RowLength { tensor: tensor.name.clone(), found: columns });
        }
        let memory = |source| LoadError::Memory { tensor: tensor.name.clone(), source };
        let count = rows.div_ceil(LANES) * (columns / UNIT);
        let mut data = zeroed(tensor.kind, count).map_err(memory)?;
        let source = Source { tensor, bytes: file.bytes(tensor), kind: tensor.kind, rows, columns };
        let digest = with_tiles!(&mut data,
            quantised tiles => pack(tiles, source, file, pool),
            float tiles => pack_float(tiles, source, file, pool))?;
        Ok((Self { rows, columns, data }, digest))
    }

    pub fn units(&self) -> usize {
        self.columns / UNIT
    }

    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    pub fn is_quantised(&self) -> bool {
        with_tiles!(&self.data, quantised _tiles => true, float _tiles => false)
    }

    /// Row `row` as f32, into `out` (columns).
    pub fn row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        let first = row / LANES * self.units();
        with_tiles!(&self.data,
            quantised source => isa.run(Row { source, first, lane: row % LANES, out }),
            float source => isa.run(Row { source, first, lane: row % LANES, out }));
    }
}

fn zeroed(kind: TensorType, count: usize) -> std::io::Result<Data> {
    Ok(match kind {
        TensorType::Q4_0 => Data::Q4_0(Tiles::zeroed(count)?),
        TensorType::Q4_1 => Data::Q4_1(Tiles::zeroed(count)?),
        TensorType::Q5_0 => Data::Q5_0(Tiles::zeroed(count)?),
        TensorType::Q8_0 => Data::Q8_0(Tiles::zeroed(count)?),
        TensorType::Q4_K => Data::Q4_K(Tiles::zeroed(count)?),
        TensorType::Q5_K => Data::Q5_K(Tiles::zeroed(count)?),
        TensorType::Q6_K => Data::Q6_K(Tiles::zeroed(count)?),
        TensorType::F32 => Data::F32(FloatTiles(Buffer::zeroed(count)?)),
        TensorType::F16 => Data::F16(FloatTiles(Buffer::zeroed(count)?)),
        TensorType::BF16 => Data::BF16(FloatTiles(Buffer::zeroed(count)?)),
    })
}

/// A tensor's bytes as they lie in the file.
#[derive(Clone, Copy)]
struct Source<'a> {
    tensor: &'a gguf::TensorInfo,
    bytes: &'a [u8],
    kind: TensorType,
    rows: usize,
    columns: usize,
}

impl<'a> Source<'a> {
    fn row_bytes(&self) -> usize {
        (self.columns as u64 / self.kind.block_size() * self.kind.block_bytes()) as usize
    }

    /// The rows of one tile, each with its lane.
    fn rows(&self, tile: usize) -> impl Iterator<Item = (usize, &'a [u8])> {
        let (bytes, len) = (self.bytes, self.row_bytes());
        let first = tile * LANES;
        (first..self.rows.min(first + LANES)).map(move |row| (row - first, &bytes[row * len..(row + 1) * len]))
    }

    /// Calls `pack` for every tile, slice by slice, giving each slice's pages back once it is packed.
    fn each_tile(&self, file: &gguf::File, pool: &mut Pool, pack: &(dyn Fn(usize) + Sync)) -> Packed {
        let tile_bytes = LANES * self.row_bytes();
        let tiles = self.rows.div_ceil(LANES);
        let per_slice = (SLICE / tile_bytes).max(1);
        let mut digests = vec![[0; 32]; tiles];
        for first in (0..tiles).step_by(per_slice) {
            let count = per_slice.min(tiles - first);
            let slots = Disjoint::new(&mut digests[first..first + count]);
            pool.run(count, &|index, _| {
                let tile = first + index;
                let bytes = &self.bytes[tile * tile_bytes..self.bytes.len().min((tile + 1) * tile_bytes)];
                // SAFETY: one slot per task.
                #[expect(unsafe_code, reason = "each task writes its own slot")]
                let slot = unsafe { slots.slice(index..index + 1) };
                slot[0] = *blake3::hash(bytes).as_bytes();
                pack(tile);
            })?;
            self.release(file, first * tile_bytes, count * tile_bytes);
        }
        Ok(*blake3::hash(digests.as_flattened()).as_bytes())
    }

    /// Advice only: pages of the mapping that stay are dropped when memory is short.
    fn release(&self, file: &gguf::File, from: usize, len: usize) {
        let offset = self.tensor.offset + from as u64;
        let len = (len as u64).min(self.tensor.len - from as u64);
        if let Err(error) = file.release(&gguf::TensorInfo { offset, len, ..self.tensor.clone() }) {
            tracing::debug!(tensor = self.tensor.name, %error, "source pages stay resident");
        }
    }
}

/// The quantised layouts.
#[expect(unsafe_code, reason = "each task writes the units of its own tile")]
fn pack<F: Format>(tiles: &mut Tiles<F>, source: Source, file: &gguf::File, pool: &mut Pool) -> Packed {
    let units = source.columns / UNIT;
    let quants = Disjoint::new(&mut tiles.quants);
    let scales = Disjoint::new(&mut tiles.scales);
    let mins = Disjoint::new(&mut tiles.mins);
    source.each_tile(file, pool, &|tile| {
        let range = tile * units..(tile + 1) * units;
        // SAFETY: every tile is packed by one task, and tiles have disjoint ranges.
        let (quants, scales) = unsafe { (quants.slice(range.clone()), scales.slice(range.clone())) };
        // SAFETY: as above; a format without minimums has an empty buffer and an empty range.
        let mins = unsafe { mins.slice(if F::HAS_MIN { range } else { 0..0 }) };
        for (lane, row) in source.rows(tile) {
            for index in 0..units {
                let unit = quant::unit(source.kind, row, index).expect("invariant: a quantised type has units");
                quants[index].set(lane, &unit.q);
                scales[index].set(lane, unit.scale);
                if F::HAS_MIN {
                    mins[index].set(lane, [unit.min; 2]);
                }
            }
        }
    })
}

#[expect(unsafe_code, reason = "each task writes the units of its own tile")]
fn pack_float<E: Element + FromBytes>(
    tiles: &mut FloatTiles<E>,
    source: Source,
    file: &gguf::File,
    pool: &mut Pool,
) -> Packed {
    let units = source.columns / UNIT;
    let all = Disjoint::new(&mut tiles.0);
    source.each_tile(file, pool, &|tile| {
        // SAFETY: every tile is packed by one task, and tiles have disjoint ranges.
        let out = unsafe { all.slice(tile * units..(tile + 1) * units) };
        for (lane, row) in source.rows(tile) {
            for (column, bytes) in row.chunks_exact(size_of::<E>()).enumerate() {
                out[column / UNIT][column % UNIT][lane] = E::from_bytes(bytes);
            }
        }
    })
}

/// Little-endian elements of the float types.
trait FromBytes {
    fn from_bytes(bytes: &[u8]) -> Self;
}

impl FromBytes for f32 {
    fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl FromBytes for u16 {
    fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_le_bytes([bytes[0], bytes[1]])
    }
}

impl FromBytes for Bf16 {
    fn from_bytes(bytes: &[u8]) -> Self {
        Self(u16::from_bytes(bytes))
    }
}

struct Row<'a, T> {
    source: &'a T,
    first: usize,
    lane: usize,
    out: &'a mut [f32],
}

impl<T: super::tiles::Source> Kernel for Row<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut lanes = [0.0; LANES];
        for (unit, out) in self.out.as_chunks_mut::<UNIT>().0.iter_mut().enumerate() {
            for (group, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                for (column, out) in self.source.columns(s, self.first + unit, group).into_iter().zip(out) {
                    s.store(column, &mut lanes);
                    *out = lanes[self.lane];
                }
            }
        }
    }
}

/// A vector of f32 (norm weights), of any float type.
pub fn vector(file: &gguf::File, tensor: &gguf::TensorInfo, len: usize) -> Result<Vec<f32>, LoadError> {
    if tensor.dims != [len as u64] {
        return Err(LoadError::Shape {
            tensor: tensor.name.clone(),
            found: tensor.dims.clone(),
            expected: vec![len as u64],
        });
    }
    let bytes = file.bytes(tensor);
    match tensor.kind {
        TensorType::F32 => Ok(bytes.chunks_exact(4).map(f32::from_bytes).collect()),
        TensorType::F16 => Ok(bytes.chunks_exact(2).map(|b| f16_to_f32(u16::from_bytes(b))).collect()),
        TensorType::BF16 => {
            Ok(bytes.chunks_exact(2).map(|b| f32::from_bits(u32::from(u16::from_bytes(b)) << 16)).collect())
        }
        kind => Err(LoadError::Type { tensor: tensor.name.clone(), kind, expected: "F32, F16 or BF16" }),
    }
}

#[cfg(test)]
mod tests;
