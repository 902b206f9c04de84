//! The plain and the residual form on slices.

use super::Cudarc;
use super::tensor::{Resolver, Tensor, Weight};
use crate::backend::Backend;
use crate::element::Element;
use crate::error::{Argument, Result};
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm, Update, WeightGradient};
use ::cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use half::bf16;

/// Arguments of a forward, as [`ForwardArgs`]. Matrices are [T, H] of the operator's input type.
#[derive(Debug)]
pub struct Forward<'a, E> {
    /// Input.
    pub x: Tensor<CudaView<'a, E>>,
    /// Input that is added to x first; together with `h`.
    pub residual: Option<Tensor<CudaView<'a, E>>>,
    /// Input.
    pub w: Weight<'a>,
    /// Output x + residual, rounded; together with `residual`.
    pub h: Option<Tensor<CudaViewMut<'a, E>>>,
    /// Output.
    pub y: Tensor<CudaViewMut<'a, E>>,
    /// Output \[T\], if it is wanted.
    pub rstd: Option<CudaViewMut<'a, f32>>,
}

/// Arguments of a backward, as [`BackwardArgs`]. Matrices are [T, H] of the operator's input type.
#[derive(Debug)]
pub struct Backward<'a, E> {
    /// Input: gradient of y.
    pub dy: Tensor<CudaView<'a, E>>,
    /// Input: what the forward normalised (x, or h of the residual form).
    pub x: Tensor<CudaView<'a, E>>,
    /// Input that is added to dx.
    pub dh: Option<Tensor<CudaView<'a, E>>>,
    /// Input.
    pub w: Weight<'a>,
    /// Input \[T\]: of the forward; worked out again, with the same bits, where it is not given.
    pub rstd: Option<CudaView<'a, f32>>,
    /// Output, if it is wanted.
    pub dx: Option<Tensor<CudaViewMut<'a, E>>>,
    /// Output \[H\], if it is wanted; also an input where it is added to.
    pub dw: Option<CudaViewMut<'a, f32>>,
    /// Whether `dw` is overwritten or added to.
    pub update: Update,
    /// Output \[H\], if it is wanted: dw rounded to BF16, with `dw` or alone.
    pub dw_bf16: Option<CudaViewMut<'a, bf16>>,
    /// Scratch memory; [`Cudarc::workspace`] allocates it.
    pub workspace: Option<CudaViewMut<'a, u8>>,
}

impl Cudarc {
    /// Enqueues a forward over slices. Waits, on the stream, for other streams that write the
    /// inputs or use the outputs, and tells `cudarc` what this one reads and writes.
    ///
    /// # Errors
    /// - [`crate::Error::OutOfBounds`] when rows reach beyond their slice;
    ///   [`crate::Error::OtherContext`]; else as [`Backend::forward`]. [`Backend::prepare`] comes
    ///   first.
    pub fn forward_slices<E: Element>(&self, op: &RmsNorm, args: Forward<'_, E>) -> Result<()> {
        let mut args = args;
        let mut resolve = Resolver::new(self.stream());
        let resolved = ForwardArgs {
            x: resolve.input(Argument::X, &args.x)?,
            residual: args
                .residual
                .as_ref()
                .map(|residual| resolve.input(Argument::Residual, residual))
                .transpose()?,
            w: resolve.weight(&args.w)?,
            h: args
                .h
                .as_mut()
                .map(|h| resolve.output(Argument::H, h))
                .transpose()?,
            y: resolve.output(Argument::Y, &mut args.y)?,
            rstd: args
                .rstd
                .as_mut()
                .map(|rstd| resolve.vector_mut(Argument::Rstd, rstd))
                .transpose()?,
        };
        // SAFETY: the views lie in borrowed slices of the stream's context, outputs in exclusive
        // ones; `resolve` had the stream wait for what uses them, and records behind this work
        // what later uses, and the slices' release, wait for.
        unsafe { self.forward(op, &resolved) }
    }

    /// Enqueues a backward over slices, as [`Cudarc::forward_slices`] does a forward.
    ///
    /// # Errors
    /// - [`crate::Error::OutOfBounds`] when rows reach beyond their slice;
    ///   [`crate::Error::OtherContext`]; else as [`Backend::backward`]. [`Backend::prepare`] comes
    ///   first.
    pub fn backward_slices<E: Element>(&self, op: &RmsNorm, args: Backward<'_, E>) -> Result<()> {
        let mut args = args;
        let mut resolve = Resolver::new(self.stream());
        let dw = args
            .dw
            .as_mut()
            .map(|dw| resolve.vector_mut(Argument::Dw, dw))
            .transpose()?;
        let dw_bf16 = args
            .dw_bf16
            .as_mut()
            .map(|dw| resolve.vector_mut(Argument::DwBf16, dw))
            .transpose()?;
        let resolved = BackwardArgs {
            dy: resolve.input(Argument::Dy, &args.dy)?,
            x: resolve.input(Argument::X, &args.x)?,
            dh: args
                .dh
                .as_ref()
                .map(|dh| resolve.input(Argument::Dh, dh))
                .transpose()?,
            w: resolve.weight(&args.w)?,
            rstd: args
                .rstd
                .as_ref()
                .map(|rstd| resolve.vector(Argument::Rstd, rstd))
                .transpose()?,
            dx: args
                .dx
                .as_mut()
                .map(|dx| resolve.output(Argument::Dx, dx))
                .transpose()?,
            // Where there is no FP32 output, the BF16 one is the output.
            dw: dw.or(dw_bf16).map(|first| WeightGradient {
                dw: first,
                update: args.update,
                bf16: dw.and(dw_bf16),
            }),
            workspace: resolve.workspace(args.workspace.as_mut())?,
        };
        // SAFETY: as in `forward_slices`.
        unsafe { self.backward(op, &resolved) }
    }

    /// Scratch memory that serves every backward of `op` over up to `rows` rows.
    ///
    /// # Errors
    /// - As [`RmsNorm::workspace_bytes`]; [`crate::Error::Cuda`] without memory.
    pub fn workspace(&self, op: &RmsNorm, rows: u64, residual: bool) -> Result<CudaSlice<u8>> {
        let (routes, device) = (Backend::routes(self), Backend::properties(self));
        let bytes = op.workspace_bytes_by(routes, rows, residual, device)?;
        self.scratch(bytes)
    }

    /// Device memory of `bytes` bytes, at least one: `cudarc` allocates none of no bytes.
    pub(super) fn scratch(&self, bytes: u64) -> Result<CudaSlice<u8>> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).max(16);
        // SAFETY: the contents of a workspace never matter.
        super::check("cuMemAlloc", unsafe { self.stream().alloc(bytes) })
    }
}
