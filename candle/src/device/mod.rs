//! The operators on candle's devices: storages in, storages out, no graph.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use cake_rmsnorm::gated::GatedRmsNorm;
use cake_rmsnorm::{Dtype, Element, RmsNorm};
use candle_core::op::BackpropOp;
use candle_core::{Device, Error, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};

/// An element type of matrices, on every device.
#[cfg(not(feature = "cuda"))]
pub(crate) trait Float: Element + WithDType {}
/// An element type of matrices, on every device.
#[cfg(feature = "cuda")]
pub(crate) trait Float:
    Element
    + WithDType
    + candle_core::cuda_backend::CudaDType
    + candle_core::cuda_backend::cudarc::driver::DeviceRepr
{
}

impl Float for bf16 {}
impl Float for f16 {}
impl Float for f32 {}

/// What a forward gives.
pub(crate) struct Forward {
    /// [T, H], packed.
    pub y: Storage,
    /// Where there is a residual: [T, H], packed.
    pub h: Option<Storage>,
    /// FP32 \[T\] (gated: \[T · groups\]).
    pub rstd: Storage,
}

/// Gradients, packed; of those that were asked for.
pub(crate) struct Backward {
    pub dx: Option<Storage>,
    /// Of the gated form.
    pub dz: Option<Storage>,
    /// FP32 \[H\].
    pub dw: Option<Storage>,
}

/// Gradients that are wanted.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub dx: bool,
    pub dw: bool,
}

/// A tensor outside the graph.
pub(crate) fn tensor(storage: Storage, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// What runs on `$tensor`'s device: `$module::$function::<$type>($arguments)`.
macro_rules! on_device {
    ($tensor:expr, $function:ident $(::<$type:ty>)?, $($argument:expr),*) => {
        match $tensor.device() {
            Device::Cpu => cpu::$function$(::<$type>)?($($argument),*),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => cuda::$function$(::<$type>)?(device, $($argument),*),
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) => Err(Error::NotCompiledWithCudaSupport.bt()),
            Device::Metal(_) => Err(Error::Metal("there are no kernels for Metal".to_owned().into())),
        }
    };
}

/// The forward of rows that lie as [`crate::layout::readable`] says.
pub(crate) fn forward(
    op: &RmsNorm,
    x: &Tensor,
    residual: Option<&Tensor>,
    w: &Tensor,
) -> Result<Forward> {
    match op.input() {
        Dtype::Bf16 => on_device!(x, forward::<bf16>, op, x, residual, w),
        Dtype::F16 => on_device!(x, forward::<f16>, op, x, residual, w),
        Dtype::F32 => on_device!(x, forward::<f32>, op, x, residual, w),
    }
}

/// The backward of rows that lie as [`crate::layout::readable`] says.
pub(crate) fn backward(
    op: &RmsNorm,
    dy: &Tensor,
    x: &Tensor,
    w: &Tensor,
    rstd: &Tensor,
    wanted: Wanted,
) -> Result<Backward> {
    match op.input() {
        Dtype::Bf16 => on_device!(x, backward::<bf16>, op, dy, x, w, rstd, wanted),
        Dtype::F16 => on_device!(x, backward::<f16>, op, dy, x, w, rstd, wanted),
        Dtype::F32 => on_device!(x, backward::<f32>, op, dy, x, w, rstd, wanted),
    }
}

/// The forward of the gated form; rows lie as [`crate::ops`] arranged them.
pub(crate) fn gated_forward(
    op: &GatedRmsNorm,
    heads: u64,
    x: &Tensor,
    z: &Tensor,
    w: &Tensor,
) -> Result<Forward> {
    on_device!(x, gated_forward, op, heads, x, z, w)
}

/// The backward of the gated form; rows lie as [`crate::ops`] arranged them.
pub(crate) fn gated_backward(
    op: &GatedRmsNorm,
    heads: u64,
    dy: &Tensor,
    [x, z, w]: [&Tensor; 3],
    rstd: &Tensor,
    dw: bool,
) -> Result<Backward> {
    on_device!(x, gated_backward, op, heads, dy, [x, z, w], rstd, dw)
}

/// Address of a tensor's storage, for its alignment; 0 where it does not matter.
pub(crate) fn base(tensor: &Tensor) -> u64 {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => storage.as_slice::<bf16>().map_or(0, |x| x.as_ptr() as u64),
        // Allocations of CUDA start at multiples of 256 bytes.
        _ => 0,
    }
}
