//! Lesson 5: in a program that uses `cudarc`. Building it needs nothing of CUDA.
//!
//! ```sh
//! cargo run --release --features cudarc --example 05_cudarc
//! ```

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cudarc::{Backward, Cudarc, Forward, Tensor, Weight};
use cake_rmsnorm::golden::{self, backward_slices, forward_slices};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{Dtype, RmsNorm, Update};
use cudarc::driver::CudaContext;
use half::bf16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (rows, hidden) = (3000_u64, 896_u64);
    let number = |i: usize| bf16::from_f32((i * 7919 % 2003) as f32 / 1001.0 - 1.0);
    let x: Vec<bf16> = (0..(rows * hidden) as usize).map(number).collect();
    let dy: Vec<bf16> = x.iter().rev().copied().collect();
    let w: Vec<f32> = (0..hidden).map(|i| 1.0 + i as f32 / 896.0).collect();

    // Your context and streams. Kernels are loaded once a context, for all of its streams.
    let stream = CudaContext::new(0)?.new_stream()?;
    let other = stream.fork()?;
    let (gpu, beside) = (Cudarc::new(&stream)?, Cudarc::new(&other)?);
    let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
    gpu.prepare(&op, false, Views::Ordinary)?;

    let (x_gpu, dy_gpu) = (stream.clone_htod(&x)?, stream.clone_htod(&dy)?);
    let w_gpu = stream.clone_htod(&w)?;
    let mut y = stream.alloc_zeros::<bf16>(x.len())?;
    let mut rstd = stream.alloc_zeros::<f32>(rows as usize)?;
    let forward = Forward {
        x: Tensor::rows(x_gpu.as_view(), rows, hidden),
        residual: None,
        w: Weight::F32(w_gpu.as_view()),
        h: None,
        y: Tensor::rows(y.as_view_mut(), rows, hidden),
        rstd: Some(rstd.as_view_mut()),
    };
    gpu.forward_slices(&op, forward)?;

    // On another stream: it waits for rstd by itself.
    let mut dx = other.alloc_zeros::<bf16>(x.len())?;
    let mut dw = other.alloc_zeros::<f32>(w.len())?;
    let mut workspace = beside.workspace(&op, rows, false)?;
    let backward = Backward {
        dy: Tensor::rows(dy_gpu.as_view(), rows, hidden),
        x: Tensor::rows(x_gpu.as_view(), rows, hidden),
        dh: None,
        w: Weight::F32(w_gpu.as_view()),
        rstd: Some(rstd.as_view()),
        dx: Some(Tensor::rows(dx.as_view_mut(), rows, hidden)),
        dw: Some(dw.as_view_mut()),
        update: Update::Overwrite,
        dw_bf16: None,
        workspace: Some(workspace.as_view_mut()),
    };
    beside.backward_slices(&op, backward)?;

    // The CPU gives the same bits.
    let expected = forward_slices(&op, &x, None, golden::Weight::F32(&w))?;
    let gradients = backward_slices(&op, &dy, &x, None, golden::Weight::F32(&w), &expected.rstd)?;
    assert!(stream.clone_dtoh(&y)? == expected.y);
    assert!(other.clone_dtoh(&dx)? == gradients.dx);
    assert!(other.clone_dtoh(&dw)? == gradients.dw);
    println!(
        "{}: y, dx and dw have the bits of the CPU",
        gpu.device().name()
    );
    Ok(())
}
