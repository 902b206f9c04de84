//! A training loop: w learns to scale rows as a hidden weight does. Two runs on the GPU and one on
//! the CPU end with the same bits.

use super::{Findings, Result};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cudarc::{Backward, Cudarc, Forward, Tensor, Weight};
use cake_rmsnorm::golden::{self, backward_slices, forward_slices};
use cake_rmsnorm::inputs::Spec;
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{Dtype, RmsNorm, Update};
use half::bf16;

const ROWS: usize = 517;
const HIDDEN: usize = 768;
const STEPS: usize = 200;

pub fn check(gpu: &Cudarc, findings: &mut Findings) -> Result {
    let op = RmsNorm::new(HIDDEN as u64, Dtype::F32, 1e-6)?;
    gpu.prepare(&op, false, Views::Ordinary)?;
    let spec = Spec {
        rows: ROWS,
        hidden: HIDDEN,
        weight: Dtype::F32,
        residual: false,
        seed: 3,
    };
    let mut host = spec.generate()?;
    // No outliers: with them no one step size serves all columns. (Knuth's generator.)
    let mut state = 1u64;
    for x in &mut host.x {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        *x = bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0);
    }
    let target = forward_slices(&op, &host.x, None, host.w.as_golden())?.y;
    let runs = [
        train(&target, |w, step| on_gpu(gpu, &op, &host.x, w, step))?,
        train(&target, |w, step| on_gpu(gpu, &op, &host.x, w, step))?,
        train(&target, |w, step| on_cpu(&op, &host.x, w, step))?,
    ];
    let [first, second, cpu] = &runs;
    findings.same("weights of two runs", &first.weights, &second.weights);
    findings.same("losses of two runs", &first.losses, &second.losses);
    findings.same("weights on the CPU", &first.weights, &cpu.weights);
    findings.same("losses on the CPU", &first.losses, &cpu.losses);
    let (start, end) = (first.losses[0], first.losses[STEPS - 1]);
    println!("  loss {start:.3e} at first, {end:.3e} at last");
    findings.check(end < start / 100.0, || format!("loss {start} to {end}"));
    Ok(())
}

struct Run {
    weights: Vec<f32>,
    losses: Vec<f64>,
}

/// Turns y into the gradient of the loss.
type Loss<'a> = &'a mut dyn FnMut(&[bf16]) -> Vec<bf16>;

/// Gradient descent from w = 0.5 on; `dw` runs a forward and a backward.
fn train(target: &[bf16], mut dw: impl FnMut(&[f32], Loss<'_>) -> Result<Vec<f32>>) -> Result<Run> {
    let mut run = Run {
        weights: vec![0.5; HIDDEN],
        losses: Vec::new(),
    };
    for _ in 0..STEPS {
        let mut loss = 0.0;
        let dw = dw(&run.weights, &mut |y| {
            let errors = y.iter().zip(target).map(|(y, t)| y.to_f32() - t.to_f32());
            loss = errors.clone().map(|e| f64::from(e * e)).sum::<f64>() / target.len() as f64;
            errors.map(bf16::from_f32).collect()
        })?;
        for (w, dw) in run.weights.iter_mut().zip(dw) {
            *w -= 0.2 * dw / ROWS as f32;
        }
        run.losses.push(loss);
    }
    Ok(run)
}

fn on_cpu(op: &RmsNorm, x: &[bf16], w: &[f32], loss: Loss<'_>) -> Result<Vec<f32>> {
    let w = golden::Weight::F32(w);
    let forward = forward_slices(op, x, None, w)?;
    let dy = loss(&forward.y);
    Ok(backward_slices(op, &dy, x, None, w, &forward.rstd)?.dw)
}

fn on_gpu(gpu: &Cudarc, op: &RmsNorm, x: &[bf16], w: &[f32], loss: Loss<'_>) -> Result<Vec<f32>> {
    let stream = gpu.stream();
    let (x, w) = (stream.clone_htod(x)?, stream.clone_htod(w)?);
    let mut y = stream.alloc_zeros::<bf16>(x.len())?;
    let mut rstd = stream.alloc_zeros::<f32>(ROWS)?;
    let shape = (ROWS as u64, HIDDEN as u64);
    let forward = Forward {
        x: Tensor::rows(x.as_view(), shape.0, shape.1),
        residual: None,
        w: Weight::F32(w.as_view()),
        h: None,
        y: Tensor::rows(y.as_view_mut(), shape.0, shape.1),
        rstd: Some(rstd.as_view_mut()),
    };
    gpu.forward_slices(op, forward)?;
    let dy = stream.clone_htod(&loss(&stream.clone_dtoh(&y)?))?;
    let mut dw = stream.alloc_zeros::<f32>(HIDDEN)?;
    let mut workspace = gpu.workspace(op, shape.0, false)?;
    let backward = Backward {
        dy: Tensor::rows(dy.as_view(), shape.0, shape.1),
        x: Tensor::rows(x.as_view(), shape.0, shape.1),
        dh: None,
        w: Weight::F32(w.as_view()),
        rstd: Some(rstd.as_view()),
        dx: None,
        dw: Some(dw.as_view_mut()),
        update: Update::Overwrite,
        dw_bf16: None,
        workspace: Some(workspace.as_view_mut()),
    };
    gpu.backward_slices(op, backward)?;
    Ok(stream.clone_dtoh(&dw)?)
}
