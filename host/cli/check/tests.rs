//! A check must see what is wrong.

use super::*;
use cake_rmsnorm::golden::{self, Backward, Forward};
use half::bf16;
use std::collections::BTreeSet;

/// A device's results for 5 rows of 64, after `spoil`; the failures that are reported.
fn failures(spoil: impl FnOnce(&mut Forward, &mut Backward)) -> Vec<String> {
    let args = Args {
        device: DeviceArg::Cpu,
        input: None,
        rows: Some(5),
        hidden: Some(64),
        dtype: None,
        weight: None,
        weight_offset: 0.0,
        eps: None,
        seed: None,
        residual: true,
        gate: None,
        heads: 1,
        groups: 1,
        sm_count: None,
        routes: None,
        output: None,
        json: false,
    };
    let progress = Progress::new();
    let source = Source::choose(&args).expect("a shape");
    let op = source.operator(0.0).expect("a shape");
    let (device, _) =
        device::open(args.device, &Planning::default(), 320, &progress).expect("the CPU");
    let run = Run::new(&source, &*device, None, &args);
    let inputs = source.inputs::<bf16>().expect("little memory");
    let w = inputs.w.as_golden();
    let mut forward = golden::forward_slices(&op, &inputs.x, inputs.residual.as_deref(), w)
        .expect("matching shapes");
    let h = forward.h.clone().expect("residual form");
    let dh = inputs.dh.as_deref();
    let mut backward = golden::backward_slices(&op, &inputs.dy, &h, dh, w, &forward.rstd)
        .expect("matching shapes");
    spoil(&mut forward, &mut backward);
    let results = Results {
        op,
        inputs: &inputs,
        forward: &forward,
        backward: &backward,
    };
    let verdict = results.verify(&progress).expect("matching shapes");
    let report = Report::new(run, verdict, Repeats::new(), vec![], true);
    let json: serde_json::Value =
        serde_json::from_str(&report.json().expect("JSON")).expect("JSON");
    let last = report.table().lines().last().map(str::to_owned);
    assert_eq!(json["ok"], report.ok());
    assert_eq!(
        last.as_deref(),
        Some(if report.ok() { "OK" } else { "FAILED" })
    );
    let failures = json["failures"].as_array().expect("a list").iter();
    failures
        .map(|text| text.as_str().expect("text").to_owned())
        .collect()
}

/// The outputs that failures name.
fn named(failures: &[String]) -> BTreeSet<&str> {
    failures
        .iter()
        .filter_map(|failure| failure.split(':').next())
        .collect()
}

fn next(value: bf16) -> bf16 {
    bf16::from_bits(value.to_bits() ^ 1)
}

#[test]
fn right_results_pass() {
    assert_eq!(failures(|_, _| {}), [""; 0]);
}

#[test]
fn one_wrong_bit_of_any_output_is_found_and_placed() {
    let y = failures(|forward, _| forward.y[2 * 64 + 7] = next(forward.y[2 * 64 + 7]));
    assert!(
        y.iter()
            .any(|failure| failure.contains("first at row 2, column 7")),
        "{y:?}"
    );
    assert_eq!(named(&y), BTreeSet::from(["y"]));

    let dx = failures(|_, backward| backward.dx[300] = next(backward.dx[300]));
    assert!(
        dx.iter()
            .any(|failure| failure.contains("first at row 4, column 44")),
        "{dx:?}"
    );
    assert_eq!(named(&dx), BTreeSet::from(["dx"]));

    let dw = failures(|_, backward| backward.dw[9] = backward.dw[9].next_up());
    assert!(
        dw.iter()
            .any(|failure| failure.contains("first at element 9")),
        "{dw:?}"
    );
    assert_eq!(named(&dw), BTreeSet::from(["dw"]));

    // What was computed from it differs too.
    let h = failures(|forward, _| {
        let h = forward.h.as_mut().expect("residual form");
        h[0] = next(h[0]);
    });
    assert!(named(&h).contains("h"), "{h:?}");
    let rstd = failures(|forward, _| forward.rstd[3] = forward.rstd[3].next_up());
    assert!(named(&rstd).contains("rstd"), "{rstd:?}");
}

#[test]
fn values_beyond_the_bound_are_found_without_golden() {
    let beyond = |failures: Vec<String>, output: &str| {
        let wanted = format!("{output}: ");
        let mut found = failures
            .iter()
            .filter(|failure| failure.starts_with(&wanted));
        assert!(
            found.any(|failure| failure.contains("beyond the bound")),
            "{failures:?}"
        );
    };
    beyond(failures(|forward, _| forward.y[5] = bf16::NAN), "y");
    beyond(failures(|forward, _| forward.rstd[1] *= 1.0001), "rstd");
    beyond(failures(|_, backward| backward.dx.swap(3, 4)), "dx");
    beyond(failures(|_, backward| backward.dw[63] *= 1.000_001), "dw");
}

#[test]
fn unequal_repeats_and_writes_behind_the_end_are_failures() {
    let zeros = |len| Backward {
        dx: vec![bf16::ZERO; len],
        dw: vec![0.0; len],
    };
    let mut repeats = Repeats::new();
    repeats.add(&zeros(8), &zeros(8));
    assert!(repeats.dx && repeats.dw);
    let mut other = zeros(8);
    other.dw[7] = -0.0;
    repeats.add(&zeros(8), &other);
    assert!(repeats.dx && !repeats.dw);

    // A device whose buffers were written behind their ends.
    let device = device::open(DeviceArg::Cpu, &Planning::default(), 8, &Progress::new())
        .expect("the CPU")
        .0;
    let op = cake_rmsnorm::RmsNorm::new(8, cake_rmsnorm::Dtype::F32, 1e-6).expect("a shape");
    let inputs = cake_rmsnorm::inputs::Spec {
        rows: 1,
        hidden: 8,
        weight: cake_rmsnorm::Dtype::F32,
        residual: false,
        seed: 0,
    };
    let inputs = inputs.generate().expect("little memory");
    let mut execution = Execution::new(&*device, op, &inputs).expect("little memory");
    execution.forward(0xff).expect("the CPU");
    assert!(execution.overrun().is_empty());
    execution.write_behind_y();
    assert_eq!(execution.overrun(), ["y"]);
}
