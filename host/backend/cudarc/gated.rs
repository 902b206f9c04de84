//! The gated form on slices.

use super::Cudarc;
use super::tensor::{Resolver, Tensor, Weight};
use crate::backend::Backend;
use crate::error::{Argument, Error, Result};
use crate::gated::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, HeadsView};
use crate::op::Update;
use crate::view::VectorView;
use ::cudarc::driver::{CudaSlice, CudaView, CudaViewMut};
use half::bf16;

/// An input [tokens, heads, H].
type Input<'a> = Tensor<CudaView<'a, bf16>, HeadsView>;
/// An output [tokens, heads, H].
type Output<'a> = Tensor<CudaViewMut<'a, bf16>, HeadsView>;

/// Arguments of a gated forward, as [`GatedForwardArgs`].
#[derive(Debug)]
pub struct GatedForward<'a> {
    /// Input.
    pub x: Input<'a>,
    /// Input: the gate.
    pub z: Input<'a>,
    /// Input; all heads share it.
    pub w: Weight<'a>,
    /// Output.
    pub y: Output<'a>,
    /// Output [tokens, heads, groups], if it is wanted.
    pub rstd: Option<CudaViewMut<'a, f32>>,
}

/// Arguments of a gated backward, as [`GatedBackwardArgs`].
#[derive(Debug)]
pub struct GatedBackward<'a> {
    /// Input: gradient of y.
    pub dy: Input<'a>,
    /// Input of the forward.
    pub x: Input<'a>,
    /// Input of the forward.
    pub z: Input<'a>,
    /// Input.
    pub w: Weight<'a>,
    /// Input: the forward's; worked out again, with the same bits, where it is not given.
    pub rstd: Option<CudaView<'a, f32>>,
    /// Output: gradient of x.
    pub dx: Output<'a>,
    /// Output: gradient of z.
    pub dz: Output<'a>,
    /// Output \[H\], if it is wanted; also an input where it is added to.
    pub dw: Option<CudaViewMut<'a, f32>>,
    /// Whether `dw` is overwritten or added to.
    pub update: Update,
    /// Scratch memory; [`Cudarc::gated_workspace`] allocates it.
    pub workspace: Option<CudaViewMut<'a, u8>>,
}

impl Cudarc {
    /// Enqueues a gated forward over slices, as [`Cudarc::forward_slices`].
    ///
    /// # Errors
    /// - [`Error::Missing`] without a weight; [`Error::OutOfBounds`]; [`Error::OtherContext`]; else
    ///   as [`Backend::gated_forward`]. [`Backend::prepare_gated`] comes first.
    pub fn gated_forward_slices(&self, op: &GatedRmsNorm, args: GatedForward<'_>) -> Result<()> {
        let mut args = args;
        let mut resolve = Resolver::new(self.stream());
        let resolved = GatedForwardArgs {
            x: resolve.input(Argument::X, &args.x)?,
            z: resolve.input(Argument::Z, &args.z)?,
            w: weight(&mut resolve, &args.w)?,
            y: resolve.output(Argument::Y, &mut args.y)?,
            rstd: args
                .rstd
                .as_mut()
                .map(|rstd| resolve.vector_mut(Argument::Rstd, rstd))
                .transpose()?,
        };
        // SAFETY: as in `Cudarc::forward_slices`.
        unsafe { self.gated_forward(op, &resolved) }
    }

    /// Enqueues a gated backward over slices, as [`Cudarc::forward_slices`] does a forward.
    ///
    /// # Errors
    /// - [`Error::Missing`] without a weight; [`Error::OutOfBounds`]; [`Error::OtherContext`]; else
    ///   as [`Backend::gated_backward`]. [`Backend::prepare_gated`] comes first.
    pub fn gated_backward_slices(&self, op: &GatedRmsNorm, args: GatedBackward<'_>) -> Result<()> {
        let mut args = args;
        let mut resolve = Resolver::new(self.stream());
        let dw = args
            .dw
            .as_mut()
            .map(|dw| resolve.vector_mut(Argument::Dw, dw))
            .transpose()?;
        let resolved = GatedBackwardArgs {
            dy: resolve.input(Argument::Dy, &args.dy)?,
            x: resolve.input(Argument::X, &args.x)?,
            z: resolve.input(Argument::Z, &args.z)?,
            w: weight(&mut resolve, &args.w)?,
            rstd: args
                .rstd
                .as_ref()
                .map(|rstd| resolve.vector(Argument::Rstd, rstd))
                .transpose()?,
            dx: resolve.output(Argument::Dx, &mut args.dx)?,
            dz: resolve.output(Argument::Dz, &mut args.dz)?,
            dw: dw.map(|dw| (dw, args.update)),
            workspace: resolve.workspace(args.workspace.as_mut())?,
        };
        // SAFETY: as in `Cudarc::forward_slices`.
        unsafe { self.gated_backward(op, &resolved) }
    }

    /// Scratch memory for a gated backward over `rows` rows (tokens times heads).
    ///
    /// # Errors
    /// - As [`GatedRmsNorm::backward_plan`]; [`Error::Cuda`] without memory.
    pub fn gated_workspace(&self, op: &GatedRmsNorm, rows: u64) -> Result<CudaSlice<u8>> {
        let plan = op.backward_plan(rows, true, Backend::properties(self))?;
        self.scratch(plan.workspace_bytes)
    }
}

fn weight<'a>(resolve: &mut Resolver<'a>, w: &'a Weight<'_>) -> Result<VectorView> {
    let argument = Argument::W;
    resolve.weight(w)?.ok_or(Error::Missing { argument })
}
