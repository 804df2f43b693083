//! [`Simd`] on AVX2 with FMA and F16C: two registers per vector.
#![expect(unsafe_code, reason = "intrinsics; the token proves that the CPU has them")]

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};

#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// SAFETY of all of them: an `Avx2` exists only where `detect` found the features; loads and stores stay inside
/// arrays of the full width (halves at 0 and 8 lanes) and do not need alignment.
macro_rules! intrinsics {
    ($e:expr) => {{
        // SAFETY: see above.
        unsafe { $e }
    }};
}

macro_rules! both {
    ($f:ident, $($x:expr),+) => {
        intrinsics!([$f($($x[0]),+), $f($($x[1]),+)])
    };
}

impl Avx2 {
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"))
            .then_some(Self(()))
    }

    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<K: Kernel>(token: Avx2, kernel: K) -> K::Out {
            kernel.run(token)
        }
        intrinsics!(inner(self, kernel))
    }
}

impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    const SIGNED_BYTES: bool = true;
    const ROWS_AT_ONCE: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [intrinsics!(_mm256_set1_ps(x)); 2]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        intrinsics!([_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))])
    }

    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        intrinsics!({
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);
        })
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        let x = intrinsics!([_mm_loadu_si128(x.as_ptr().cast()), _mm_loadu_si128(x.as_ptr().add(8).cast())]);
        both!(_mm256_cvtph_ps, x)
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F {
        let x = intrinsics!([_mm_loadu_si128(x.as_ptr().cast()), _mm_loadu_si128(x.as_ptr().add(8).cast())]);
        let x = both!(_mm256_cvtepu16_epi32, x);
        let x = intrinsics!([_mm256_slli_epi32::<16>(x[0]), _mm256_slli_epi32::<16>(x[1])]);
        both!(_mm256_castsi256_ps, x)
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(_mm256_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    fn abs(self, x: Self::F) -> Self::F {
        let sign = [intrinsics!(_mm256_set1_ps(-0.0)); 2];
        both!(_mm256_andnot_ps, sign, x)
    }

    #[inline(always)]
    fn exp2_of_shifted(self, shifted: Self::F) -> Self::F {
        let x = both!(_mm256_castps_si256, shifted);
        let exponent = intrinsics!([_mm256_slli_epi32::<23>(x[0]), _mm256_slli_epi32::<23>(x[1])]);
        let one = self.splat_i(0x3f80_0000);
        let x = both!(_mm256_add_epi32, exponent, one);
        both!(_mm256_castsi256_ps, x)
    }

    #[inline(always)]
    fn quantise(self, x: Self::F, inverse: f32) -> [i8; LANES] {
        let mut out = [0; LANES];
        // The conversion rounds to nearest, ties to even: Rust never changes the rounding mode.
        let x = self.mul(x, self.splat(inverse));
        let [low, high] = both!(_mm256_cvtps_epi32, x);
        intrinsics!({
            // Packing works within 128-bit halves: quarters come out as 0, 2, 1, 3.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
        });
        out
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        [intrinsics!(_mm256_set1_epi32(x)); 2]
    }

    #[inline(always)]
    fn to_f32(self, x: Self::I) -> Self::F {
        both!(_mm256_cvtepi32_ps, x)
    }

    #[inline(always)]
    fn byte<const INDEX: usize>(self, x: Self::B) -> Self::F {
        let shift = intrinsics!(_mm_cvtsi32_si128(8 * INDEX as i32));
        let x = intrinsics!([_mm256_srl_epi32(x[0], shift), _mm256_srl_epi32(x[1], shift)]);
        let byte = self.splat_i(0xff);
        let x = both!(_mm256_and_si256, x, byte);
        both!(_mm256_cvtepi32_ps, x)
    }

    #[inline(always)]
    fn load_b(self, x: &[u8; 64]) -> Self::B {
        intrinsics!([_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x.as_ptr().add(32).cast())])
    }

    #[inline(always)]
    fn low_nibbles(self, x: Self::B) -> Self::B {
        let mask = self.splat_i(0x0f0f_0f0f);
        both!(_mm256_and_si256, x, mask)
    }

    #[inline(always)]
    fn high_nibbles(self, x: Self::B) -> Self::B {
        let mask = self.splat_i(0x0f0f_0f0f);
        let x = intrinsics!([_mm256_srli_epi16::<4>(x[0]), _mm256_srli_epi16::<4>(x[1])]);
        both!(_mm256_and_si256, x, mask)
    }

    #[inline(always)]
    fn add_fifth_bits(self, x: Self::B, bits: u64) -> Self::B {
        [fifth_bits_of_half(x[0], bits as u32), fifth_bits_of_half(x[1], (bits >> 32) as u32)]
    }

    #[inline(always)]
    fn dot7(self, acc: Self::I, weights: Self::B, a: i32) -> Self::I {
        // Two products of at most 127 * 127 fit in 16 bits: the saturation of maddubs never acts.
        let (a, ones) = (self.splat_i(a), self.splat_i(0x0001_0001));
        let pairs = both!(_mm256_maddubs_epi16, weights, a);
        let sums = both!(_mm256_madd_epi16, pairs, ones);
        both!(_mm256_add_epi32, acc, sums)
    }

    #[inline(always)]
    fn join(self, high: Self::I, low: Self::I) -> Self::I {
        let high = intrinsics!([_mm256_slli_epi32::<8>(high[0]), _mm256_slli_epi32::<8>(high[1])]);
        both!(_mm256_add_epi32, high, low)
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        intrinsics!(_mm_prefetch::<_MM_HINT_T0>(address.cast()))
    }

    #[inline(always)]
    fn dot8(self, acc: Self::I, weights: Self::B, a: i32) -> Self::I {
        // As |w| * (a with w's sign): |w| <= 128 and |a| <= 127, so two products still fit in 16 bits.
        let (a, flip) = (self.splat_i(a), self.splat_i(0x8080_8080_u32 as i32));
        let signed = both!(_mm256_xor_si256, weights, flip);
        let a = both!(_mm256_sign_epi8, a, signed);
        let size = both!(_mm256_abs_epi8, signed);
        let ones = self.splat_i(0x0001_0001);
        let pairs = both!(_mm256_maddubs_epi16, size, a);
        let sums = both!(_mm256_madd_epi16, pairs, ones);
        both!(_mm256_add_epi32, acc, sums)
    }
}

/// Adds 16 to the bytes whose bit is set: byte i looks at byte i / 8 of the bits, and in it at bit i % 8.
#[inline(always)]
fn fifth_bits_of_half(x: __m256i, bits: u32) -> __m256i {
    intrinsics!({
        let source = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), source);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
        _mm256_add_epi8(x, _mm256_and_si256(set, _mm256_set1_epi8(16)))
    })
}
