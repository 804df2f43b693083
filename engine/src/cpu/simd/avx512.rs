//! [`Simd`] on AVX-512 with VNNI: one register per vector.
#![expect(unsafe_code, reason = "intrinsics; the token proves that the CPU has them")]

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};

#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

/// SAFETY of all of them: an `Avx512` exists only where `detect` found the features; loads and stores take references
/// to arrays of the full width and do not need alignment.
macro_rules! intrinsics {
    ($e:expr) => {{
        // SAFETY: see above.
        unsafe { $e }
    }};
}

impl Avx512 {
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }

    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn inner<K: Kernel>(token: Avx512, kernel: K) -> K::Out {
            kernel.run(token)
        }
        intrinsics!(inner(self, kernel))
    }
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    const SIGNED_BYTES: bool = false;
    const ROWS_AT_ONCE: usize = 8;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        intrinsics!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        intrinsics!(_mm512_loadu_ps(x.as_ptr()))
    }

    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        intrinsics!(_mm512_storeu_ps(to.as_mut_ptr(), x))
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        intrinsics!(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())))
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F {
        intrinsics!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
            x.as_ptr().cast()
        )))))
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        intrinsics!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        intrinsics!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn abs(self, x: Self::F) -> Self::F {
        intrinsics!(_mm512_abs_ps(x))
    }

    #[inline(always)]
    fn exp2_of_shifted(self, shifted: Self::F) -> Self::F {
        intrinsics!(_mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted)),
            _mm512_set1_epi32(0x3f80_0000)
        )))
    }

    #[inline(always)]
    fn quantise(self, x: Self::F, inverse: f32) -> [i8; LANES] {
        let mut out = [0; LANES];
        // The conversion rounds to nearest, ties to even: Rust never changes the rounding mode.
        intrinsics!(_mm_storeu_si128(
            out.as_mut_ptr().cast(),
            _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse))))
        ));
        out
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        intrinsics!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn to_f32(self, x: Self::I) -> Self::F {
        intrinsics!(_mm512_cvtepi32_ps(x))
    }

    #[inline(always)]
    fn byte<const INDEX: usize>(self, x: Self::B) -> Self::F {
        let shift = intrinsics!(_mm_cvtsi32_si128(8 * INDEX as i32));
        intrinsics!(_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srl_epi32(x, shift), _mm512_set1_epi32(0xff))))
    }

    #[inline(always)]
    fn load_b(self, x: &[u8; 64]) -> Self::B {
        intrinsics!(_mm512_loadu_si512(x.as_ptr().cast()))
    }

    #[inline(always)]
    fn low_nibbles(self, x: Self::B) -> Self::B {
        intrinsics!(_mm512_and_si512(x, _mm512_set1_epi8(15)))
    }

    #[inline(always)]
    fn high_nibbles(self, x: Self::B) -> Self::B {
        intrinsics!(_mm512_and_si512(_mm512_srli_epi16::<4>(x), _mm512_set1_epi8(15)))
    }

    #[inline(always)]
    fn add_fifth_bits(self, x: Self::B, bits: u64) -> Self::B {
        intrinsics!(_mm512_mask_add_epi8(x, bits, x, _mm512_set1_epi8(16)))
    }

    #[inline(always)]
    fn dot7(self, acc: Self::I, weights: Self::B, a: i32) -> Self::I {
        intrinsics!(_mm512_dpbusd_epi32(acc, weights, _mm512_set1_epi32(a)))
    }

    #[inline(always)]
    fn join(self, high: Self::I, low: Self::I) -> Self::I {
        intrinsics!(_mm512_add_epi32(_mm512_slli_epi32::<8>(high), low))
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        intrinsics!(_mm_prefetch::<_MM_HINT_T0>(address.cast()))
    }

    #[inline(always)]
    fn dot8(self, acc: Self::I, weights: Self::B, a: i32) -> Self::I {
        self.dot7(acc, weights, a)
    }
}
