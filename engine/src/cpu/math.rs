//! Own elementary functions: libm differs between systems and instruction sets, these do not.
//! The vector ones take any [`Simd`]; the f64 ones run once per load or once per row.

use std::f64::consts::{FRAC_PI_2, LN_2, SQRT_2};

use super::simd::Simd;

/// e^x within 2 units in the last place; below -87 the smallest normal numbers, above 88 the largest.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    const SHIFT: f32 = 12_582_912.0;
    // ln 2 in two parts: the first has trailing zeros, so that n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = s.min(s.max(x, s.splat(-87.0)), s.splat(88.0));
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(SHIFT));
    let n = s.sub(shifted, s.splat(SHIFT));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    // Minimax polynomial of (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2.
    let mut p = s.splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        p = s.fma(p, r, s.splat(coefficient));
    }
    let p = s.fma(p, s.mul(r, r), s.add(r, s.splat(1.0)));
    s.mul(p, s.exp2_of_shifted(shifted))
}

/// x / (1 + e^-x).
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(x, s.add(s.splat(1.0), e))
}

/// GELU by its tanh form: 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3).
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    let cubic = s.fma(s.mul(s.splat(0.044_715), s.mul(x, x)), x, x);
    let e = exp(s, s.mul(s.splat(-2.0 * 0.797_884_6), cubic));
    s.div(x, s.add(s.splat(1.0), e))
}

/// sin and cos of an angle of any size that a context can reach (below 2^31 radians).
pub fn sin_cos(angle: f64) -> (f64, f64) {
    let quarter = (angle / FRAC_PI_2).round_ties_even();
    // pi / 2 in two parts, so that the reduction keeps full precision.
    let r = quarter.mul_add(-FRAC_PI_2, angle);
    let r = quarter.mul_add(-6.123_233_995_736_766e-17, r);
    let r2 = r * r;
    let (mut sin, mut cos) = (0.0, 0.0);
    // Taylor series: |r| <= pi / 4, so the first term left out is below 1e-17.
    for k in (0..9_u32).rev() {
        let k = f64::from(2 * k);
        sin = 1.0 - sin_tail(r2, k) * sin;
        cos = 1.0 - cos_tail(r2, k) * cos;
    }
    let sin = sin * r;
    match quarter.rem_euclid(4.0) as u32 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

fn sin_tail(r2: f64, k: f64) -> f64 {
    r2 / ((k + 2.0) * (k + 3.0))
}

fn cos_tail(r2: f64, k: f64) -> f64 {
    r2 / ((k + 1.0) * (k + 2.0))
}

/// Natural logarithm of a positive normal number.
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // 2 atanh z = 2 (z + z^3 / 3 + ...), |z| <= 0.172.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let series = (0..12_u32).rev().fold(0.0, |sum, k| sum * z * z + 1.0 / f64::from(2 * k + 1));
    f64::from(exponent) * LN_2 + 2.0 * z * series
}

/// e^x for |x| < 700.
pub fn exp_f64(x: f64) -> f64 {
    let n = (x / LN_2).round_ties_even();
    let r = x - n * LN_2;
    let series = (1..22_u32).rev().fold(1.0, |sum, k| sum * r / f64::from(k) + 1.0);
    series * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests;
