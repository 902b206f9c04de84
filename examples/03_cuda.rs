//! Lesson 3: forward and backward on a GPU, by way of `cust`, with the bits of the CPU.
//!
//! ```sh
//! cargo run --release --features cuda --example 03_cuda
//! ```

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cuda::{Cuda, Device, DeviceBuffer};
use cake_rmsnorm::golden::{Weight, backward_slices, forward_slices};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{
    BackwardArgs, Dtype, ForwardArgs, Result, RmsNorm, RowsView, VectorView, WeightGradient,
    Workspace,
};
use half::bf16;

fn main() -> Result<()> {
    let (rows, hidden) = (4096_u64, 1024_u64);
    let elements = (rows * hidden) as usize;
    let number = |i: usize| bf16::from_f32((i * 7919 % 2003) as f32 / 1001.0 - 1.0);
    let x: Vec<bf16> = (0..elements).map(number).collect();
    let dy: Vec<bf16> = x.iter().rev().copied().collect();
    let w: Vec<f32> = (0..hidden).map(|i| 1.0 + i as f32 / 1024.0).collect();

    // The first GPU; work goes to its default stream. `prepare` loads the operator's kernels, once.
    let gpu = Cuda::new(Device::open(0)?);
    let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
    gpu.prepare(&op, false, Views::Ordinary)?;

    // Memory. What is in the outputs and the workspace does not matter.
    let new = |bytes| DeviceBuffer::new(gpu.device(), bytes);
    let copy = |bytes: &[u8]| -> Result<DeviceBuffer> {
        let mut buffer = new(bytes.len())?;
        buffer.write(bytes)?;
        Ok(buffer)
    };
    let (x_gpu, dy_gpu) = (
        copy(bytemuck::cast_slice(&x))?,
        copy(bytemuck::cast_slice(&dy))?,
    );
    let w_gpu = copy(bytemuck::cast_slice(&w))?;
    let (y, dx) = (new(2 * elements)?, new(2 * elements)?);
    let (rstd, dw) = (new(4 * rows as usize)?, new(4 * hidden as usize)?);
    let bytes = op.workspace_bytes(rows, false, Backend::properties(&gpu))?;
    let workspace = new(bytes as usize)?;

    // Views say where tensors lie. A matrix may have any distance between its rows.
    let matrix = |buffer: &DeviceBuffer| RowsView::packed(buffer.address(), rows, hidden);
    let weight = Some(VectorView::f32(w_gpu.address(), hidden));
    let statistics = Some(VectorView::f32(rstd.address(), rows));
    let forward = ForwardArgs {
        x: matrix(&x_gpu),
        residual: None,
        w: weight,
        h: None,
        y: matrix(&y),
        rstd: statistics,
    };
    let backward = BackwardArgs {
        dy: matrix(&dy_gpu),
        x: matrix(&x_gpu),
        dh: None,
        w: weight,
        rstd: statistics,
        dx: Some(matrix(&dx)),
        dw: Some(WeightGradient::overwrite(VectorView::f32(
            dw.address(),
            hidden,
        ))),
        workspace: Workspace {
            address: workspace.address(),
            bytes,
        },
    };
    // SAFETY: the views describe buffers that live until the stream has been waited for, and that
    // nothing else uses.
    unsafe {
        gpu.forward(&op, &forward)?;
        gpu.backward(&op, &backward)?;
    }
    gpu.synchronize()?;

    // The CPU gives the same bits.
    let expected = forward_slices(&op, &x, None, Weight::F32(&w))?;
    let gradients = backward_slices(&op, &dy, &x, None, Weight::F32(&w), &expected.rstd)?;
    same("y", &y, &expected.y)?;
    same("rstd", &rstd, &expected.rstd)?;
    same("dx", &dx, &gradients.dx)?;
    same("dw", &dw, &gradients.dw)
}

fn same<E: bytemuck::NoUninit>(name: &str, found: &DeviceBuffer, expected: &[E]) -> Result<()> {
    let mut bytes = vec![0; found.len()];
    found.read(&mut bytes)?;
    assert!(
        bytes == bytemuck::cast_slice::<E, u8>(expected),
        "{name} has other bits"
    );
    println!("{name:4}  the bits of the CPU");
    Ok(())
}
