//! Lesson 4: on a stream that your program made, and captured as a CUDA graph.
//!
//! ```sh
//! cargo run --release --features cuda --example 04_your_stream
//! ```

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cuda::{Cuda, Device, DeviceBuffer, Graph};
use cake_rmsnorm::golden::{Weight, forward_slices};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{Dtype, ForwardArgs, Result, RmsNorm, RowsView, VectorView};
use cust::sys;
use half::bf16;

fn main() -> Result<()> {
    let (rows, hidden) = (512_u64, 2048_u64);
    let device = Device::open(0)?;

    // What your program, or a library that it uses, has: a raw stream of the primary context.
    let mut stream = std::ptr::null_mut();
    let made = device.with_context(|| {
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the out pointer is live.
        Ok(unsafe { sys::cuStreamCreate(&raw mut stream, flags) })
    })?;
    assert_eq!(made, sys::CUresult::CUDA_SUCCESS);
    // SAFETY: the stream is of the device's primary context, and lives as long as the process.
    let gpu = unsafe { Cuda::with_stream(device, stream) };

    let op = RmsNorm::new(hidden, Dtype::Bf16, 1e-6)?;
    // Before a capture: loading is not allowed in one.
    gpu.prepare(&op, false, Views::Ordinary)?;

    let mut x = DeviceBuffer::new(gpu.device(), (2 * rows * hidden) as usize)?;
    let mut w = DeviceBuffer::new(gpu.device(), 2 * hidden as usize)?;
    let y = DeviceBuffer::new(gpu.device(), (2 * rows * hidden) as usize)?;
    w.fill(bytemuck::bytes_of(&bf16::ONE))?;
    let args = ForwardArgs {
        x: RowsView::packed(x.address(), rows, hidden),
        residual: None,
        w: Some(VectorView::bf16(w.address(), hidden)),
        h: None,
        y: RowsView::packed(y.address(), rows, hidden),
        rstd: None, // not wanted
    };
    // Arguments are checked now; the graph keeps addresses, not values.
    // SAFETY: nothing runs during the capture.
    let graph = Graph::capture(&gpu, || unsafe { gpu.forward(&op, &args) })?;

    for round in 1..=3 {
        let row: Vec<bf16> = (0..hidden)
            .map(|i| bf16::from_f32((i % (7 + round)) as f32))
            .collect();
        x.fill(bytemuck::cast_slice(&row))?;
        // SAFETY: the buffers live, and the stream is waited for before they are used again.
        unsafe { graph.launch(&gpu)? };
        gpu.synchronize()?;
        let mut found = vec![bf16::ZERO; (rows * hidden) as usize];
        y.read(bytemuck::cast_slice_mut(&mut found))?;
        let ones = vec![bf16::ONE; hidden as usize];
        let expected = forward_slices(&op, &row, None, Weight::Bf16(&ones))?.y;
        assert!(found.chunks(hidden as usize).all(|row| row == expected));
        println!("replay {round}: all {rows} rows have the bits of the CPU");
    }
    Ok(())
}
