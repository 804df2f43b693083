use super::*;
use crate::cpu::simd::{Isa, Kernel, LANES};

#[derive(Clone, Copy)]
enum Function {
    Exp,
    Silu,
    Gelu,
}

struct Apply(Function, [f32; LANES]);

impl Kernel for Apply {
    type Out = [f32; LANES];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; LANES] {
        let Self(function, mut x) = self;
        let y = match function {
            Function::Exp => exp(s, s.load(&x)),
            Function::Silu => silu(s, s.load(&x)),
            Function::Gelu => gelu(s, s.load(&x)),
        };
        s.store(y, &mut x);
        x
    }
}

fn reference(function: Function, x: f64) -> f64 {
    match function {
        Function::Exp => x.exp(),
        Function::Silu => x / (1.0 + (-x).exp()),
        // As a quotient: 1 + tanh would cancel to nothing for negative x.
        Function::Gelu => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / (1.0 + (-2.0 * u).exp())
        }
    }
}

/// Rule (f) of docs/numerics.md: own polynomials, the same bits everywhere, close to the truth.
#[test]
fn vector_functions_agree_across_instruction_sets_and_with_libm() {
    for function in [Function::Exp, Function::Silu, Function::Gelu] {
        for step in -320..320 {
            let x: [f32; LANES] = std::array::from_fn(|lane| step as f32 * 0.25 + lane as f32 * 0.0157);
            let expected = Isa::scalar().run(Apply(function, x));
            for isa in Isa::available() {
                let found = isa.run(Apply(function, x));
                assert_eq!(found.map(f32::to_bits), expected.map(f32::to_bits), "{} at {x:?}", isa.name());
            }
            for (x, found) in x.into_iter().zip(expected) {
                let exact = reference(function, f64::from(x));
                let error = (f64::from(found) - exact).abs();
                // The rounding of an exponent is a relative error of the result, and GELU's exponent is a cubic.
                let relative = 1e-6 * if matches!(function, Function::Gelu) { 1.0 + f64::from(x.abs()) } else { 1.0 };
                assert!(error <= relative * exact.abs() + 1e-20, "at {x}: {found} instead of {exact}");
            }
        }
    }
}

#[test]
fn exp_does_not_overflow_or_vanish() {
    let x =
        [0.0, -0.0, f32::NEG_INFINITY, f32::INFINITY, -87.0, 88.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let y = Isa::detect().run(Apply(Function::Exp, x));
    assert_eq!(y[..2], [1.0, 1.0]);
    assert!(y.iter().all(|y| y.is_normal()), "{y:?}");
}

#[test]
fn scalar_functions_are_as_precise_as_f64_allows() {
    for step in 0..40_000_u32 {
        let angle = f64::from(step) * 0.8191;
        let (sin, cos) = sin_cos(angle);
        assert!((sin - angle.sin()).abs() < 1e-14 && (cos - angle.cos()).abs() < 1e-14, "at {angle}");
    }
    for x in [1e-3, 0.5, 1.0, 1.5, 2.0, 1e4, 1e5, 1e6] {
        assert!((ln(x) - x.ln()).abs() < 1e-14 * (1.0 + x.ln().abs()), "ln {x}");
    }
    for x in [-20.0, -13.8, -1.0, 0.0, 0.3, 5.0] {
        assert!((exp_f64(x) / x.exp() - 1.0).abs() < 1e-14, "exp {x}");
    }
}
