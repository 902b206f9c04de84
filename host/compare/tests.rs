//! Tests of the comparison itself.

use super::*;
use half::bf16;

fn one<T: Element>(output: Output, found: T, exact: f64, terms: f64) -> Report {
    compare(output, &[found], &[exact], Some(&[terms]), None).unwrap()
}

#[test]
fn rounding_agrees_with_the_hardware() {
    let mut bits = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..200_000 {
        bits = bits
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // All exponents around the FP32 range, and values close to ties.
        let exponent = (bits >> 40) % 300 + 1023 - 160;
        let tail = if bits & 1 == 0 { 0 } else { 1 };
        let value =
            f64::from_bits(exponent << 52 | (bits >> 10 & 0xf_ffff_e000_0000) | 1 << 28 | tail);
        assert_eq!(round::<f32>(value), f64::from(value as f32), "{value:e}");
    }
    for exact in [f64::INFINITY, -f64::INFINITY, 0.0, 1e39, -1e-50, 1e-45] {
        assert_eq!(round::<f32>(exact), f64::from(exact as f32));
    }
}

#[test]
fn bf16_rounds_once() {
    // Just above the tie between 1 and 1 + 2^-7; rounding to FP32 first would lose the excess.
    let exact = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    assert_eq!(round::<bf16>(exact), 1.0 + 2f64.powi(-7));
    assert_eq!(round::<bf16>(1.0 + 2f64.powi(-8)), 1.0);
    assert_eq!(
        round::<bf16>(1.0 + 3.0 * 2f64.powi(-8)),
        1.0 + 2f64.powi(-6)
    );
    assert_eq!(round::<bf16>(f64::from(f32::MAX)), f64::INFINITY);
    assert_eq!(ulp::<bf16>(1.99), 2f64.powi(-7));
    assert_eq!(ulp::<bf16>(0.0), 2f64.powi(-133));
    assert_eq!(ulp::<f32>(f64::MAX), 2f64.powi(104));
}

#[test]
fn errors_are_measured_in_units_of_the_exact_value() {
    let report = one(Output::Y, bf16::from_f32(1.0), 1.0 + 2f64.powi(-9), 0.0);
    assert_eq!(
        (
            report.max_ulp,
            report.correctly_rounded,
            report.out_of_bound
        ),
        (0.25, 1.0, 0)
    );
    let report = one(
        Output::Y,
        bf16::from_f32(1.0),
        1.0 + 2f64.powi(-7) * 1.125,
        0.0,
    );
    assert_eq!(
        (
            report.max_ulp,
            report.correctly_rounded,
            report.out_of_bound
        ),
        (1.125, 0.0, 1)
    );
    let report = one(Output::Rstd, 1.0f32, 1.0 + 2f64.powi(-19), 0.0);
    assert_eq!((report.max_ulp, report.out_of_bound), (16.0, 0));
    assert_eq!(
        one(Output::Rstd, 1.0f32, 1.0 + 1.01 * 2f64.powi(-19), 0.0).out_of_bound,
        1
    );
}

#[test]
fn cancelled_terms_widen_the_bound() {
    let (dx, dw) = (bf16::from_f32(2f32.powi(-18)), 2f32.powi(-40));
    assert_eq!(one(Output::Dx, dx, 0.0, 1.0).out_of_bound, 0);
    assert_eq!(one(Output::Dx, dx, 0.0, 0.99).out_of_bound, 1);
    assert_eq!(one(Output::Dw, dw, 0.0, 1.0).out_of_bound, 0);
    assert_eq!(one(Output::Dw, dw, 0.0, 0.99).out_of_bound, 1);
    assert_eq!(one(Output::Y, dx, 0.0, 1e9).out_of_bound, 1);
    assert_eq!(one(Output::Dx, dx, 0.0, f64::INFINITY).out_of_bound, 1);
}

#[test]
fn not_a_number_is_no_result() {
    let nan = one(Output::Dw, f32::NAN, 1.0, 1.0);
    assert!(!nan.ok() && nan.max_ulp == f64::INFINITY && nan.worst_budget == f64::INFINITY);
    assert!(nan.rel_l2 == f64::INFINITY && nan.correctly_rounded == 0.0);
    assert!(!one(Output::Dw, 1f32, f64::NAN, f64::NAN).ok());
    let both = one(Output::Dw, f32::NAN, f64::NAN, f64::NAN);
    assert!(both.ok() && both.correctly_rounded == 1.0 && both.rel_l2 == 0.0);
}

#[test]
fn infinity_is_right_only_where_rounding_overflows() {
    let right = one(Output::Dw, f32::INFINITY, 3.5e38, 0.0);
    assert!(right.ok() && right.correctly_rounded == 1.0 && right.rel_l2 == 0.0);
    assert!(one(Output::Dw, f32::INFINITY, f64::INFINITY, 0.0).ok());
    assert!(!one(Output::Dw, f32::INFINITY, 1.0, 0.0).ok());
    assert!(!one(Output::Dw, f32::NEG_INFINITY, 3.5e38, 0.0).ok());
    assert!(!one(Output::Dw, f32::MAX, f64::INFINITY, 0.0).ok());
    // The neighbour of infinity is half a unit off.
    assert_eq!(
        one(
            Output::Dw,
            f32::MAX,
            f64::from(f32::MAX) + 2f64.powi(102),
            0.0
        )
        .max_ulp,
        0.25
    );
}

#[test]
fn blocks_give_the_whole() {
    let exact: Vec<f64> = (0..100_000).map(|i| f64::from(i) / 7.0).collect();
    let mut found: Vec<f32> = exact.iter().map(|&exact| exact as f32).collect();
    found[70_001] *= 1.001;
    let golden = exact.iter().map(|&exact| exact as f32).collect::<Vec<_>>();
    let whole = compare(Output::Dw, &found, &exact, None, Some(&golden)).unwrap();
    let mut blocks = Accuracy::new(Output::Dw);
    for range in [0..40_000, 40_000..100_000] {
        blocks
            .add(&found[range.clone()], &exact[range.clone()], None)
            .unwrap();
        blocks
            .add_golden(&found[range.clone()], &golden[range])
            .unwrap();
    }
    let report = blocks.report();
    assert_eq!(
        (report.out_of_bound, report.bits_match_golden),
        (1, Some(false))
    );
    assert_eq!(report.worst.map(|worst| worst.index), Some(70_001));
    assert!((report.rel_l2 / whole.rel_l2 - 1.0).abs() < 1e-12);
    assert_eq!(
        Report {
            rel_l2: whole.rel_l2,
            ..report
        },
        whole
    );
    let differences = blocks.differences().unwrap();
    assert_eq!((differences.count, differences.first), (1, Some(70_001)));
}

#[test]
fn bits_are_compared_as_bytes() {
    let matches = |a: f32, b: f32| {
        let exact = [f64::from(a)];
        compare(Output::Dw, &[a], &exact, None, Some(&[b]))
            .unwrap()
            .bits_match_golden
    };
    assert_eq!(matches(0.0, -0.0), Some(false));
    assert_eq!(matches(f32::NAN, f32::NAN), Some(true));
    assert_eq!(matches(f32::NAN, f32::from_bits(0x7fff_ffff)), Some(false));
}

#[test]
fn lengths_are_checked() {
    let error = Error::Length {
        argument: Argument::Dw,
        found: 2,
        expected: 1,
    };
    assert_eq!(
        compare(Output::Dw, &[1f32], &[1.0, 2.0], None, None),
        Err(error.clone())
    );
    assert_eq!(
        compare(Output::Dw, &[1f32], &[1.0], Some(&[1.0, 2.0]), None),
        Err(error.clone())
    );
    assert_eq!(
        compare(Output::Dw, &[1f32], &[1.0], None, Some(&[1.0, 2.0])),
        Err(error)
    );
}
