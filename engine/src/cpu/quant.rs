//! GGUF's quantised blocks, read 32 weights at a time. How the engine lays weights out in memory, and any arithmetic
//! on them, is not known here.

use gguf::TensorType;

use super::simd::f16_to_f32;

/// Weights per unit: every quantised type stores whole units of a row.
pub const UNIT: usize = 32;

/// 32 consecutive weights of one row. A weight is `(q - zero) * scale` or, where the type has minimums,
/// `q * scale + min`; the two scales are those of the two halves (equal but for Q6_K).
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    pub q: [u8; UNIT],
    pub scale: [f32; 2],
    pub min: f32,
}

/// Unit `index` of a row of quantised blocks, or `None` for the float types, which have no units.
#[inline]
pub fn unit(kind: TensorType, row: &[u8], index: usize) -> Option<Unit> {
    let block = |bytes: usize| &row[index * bytes..(index + 1) * bytes];
    let super_block = |bytes: usize| &row[index / 8 * bytes..(index / 8 + 1) * bytes];
    Some(match kind {
        TensorType::Q4_0 => {
            let b = block(18);
            plain(nibbles(&b[2..18]), half(b, 0), 0.0)
        }
        TensorType::Q4_1 => {
            let b = block(20);
            plain(nibbles(&b[4..20]), half(b, 0), half(b, 2))
        }
        TensorType::Q5_0 => {
            let b = block(22);
            let fifth = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
            let q = nibbles(&b[6..22]);
            plain(std::array::from_fn(|i| q[i] | ((fifth >> i & 1) << 4) as u8), half(b, 0), 0.0)
        }
        TensorType::Q8_0 => {
            let b = block(34);
            // Stored signed; ours are unsigned around 128.
            plain(std::array::from_fn(|i| b[2 + i] ^ 0x80), half(b, 0), 0.0)
        }
        TensorType::Q4_K => q4_k(super_block(144), index % 8),
        TensorType::Q5_K => q5_k(super_block(176), index % 8),
        TensorType::Q6_K => q6_k(super_block(210), index % 8),
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => return None,
    })
}

fn plain(q: [u8; UNIT], scale: f32, min: f32) -> Unit {
    Unit { q, scale: [scale; 2], min }
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Low nibbles are weights 0..16, high ones 16..32.
fn nibbles(bytes: &[u8]) -> [u8; UNIT] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

/// d, dmin, 12 bytes of 6-bit scales and minimums, then nibbles: unit pairs share 32 bytes.
fn q4_k(b: &[u8], unit: usize) -> Unit {
    let (scale, min) = k_scale(b, unit);
    let packed = &b[16 + unit / 2 * 32..];
    plain(std::array::from_fn(|i| packed[i] >> (unit % 2 * 4) & 15), scale, min)
}

/// As Q4_K, with 32 bytes of fifth bits (bit `unit` of byte i) before the nibbles.
fn q5_k(b: &[u8], unit: usize) -> Unit {
    let (scale, min) = k_scale(b, unit);
    let (fifth, packed) = (&b[16..48], &b[48 + unit / 2 * 32..]);
    let q = std::array::from_fn(|i| packed[i] >> (unit % 2 * 4) & 15 | (fifth[i] >> unit & 1) << 4);
    plain(q, scale, min)
}

fn k_scale(b: &[u8], unit: usize) -> (f32, f32) {
    let packed = &b[4..16];
    let (scale, min) = if unit < 4 {
        (packed[unit] & 63, packed[unit + 4] & 63)
    } else {
        let low = packed[unit + 4];
        (low & 15 | packed[unit - 4] >> 6 << 4, low >> 4 | packed[unit] >> 6 << 4)
    };
    (half(b, 0) * f32::from(scale), -(half(b, 2) * f32::from(min)))
}

/// 128 bytes of low nibbles, 64 of high pairs, 16 signed scales (one for each 16 weights), d. Units 0..4 share the
/// first half of nibbles and pairs, 4..8 the second.
fn q6_k(b: &[u8], unit: usize) -> Unit {
    let (part, quarter) = (unit / 4, unit % 4);
    let low = &b[part * 64 + quarter % 2 * 32..];
    let high = &b[128 + part * 32..];
    let d = half(b, 208);
    let scale = |i: usize| d * f32::from(b[192 + unit * 2 + i] as i8);
    // Stored around 32; ours are around 128.
    let q = std::array::from_fn(|i| {
        let six = low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (quarter * 2) & 3) << 4;
        six + (128 - 32)
    });
    Unit { q, scale: [scale(0), scale(1)], min: 0.0 }
}
