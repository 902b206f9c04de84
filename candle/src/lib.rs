//! RMSNorm with gradients for [candle](https://docs.rs/candle-core), by the kernels of
//! [`cake_rmsnorm`]: the same bits on every GPU and on the CPU, and a weight gradient that is summed
//! with compensation and rounded once.
//!
//! - [`RmsNorm`] and [`rms_norm`] take the place of candle-nn's.
//! - [`ops`] has the operators: plain, residual, gated by SiLU.
//!
//! ```
//! use cake_rmsnorm_candle::rms_norm;
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{VarBuilder, VarMap};
//!
//! # fn main() -> candle_core::Result<()> {
//! let (variables, device) = (VarMap::new(), Device::Cpu);
//! let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
//! let norm = rms_norm(64, 1e-6, vb.pp("norm"))?; // the weight starts as ones
//! let x = Tensor::randn(0f32, 1., (2, 3, 64), &device)?;
//! let loss = norm.forward(&x)?.sqr()?.mean_all()?;
//! let gradients = loss.backward()?;
//! assert!(gradients.get(norm.weight()).is_some());
//! # Ok(())
//! # }
//! ```
//!
//! # Tensors
//!
//! x, residual and z have the shape [..., H] and are BF16, FP16 or FP32 (gated: BF16). The weight is
//! \[H\], of any of these types whatever x is (gated: BF16 or FP32). y has the type of x, and is
//! contiguous.
//!
//! Tensors whose last dimension is contiguous are read where they lie, if their leading dimensions
//! make rows with one stride or two ([`cake_rmsnorm::RowsView::from_shape`]): narrowed, broadcast
//! and most transposed ones do. Others, and gated ones that do not lie at multiples of 16 bytes, are
//! copied by [`contiguous`](candle_core::Tensor::contiguous) first.
//!
//! # Gradients
//!
//! Gradients of x, residual, z and of the weight all arrive; those that nobody tracks are not
//! computed. rstd, FP32 with one element a row, is kept from the forward beside the graph.
//! The weight gradient is computed in FP32 and rounded to the weight's type, which is what candle
//! expects. Gradients are not tracked themselves: there is no second derivative.
//!
//! In the residual form candle adds the gradient that h has from elsewhere, after this crate's has
//! been rounded to the type of h; with FP32 that is the operation that the kernels would have done.
//!
//! # Devices
//!
//! On the CPU the golden implementation runs. With feature `cuda` the kernels run on candle's own
//! stream; an operator's kernels are loaded in its first call. Metal is refused.

mod device;
mod layout;
mod module;
pub mod ops;

pub use module::{RmsNorm, rms_norm};

/// The examples of the documents, as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    pub struct Readme;

    #[doc = include_str!("../../docs/embedding-candle.md")]
    pub struct Embedding;
}
