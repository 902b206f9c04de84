//! The gated form, packed.

use super::{Findings, Result};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cudarc::{Cudarc, GatedBackward, GatedForward, Tensor, Weight};
use cake_rmsnorm::compare::{Accuracy, Output};
use cake_rmsnorm::gated::{GateOrder, GatedRmsNorm, HeadsView, backward_slices, forward_slices};
use cake_rmsnorm::inputs::Spec;
use cake_rmsnorm::reference::gated::{Shape, backward};
use cake_rmsnorm::reference::{WeightGradientSum, from_elements, from_f32};
use cake_rmsnorm::{Dtype, Update, golden};
use half::bf16;

pub fn check(gpu: &Cudarc, findings: &mut Findings) -> Result {
    for order in [GateOrder::NormFirst, GateOrder::GateFirst] {
        for (tokens, heads, hidden) in [(5, 3, 128), (300, 4, 64), (1025, 1, 4096)] {
            case(gpu, order, [tokens, heads, hidden], findings)?;
        }
    }
    Ok(())
}

fn tensor<M>(memory: M, [tokens, heads, hidden]: [u64; 3]) -> Tensor<M, HeadsView> {
    Tensor::heads(memory, tokens, heads, hidden)
}

fn case(gpu: &Cudarc, order: GateOrder, shape: [u64; 3], findings: &mut Findings) -> Result {
    let stream = gpu.stream();
    let [tokens, heads, hidden] = shape;
    let rows = tokens * heads;
    let spec = Spec {
        rows: rows as usize,
        hidden: hidden as usize,
        weight: Dtype::F32,
        residual: false,
        seed: 11,
    };
    let op = GatedRmsNorm::new(order, hidden, Dtype::F32, 1e-6)?;
    gpu.prepare_gated(&op)?;
    let (host, gate) = (spec.generate()?, spec.generate_gate()?);
    let w = host.w.to_f32();
    let golden_w = golden::Weight::F32(&w);
    let what = |output| format!("{output} of {order:?} {shape:?}");
    let empty = || stream.clone_htod(&vec![bf16::NAN; host.x.len()]);
    let (x, z) = (stream.clone_htod(&host.x)?, stream.clone_htod(&gate)?);
    let (dy, weight) = (stream.clone_htod(&host.dy)?, stream.clone_htod(&w)?);

    let mut y = empty()?;
    let mut rstd = stream.clone_htod(&vec![f32::NAN; rows as usize])?;
    let forward = GatedForward {
        x: tensor(x.as_view(), shape),
        z: tensor(z.as_view(), shape),
        w: Weight::F32(weight.as_view()),
        y: tensor(y.as_view_mut(), shape),
        rstd: Some(rstd.as_view_mut()),
    };
    gpu.gated_forward_slices(&op, forward)?;
    let expected = forward_slices(&op, &host.x, &gate, golden_w)?;
    findings.same(&what("y"), &stream.clone_dtoh(&y)?, &expected.y);
    findings.same(&what("rstd"), &stream.clone_dtoh(&rstd)?, &expected.rstd);

    let (mut dx, mut dz) = (empty()?, empty()?);
    let mut dw = stream.clone_htod(&vec![f32::NAN; hidden as usize])?;
    let mut workspace = gpu.gated_workspace(&op, rows)?;
    let gradients = GatedBackward {
        dy: tensor(dy.as_view(), shape),
        x: tensor(x.as_view(), shape),
        z: tensor(z.as_view(), shape),
        w: Weight::F32(weight.as_view()),
        rstd: Some(rstd.as_view()),
        dx: tensor(dx.as_view_mut(), shape),
        dz: tensor(dz.as_view_mut(), shape),
        dw: Some(dw.as_view_mut()),
        update: Update::Overwrite,
        workspace: Some(workspace.as_view_mut()),
    };
    gpu.gated_backward_slices(&op, gradients)?;
    let (dx, dz) = (stream.clone_dtoh(&dx)?, stream.clone_dtoh(&dz)?);
    let dw = stream.clone_dtoh(&dw)?;
    let kept = Some(&expected.rstd[..]);
    let golden = backward_slices(&op, &host.dy, &host.x, &gate, golden_w, kept)?;
    findings.same(&what("dx"), &dx, &golden.dx);
    findings.same(&what("dz"), &dz, &golden.dz);
    findings.same(&what("dw"), &dw, &golden.dw);

    let mut sum = WeightGradientSum::new(spec.hidden);
    let exact = backward(
        Shape {
            hidden: spec.hidden,
            groups: 1,
            order,
        },
        &from_elements(&host.dy),
        &from_elements(&host.x),
        &from_elements(&gate),
        &from_f32(&w),
        &from_f32(&expected.rstd),
        &mut sum,
    )?;
    let within = |output: Output, found: &[bf16], exact: &[f64], terms: &[f64]| -> Result<bool> {
        let mut accuracy = Accuracy::with_bound(output, output.gated_bound());
        accuracy.add(found, exact, Some(terms))?;
        Ok(accuracy.report().ok())
    };
    let dx = within(Output::Dx, &dx, &exact.dx.dx, &exact.dx.terms)?;
    findings.check(dx, || what("dx against FP64"));
    let dz = within(Output::Dz, &dz, &exact.dz.dx, &exact.dz.terms)?;
    findings.check(dz, || what("dz against FP64"));
    let exact = sum.finish();
    let mut accuracy = Accuracy::with_bound(Output::Dw, Output::Dw.gated_bound());
    accuracy.add(&dw, &exact.dw, Some(&exact.terms))?;
    findings.check(accuracy.report().ok(), || what("dw against FP64"));
    Ok(())
}
