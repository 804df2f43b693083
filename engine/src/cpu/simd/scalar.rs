//! [`Simd`] in plain Rust: the definition of every operation, and the path of machines without AVX2.

use super::{LANES, Simd, f16_to_f32};

#[derive(Clone, Copy, Debug)]
pub struct Scalar;

#[inline(always)]
fn map2(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];

    const SIGNED_BYTES: bool = true;
    const ROWS_AT_ONCE: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        *x
    }

    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        *to = x;
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        x.map(f16_to_f32)
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F {
        x.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, x: Self::F) -> Self::F {
        x.map(f32::abs)
    }

    #[inline(always)]
    fn exp2_of_shifted(self, shifted: Self::F) -> Self::F {
        shifted.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(0x3f80_0000)))
    }

    #[inline(always)]
    fn quantise(self, x: Self::F, inverse: f32) -> [i8; LANES] {
        // Adding 1.5 * 2^23 leaves no room for a fraction: the sum is rounded, ties to even, by the addition itself.
        const SHIFT: f32 = 12_582_912.0;
        x.map(|x| ((x * inverse + SHIFT) - SHIFT) as i8)
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        [x; LANES]
    }

    #[inline(always)]
    fn to_f32(self, x: Self::I) -> Self::F {
        x.map(|x| x as f32)
    }

    #[inline(always)]
    fn byte<const INDEX: usize>(self, x: Self::B) -> Self::F {
        std::array::from_fn(|i| f32::from(x[4 * i + INDEX]))
    }

    #[inline(always)]
    fn load_b(self, x: &[u8; 64]) -> Self::B {
        *x
    }

    #[inline(always)]
    fn low_nibbles(self, x: Self::B) -> Self::B {
        x.map(|x| x & 15)
    }

    #[inline(always)]
    fn high_nibbles(self, x: Self::B) -> Self::B {
        x.map(|x| x >> 4)
    }

    #[inline(always)]
    fn add_fifth_bits(self, x: Self::B, bits: u64) -> Self::B {
        std::array::from_fn(|i| x[i] + ((bits >> i & 1) << 4) as u8)
    }

    #[inline(always)]
    fn dot7(self, acc: Self::I, weights: Self::B, a: i32) -> Self::I {
        let a = a.to_le_bytes().map(|byte| i32::from(byte as i8));
        std::array::from_fn(|i| {
            let weights = &weights[4 * i..4 * i + 4];
            acc[i] + (0..4).map(|j| i32::from(weights[j]) * a[j]).sum::<i32>()
        })
    }

    #[inline(always)]
    fn join(self, high: Self::I, low: Self::I) -> Self::I {
        std::array::from_fn(|i| (high[i] << 8).wrapping_add(low[i]))
    }

    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}

    #[inline(always)]
    fn dot8(self, acc: Self::I, weights: Self::B, a: i32) -> Self::I {
        let a = a.to_le_bytes().map(|byte| i32::from(byte as i8));
        std::array::from_fn(|i| {
            let weights = &weights[4 * i..4 * i + 4];
            acc[i] + (0..4).map(|j| (i32::from(weights[j]) - 128) * a[j]).sum::<i32>()
        })
    }
}
