//! Sixteen lanes of arithmetic behind one trait, and which instruction set this machine runs it on. A kernel is written
//! once, over [`Simd`]; every operation here is exact or correctly rounded, so all instruction sets give the same bits.
//! Kernels themselves, and anything that knows of models, live elsewhere.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
use scalar::Scalar;

/// Lanes of every vector. Output rows of a matrix, positions of a KV block and reduction trees all come in sixteens.
pub const LANES: usize = 16;

/// A value of an implementing type proves that its instructions may run here: that is what makes the methods safe.
pub trait Simd: Copy {
    /// 16 x f32.
    type F: Copy;
    /// 16 x i32.
    type I: Copy;
    /// 16 lanes of 4 unsigned bytes.
    type B: Copy;

    /// Whether [`dot8`](Simd::dot8) takes 128 off each weight by itself; if not, the caller starts the sum at
    /// -128 times the sum of the activations.
    const SIGNED_BYTES: bool;

    /// Activation rows that a product takes at once: as many as the registers hold, and no more code than that is worth.
    const ROWS_AT_ONCE: usize;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32; LANES]);
    fn load_f16(self, x: &[u16; LANES]) -> Self::F;
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, x: Self::F) -> Self::F;
    /// 2^n, where n is the integer that `shifted` = n + 1.5 * 2^23 carries in its low mantissa bits; -126 <= n <= 127.
    fn exp2_of_shifted(self, shifted: Self::F) -> Self::F;
    /// x * inverse, rounded to the nearest integer (ties to even). |x * inverse| <= 127.
    fn quantise(self, x: Self::F, inverse: f32) -> [i8; LANES];

    fn splat_i(self, x: i32) -> Self::I;
    fn to_f32(self, x: Self::I) -> Self::F;
    /// Byte `INDEX` (0..4) of each lane as a number.
    fn byte<const INDEX: usize>(self, x: Self::B) -> Self::F;
    fn load_b(self, x: &[u8; 64]) -> Self::B;
    fn low_nibbles(self, x: Self::B) -> Self::B;
    fn high_nibbles(self, x: Self::B) -> Self::B;
    /// Adds 16 to each byte whose bit in `bits` (bit i: byte i) is set.
    fn add_fifth_bits(self, x: Self::B, bits: u64) -> Self::B;
    /// acc + the dot product of each lane's 4 weights (at most 7 bits each) with the 4 signed bytes of `a`.
    fn dot7(self, acc: Self::I, weights: Self::B, a: i32) -> Self::I;
    /// The same for 8-bit weights that stand for weight - 128; see [`SIGNED_BYTES`](Simd::SIGNED_BYTES).
    fn dot8(self, acc: Self::I, weights: Self::B, a: i32) -> Self::I;

    /// 256 * high + low.
    fn join(self, high: Self::I, low: Self::I) -> Self::I;
    /// Asks for the cache line at `address`, which may be any.
    fn prefetch(self, address: *const u8);

    /// Sum of all lanes in the fixed tree: 16 to 8 (i, i + 8), to 4, to 2, to 1.
    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        tree(&mut lanes, |a, b| a + b)
    }

    #[inline(always)]
    fn largest(self, x: Self::F) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        tree(&mut lanes, |a, b| if a > b { a } else { b })
    }
}

#[inline(always)]
fn tree(lanes: &mut [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Code to run with the best instructions: [`Isa::run`] compiles `run` once per instruction set.
/// Implementations are `#[inline(always)]` and use no closures around vectors (`map`, `from_fn`): what the compiler does
/// not inline is compiled without the instructions, and each operation becomes a call.
pub trait Kernel {
    type Out;
    fn run<S: Simd>(self, simd: S) -> Self::Out;
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug)]
pub struct Isa(Level);

#[derive(Clone, Copy, Debug)]
enum Level {
    Scalar(Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// The best one here.
    pub fn detect() -> Self {
        let mut all = Self::available();
        all.pop().unwrap_or(Self::scalar())
    }

    /// Plain Rust: the definition of what the others compute.
    pub fn scalar() -> Self {
        Self(Level::Scalar(Scalar))
    }

    /// All that this machine has, the best one last.
    pub fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "only scalar there"))]
        let mut all = vec![Self::scalar()];
        #[cfg(target_arch = "x86_64")]
        all.extend(Avx2::detect().map(|token| Self(Level::Avx2(token))));
        #[cfg(target_arch = "x86_64")]
        all.extend(Avx512::detect().map(|token| Self(Level::Avx512(token))));
        all
    }

    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => "avx512-vnni",
        }
    }

    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.0 {
            Level::Scalar(token) => kernel.run(token),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(token) => token.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(token) => token.run(kernel),
        }
    }
}

/// Exact for every finite half; infinities and NaN are kept.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    half::f16::from_bits(half).to_f32_const()
}
