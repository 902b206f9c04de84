//! Parameters of the general kernels.

use crate::format::Format;
use crate::params::{Groups, Stride};

/// A matrix of any element type, alignment and stride. A vector is a matrix of one row.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Tensor {
    /// First element, aligned to its type. Null where the operation has no such argument.
    pub base: *mut u8,
    /// Between rows.
    pub stride: Stride,
    /// Element type.
    pub format: Format,
    /// Not 0 where every row starts at a multiple of 16 bytes: whole vectors travel in 16-byte
    /// accesses then, else elements alone.
    pub aligned: u32,
}

/// Forward: y = norm(h) · w, with h = x or x + residual, rounded to h's type.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GeneralForwardParams {
    /// `[rows, hidden]`.
    pub x: Tensor,
    /// `[rows, hidden]`; null but in the residual form.
    pub residual: Tensor,
    /// `[hidden]`; null for a weight of ones.
    pub w: Tensor,
    /// `[rows, hidden]`; null where it is not wanted.
    pub h: Tensor,
    /// `[rows, hidden]`; null where it is not wanted.
    pub y: Tensor,
    /// FP32 `[rows]`; null where it is not wanted.
    pub rstd: *mut f32,
    /// T.
    pub rows: u32,
    /// H.
    pub hidden: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Added to every element of `w`; −0 adds nothing.
    pub weight_offset: f32,
    /// Groups of rows.
    pub groups: Groups,
}

/// Backward: dx, and nodes of dw.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GeneralBackwardParams {
    /// `[rows, hidden]`.
    pub dy: Tensor,
    /// `[rows, hidden]`: what the forward normalised.
    pub x: Tensor,
    /// `[rows, hidden]`, added to dx; null but in the residual form.
    pub dh: Tensor,
    /// `[hidden]`; null for a weight of ones.
    pub w: Tensor,
    /// `[rows, hidden]`; null where it is not wanted.
    pub dx: Tensor,
    /// FP32 `[rows]`, of the forward.
    pub rstd: *const f32,
    /// A node of the dw tree a slot, as [`crate::tree::store_node`] wants it,
    /// with as many columns as [`crate::tree::node_columns`] says. Null where dw is not wanted.
    pub nodes: *mut f32,
    /// T.
    pub rows: u32,
    /// H.
    pub hidden: u32,
    /// Added to every element of `w`; −0 adds nothing.
    pub weight_offset: f32,
    /// Groups of rows.
    pub groups: Groups,
    /// log₂ of the rows of a leaf.
    pub leaf_log2: u32,
    /// log₂ of the leaves of a run; 0 unless `sums_in_shared`.
    pub run_log2: u32,
    /// Whether running sums lie in shared memory; else in the nodes.
    pub sums_in_shared: u32,
}
