//! Weights as the kernels read them: tiles of 16 rows, in each tile units of 32 columns in order, and in each unit the
//! 16 rows side by side, so that one vector holds the same four columns of all 16 rows. What multiplies them is in
//! `gemm`; where they come from in `weights`.
#![expect(non_camel_case_types, reason = "the names every GGUF tool and file uses")]

use std::io;

use super::buffer::{Buffer, Plain};
use super::quant::UNIT;
use super::simd::{LANES, Simd};

/// Groups of 4 columns in a unit: a vector of bytes holds 4 columns of 16 rows.
pub const GROUPS: usize = UNIT / 4;

/// Anything that yields weights as f32: quantised tiles and float tiles.
pub trait Source: Sync {
    /// Columns 4 * group ..+ 4 of unit `index`, lanes over rows.
    fn columns<S: Simd>(&self, s: S, index: usize, group: usize) -> [S::F; 4];
}

/// A quantised type's layout. A weight is `(q - ZERO) * scale`, or `q * scale + min` if it `HAS_MIN`.
pub trait Format: Send + Sync + 'static {
    type Quants: Quants;
    type Scale: Scale;
    const ZERO: u8;
    const HAS_MIN: bool;
}

/// The packed integers of one unit of 16 rows.
pub trait Quants: Plain {
    /// Weights of 8 bits stand for weight - 128 and need [`Simd::dot8`].
    const EIGHT_BITS: bool;
    fn group<S: Simd>(&self, s: S, group: usize) -> S::B;
    fn set(&mut self, row: usize, q: &[u8; UNIT]);
}

/// The scales (or minimums) of one unit of 16 rows: exactly as precise as in the file.
pub trait Scale: Plain {
    /// The two halves of a unit have scales of their own.
    const HALVES: bool;
    fn load<S: Simd>(&self, s: S, half: usize) -> S::F;
    fn set(&mut self, row: usize, scale: [f32; 2]);
}

macro_rules! layout {
    ($name:ident, $quants:ty, $scale:ty, zero $zero:expr, min $min:expr) => {
        pub struct $name;
        impl Format for $name {
            type Quants = $quants;
            type Scale = $scale;
            const ZERO: u8 = $zero;
            const HAS_MIN: bool = $min;
        }
    };
}

type Halfs = [u16; LANES];
type Floats = [f32; LANES];

layout!(Q4_0, Nibbles, Halfs, zero 8, min false);
layout!(Q4_1, Nibbles, Halfs, zero 0, min true);
layout!(Q5_0, Fifths, Halfs, zero 16, min false);
layout!(Q8_0, Bytes, Halfs, zero 128, min false);
// The K-quants' scales are products of a half and a small integer: exact in f32, not in f16.
layout!(Q4_K, Nibbles, Floats, zero 0, min true);
layout!(Q5_K, Fifths, Floats, zero 0, min true);
layout!(Q6_K, Bytes, [Floats; 2], zero 128, min false);

/// Chunk c holds group c in the low nibbles and group c + 4 in the high ones.
type Nibbles = [[u8; 64]; 4];

impl Quants for Nibbles {
    const EIGHT_BITS: bool = false;

    #[inline(always)]
    fn group<S: Simd>(&self, s: S, group: usize) -> S::B {
        let packed = s.load_b(&self[group % 4]);
        if group < 4 { s.low_nibbles(packed) } else { s.high_nibbles(packed) }
    }

    fn set(&mut self, row: usize, q: &[u8; UNIT]) {
        for (chunk, bytes) in self.iter_mut().enumerate() {
            for i in 0..4 {
                bytes[4 * row + i] = q[4 * chunk + i] & 15 | q[16 + 4 * chunk + i] << 4;
            }
        }
    }
}

/// Nibbles, then for each group 64 fifth bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Fifths {
    nibbles: Nibbles,
    fifths: [u64; GROUPS],
}

// SAFETY: two arrays of plain numbers, 320 bytes without padding.
#[expect(unsafe_code, reason = "any bytes are a value")]
unsafe impl Plain for Fifths {}

impl Quants for Fifths {
    const EIGHT_BITS: bool = false;

    #[inline(always)]
    fn group<S: Simd>(&self, s: S, group: usize) -> S::B {
        s.add_fifth_bits(self.nibbles.group(s, group), self.fifths[group])
    }

    fn set(&mut self, row: usize, q: &[u8; UNIT]) {
        self.nibbles.set(row, q);
        for (fifths, q) in self.fifths.iter_mut().zip(q.as_chunks::<4>().0) {
            let bits = (0..4).map(|i| u64::from(q[i] >> 4 & 1) << i).sum::<u64>();
            *fifths = *fifths & !(15 << (4 * row)) | bits << (4 * row);
        }
    }
}

type Bytes = [[u8; 64]; GROUPS];

impl Quants for Bytes {
    const EIGHT_BITS: bool = true;

    #[inline(always)]
    fn group<S: Simd>(&self, s: S, group: usize) -> S::B {
        s.load_b(&self[group])
    }

    fn set(&mut self, row: usize, q: &[u8; UNIT]) {
        for (bytes, q) in self.iter_mut().zip(q.as_chunks::<4>().0) {
            bytes[4 * row..4 * row + 4].copy_from_slice(q);
        }
    }
}

impl Scale for Halfs {
    const HALVES: bool = false;

    #[inline(always)]
    fn load<S: Simd>(&self, s: S, _half: usize) -> S::F {
        s.load_f16(self)
    }

    fn set(&mut self, row: usize, scale: [f32; 2]) {
        // It was a half in the file: nothing is rounded.
        self[row] = half::f16::from_f32_const(scale[0]).to_bits();
    }
}

impl Scale for Floats {
    const HALVES: bool = false;

    #[inline(always)]
    fn load<S: Simd>(&self, s: S, _half: usize) -> S::F {
        s.load(self)
    }

    fn set(&mut self, row: usize, scale: [f32; 2]) {
        self[row] = scale[0];
    }
}

impl Scale for [Floats; 2] {
    const HALVES: bool = true;

    #[inline(always)]
    fn load<S: Simd>(&self, s: S, half: usize) -> S::F {
        s.load(&self[half])
    }

    fn set(&mut self, row: usize, scale: [f32; 2]) {
        for (half, scale) in self.iter_mut().zip(scale) {
            half[row] = scale;
        }
    }
}

/// A quantised matrix; unit `u` of tile `t` is entry `t * units + u` of each buffer.
pub struct Tiles<F: Format> {
    pub quants: Buffer<F::Quants>,
    pub scales: Buffer<F::Scale>,
    /// Empty unless the format has minimums.
    pub mins: Buffer<F::Scale>,
}

impl<F: Format> Tiles<F> {
    pub fn zeroed(count: usize) -> io::Result<Self> {
        Ok(Self {
            quants: Buffer::zeroed(count)?,
            scales: Buffer::zeroed(count)?,
            mins: Buffer::zeroed(if F::HAS_MIN { count } else { 0 })?,
        })
    }
}

impl<F: Format> Source for Tiles<F> {
    #[inline(always)]
    fn columns<S: Simd>(&self, s: S, index: usize, group: usize) -> [S::F; 4] {
        let q = self.quants[index].group(s, group);
        let scale = self.scales[index].load(s, group / (GROUPS / 2));
        // Two roundings, as every other reader of these files has: not fused.
        let (a, b, c, d) = (s.byte::<0>(q), s.byte::<1>(q), s.byte::<2>(q), s.byte::<3>(q));
        if F::HAS_MIN {
            let min = self.mins[index].load(s, 0);
            [
                s.add(s.mul(a, scale), min),
                s.add(s.mul(b, scale), min),
                s.add(s.mul(c, scale), min),
                s.add(s.mul(d, scale), min),
            ]
        } else {
            let zero = s.splat(f32::from(F::ZERO));
            [
                s.mul(s.sub(a, zero), scale),
                s.mul(s.sub(b, zero), scale),
                s.mul(s.sub(c, zero), scale),
                s.mul(s.sub(d, zero), scale),
            ]
        }
    }
}

/// A number as a float matrix or the KV cache stores it.
pub trait Element: Plain {
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F;
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load(x)
    }
}

/// IEEE half, as its bits.
impl Element for u16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load_f16(x)
    }
}

/// bfloat16, as its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Bf16(pub u16);

// SAFETY: a plain number.
#[expect(unsafe_code, reason = "any bytes are a value")]
unsafe impl Plain for Bf16 {}

impl Element for Bf16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load_bf16(&x.map(|Self(bits)| bits))
    }
}

/// A float matrix: unit `index` holds 32 columns, each with its 16 rows.
pub struct FloatTiles<E: Plain>(pub Buffer<[[E; LANES]; UNIT]>);

impl<E: Element> Source for FloatTiles<E> {
    #[inline(always)]
    fn columns<S: Simd>(&self, s: S, index: usize, group: usize) -> [S::F; 4] {
        let unit = &self.0[index];
        let columns = &unit[4 * group..4 * group + 4];
        [E::load(s, &columns[0]), E::load(s, &columns[1]), E::load(s, &columns[2]), E::load(s, &columns[3])]
    }
}
