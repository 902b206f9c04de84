//! Work on several streams without any synchronization by hand: `cudarc` is told what is read and
//! written, and has the streams wait for each other.

use super::{Findings, Result};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cudarc::{Backward, Cudarc, Device, Forward, Tensor, Weight};
use cake_rmsnorm::golden::{self, backward_slices, forward_slices};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{Dtype, RmsNorm, Update};

const ROWS: usize = 4096;
const HIDDEN: usize = 2048;

pub fn check(gpu: &Cudarc, findings: &mut Findings) -> Result {
    // Two more streams of the context, whose kernels are those that are loaded already.
    let (writer, reader) = (gpu.stream().fork()?, gpu.stream().fork()?);
    let beside = Cudarc::new(&reader)?;
    let op = RmsNorm::builder(HIDDEN as u64)
        .input(Dtype::F32)
        .weight(Dtype::F32)
        .build()?;
    gpu.prepare(&op, false, Views::Ordinary)?;
    let shared = Device::of(gpu.stream().context())?;
    let plan = op.forward_plan(ROWS as u64, false, beside.device().properties())?;
    let kernel = plan.launch.ok_or("a forward launches")?.kernel;
    let loaded = [&shared, beside.device()].map(|device| device.kernel_attributes(kernel).is_ok());
    findings.check(loaded == [true; 2], || {
        "kernels are shared in a context".to_owned()
    });

    let numbers = |seed: usize| -> Vec<f32> {
        let draw = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
        (0..ROWS * HIDDEN).map(draw).collect()
    };
    let (x, dy, w) = (numbers(1), numbers(2), &numbers(3)[..HIDDEN]);
    let expected = forward_slices(&op, &x, None, golden::Weight::F32(w))?;
    let gradients = backward_slices(&op, &dy, &x, None, golden::Weight::F32(w), &expected.rstd)?;

    let (source, dy) = (writer.clone_htod(&x)?, writer.clone_htod(&dy)?);
    let w = writer.clone_htod(w)?;
    let nan = vec![f32::NAN; ROWS * HIDDEN];
    for round in 0..5 {
        let mut x = writer.clone_htod(&nan)?;
        let mut y = writer.clone_htod(&nan)?;
        let mut dx = writer.clone_htod(&nan)?;
        let mut rstd = writer.clone_htod(&nan[..ROWS])?;
        let mut dw = writer.clone_htod(&nan[..HIDDEN])?;
        let mut workspace = gpu.workspace(&op, ROWS as u64, false)?;
        let bytes = x.len();
        writer.synchronize()?;
        // x arrives late, on a stream of its own: whoever does not wait reads NaN.
        let mut elsewhere = writer.alloc_zeros::<f32>(bytes)?;
        for _ in 0..50 {
            writer.memcpy_dtod(&source, &mut elsewhere)?;
        }
        writer.memcpy_dtod(&source, &mut x)?;
        let forward = Forward {
            x: Tensor::rows(x.as_view(), ROWS as u64, HIDDEN as u64),
            residual: None,
            w: Weight::F32(w.as_view()),
            h: None,
            y: Tensor::rows(y.as_view_mut(), ROWS as u64, HIDDEN as u64),
            rstd: Some(rstd.as_view_mut()),
        };
        gpu.forward_slices(&op, forward)?;
        // The backward is on a third stream, and waits for rstd of the second.
        let backward = Backward {
            dy: Tensor::rows(dy.as_view(), ROWS as u64, HIDDEN as u64),
            x: Tensor::rows(x.as_view(), ROWS as u64, HIDDEN as u64),
            dh: None,
            w: Weight::F32(w.as_view()),
            rstd: Some(rstd.as_view()),
            dx: Some(Tensor::rows(dx.as_view_mut(), ROWS as u64, HIDDEN as u64)),
            dw: Some(dw.as_view_mut()),
            update: Update::Overwrite,
            dw_bf16: None,
            workspace: Some(workspace.as_view_mut()),
        };
        beside.backward_slices(&op, backward)?;
        // Whoever overwrites x must wait until both have read it.
        writer.memset_zeros(&mut x)?;
        let what = |output| format!("{output} of streams that depend on each other, round {round}");
        findings.same(&what("y"), &writer.clone_dtoh(&y)?, &expected.y);
        findings.same(&what("dx"), &writer.clone_dtoh(&dx)?, &gradients.dx);
        findings.same(&what("dw"), &writer.clone_dtoh(&dw)?, &gradients.dw);
    }
    Ok(())
}
