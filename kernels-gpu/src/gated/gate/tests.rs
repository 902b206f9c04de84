use super::{Gate, Table};
use crate::instructions::Instructions;

/// The unit in the last place of FP32 at `x`.
fn ulp(x: f64) -> f64 {
    const SMALLEST_NORMAL: u64 = 1023 - 126;
    let exponent = (x.abs().to_bits() >> 52).max(SMALLEST_NORMAL);
    f64::from_bits((exponent - 23) << 52)
}

/// sigmoid(z), correct to about 2⁻⁵⁰.
fn exact_sigmoid(z: f64) -> f64 {
    let e = (-z.abs()).exp();
    if z < 0.0 {
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + e)
    }
}

/// Largest error of the sigmoid in units in the last place, over the FP32 values whose bits are
/// multiples of `step`; and where it is.
fn worst_sigmoid(step: usize) -> (f64, f32) {
    const BLOCK: usize = 4096;
    let mut worst = (0.0, 0.0);
    let mut found = [0.0f32; BLOCK];
    let all = 1u64 << 32;
    for first in (0..all).step_by(BLOCK * step) {
        let bits = |i: usize| first + (i * step) as u64;
        Instructions::detect().run(
            #[inline(always)]
            || {
                for (i, found) in found.iter_mut().enumerate() {
                    *found = Gate::of(f32::from_bits(bits(i) as u32)).sigmoid();
                }
            },
        );
        for (i, &found) in found.iter().enumerate() {
            let z = f32::from_bits(bits(i) as u32);
            if bits(i) >= all {
                break;
            }
            if z.is_nan() {
                assert!(found.is_nan(), "sigmoid of NaN {:#x}", z.to_bits());
                continue;
            }
            let exact = exact_sigmoid(f64::from(z));
            let error = (f64::from(found) - exact).abs() / ulp(exact);
            assert!(!error.is_nan(), "sigmoid({z}) = {found}");
            if error > worst.0 {
                worst = (error, z);
            }
        }
    }
    worst
}

#[test]
fn sigmoid_is_within_one_unit() {
    let (error, z) = worst_sigmoid(997);
    assert!(error <= 1.0, "{error} units at {z}");
}

/// All 2³² values: the figure of docs/numerics.md.
#[test]
#[ignore = "minutes; hours on a CPU without fused multiply-add"]
fn sigmoid_of_every_value() {
    let (error, z) = worst_sigmoid(1);
    println!("largest error: {error:.4} units in the last place, at {z:e}");
    assert!(error <= 1.0, "{error} units at {z}");
}

/// SiLU and its derivative against FP64: every BF16 value, which is what kernels meet.
#[test]
fn silu_and_slope_of_every_bf16_value() {
    for bits in 0..=u16::MAX {
        let z = f32::from_bits(u32::from(bits) << 16);
        let gate = Gate::of(z);
        if z.is_nan() {
            assert!(gate.silu().is_nan() && gate.slope().is_nan());
            continue;
        }
        if z.is_infinite() {
            assert!(gate.slope().is_nan());
            continue;
        }
        let exact = f64::from(z);
        let s = exact_sigmoid(exact);
        let silu = exact * s;
        // 1 − s without cancellation.
        let product = silu * exact_sigmoid(-exact);
        // One unit for the sigmoid, half a unit more for the rounding of silu. Below −87.3 the
        // sigmoid is subnormal.
        let smallest = exact.abs().min(104.0) * 2f64.powi(-149);
        let error = (f64::from(gate.silu()) - silu).abs();
        assert!(
            error <= 2.0 * ulp(silu) + smallest,
            "silu({z:e}) = {:e}, exact {silu:e}",
            gate.silu()
        );
        // For the slope: silu's error and three roundings, of terms that may cancel; and 1 − s is
        // as far off as s, times silu. At 104, where 1 − s is rounded to 0, it was 2^-150.
        let terms = s + product.abs();
        let error = (f64::from(gate.slope()) - (s + product)).abs();
        let of_rest = silu.abs().min(104.0) * ulp(s);
        assert!(
            error <= 4.0 * ulp(terms) + of_rest + smallest,
            "silu'({z:e}) = {:e}, exact {:e}",
            gate.slope(),
            s + product
        );
    }
}

#[test]
fn values_by_hand() {
    let gate = |z| {
        let gate = Gate::of(z);
        (gate.sigmoid(), gate.silu(), gate.slope())
    };
    assert_eq!(gate(0.0), (0.5, 0.0, 0.5));
    assert_eq!(gate(-0.0), (0.5, 0.0, 0.5));
    assert_eq!(Gate::of(-0.0).silu().to_bits(), (-0.0f32).to_bits());
    // Infinities follow the formula.
    let (s, g, slope) = gate(f32::INFINITY);
    assert!((s, g) == (1.0, f32::INFINITY) && slope.is_nan());
    let (s, g, slope) = gate(f32::NEG_INFINITY);
    assert!(s == 0.0 && g.is_nan() && slope.is_nan());
    assert_eq!(gate(1e30), (1.0, 1e30, 1.0));
    assert_eq!(gate(-1e30), (0.0, 0.0, 0.0));
    // e^−100 is a subnormal number.
    assert_eq!(gate(-100.0).0.to_bits(), 27);
    assert_eq!(gate(1e-40), (0.5, 5e-41, 0.5));
}

#[test]
fn the_table_holds_what_every_other_magnitude_gives() {
    let tail = |bits: u32| super::sigmoid_of_minus(f32::from_bits(bits << 16)).to_bits();
    assert_eq!(f32::from_bits(super::LAST << 16), super::LARGEST);
    for bits in 0..=super::FIRST {
        assert_eq!(tail(bits), tail(super::FIRST), "{bits:#x}");
    }
    assert_ne!(tail(super::FIRST + 1), tail(super::FIRST));
    for bits in super::FIRST..=super::LAST {
        let a = f32::from_bits(bits << 16);
        let of_table = if bits < super::FIRST_LARGE {
            super::sigmoid_of_minus_small(a)
        } else {
            super::sigmoid_of_minus_large(a)
        };
        assert_eq!(of_table.to_bits(), tail(bits), "{bits:#x}");
    }
}

#[test]
fn a_table_ends_where_a_line_does() {
    assert_eq!(Table::BYTES % 128, 0);
    // Threads make four entries at once.
    let (first, large) = (super::FIRST, super::FIRST_LARGE);
    let fours = (first..=super::LAST).step_by(4);
    let end = fours.last().map(|bits| 4 * (bits + 4 - first));
    assert!(end <= Some(Table::BYTES), "{end:?}");
    assert_eq!((first % 4, large % 4), (0, 0));
}
