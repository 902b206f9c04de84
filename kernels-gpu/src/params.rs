//! Kernel parameters: defined once, used by the kernels and by the host.
//!
//! Pointers are device pointers. Strides are in elements between the starts of neighbouring
//! rows. Where a kernel makes 16-byte accesses, its documentation says which pointers must be
//! 16-byte aligned and which strides multiples of 8.

use crate::device::Words4;

/// Forward: y = norm(h) · w, with h = x or BF16(x + residual).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ForwardParams {
    /// BF16 `[rows, hidden]`.
    pub x: *const u16,
    /// BF16 `[rows, hidden]`; read by the residual form alone.
    pub residual: *const u16,
    /// BF16 or FP32 `[hidden]`.
    pub w: *const u8,
    /// BF16 `[rows, hidden]`; written by the residual form alone.
    pub h: *mut u16,
    /// BF16 `[rows, hidden]`.
    pub y: *mut u16,
    /// FP32 `[rows]`.
    pub rstd: *mut f32,
    /// Row stride of `x`.
    pub x_stride: i64,
    /// Row stride of `residual`.
    pub residual_stride: i64,
    /// Row stride of `h`.
    pub h_stride: i64,
    /// Row stride of `y`.
    pub y_stride: i64,
    /// T.
    pub rows: u32,
    /// H.
    pub hidden: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Backward: dx, and partial sums of dw.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BackwardParams {
    /// BF16 `[rows, hidden]`.
    pub dy: *const u16,
    /// BF16 `[rows, hidden]`: what the forward normalised (x, or h of the residual form).
    pub x: *const u16,
    /// BF16 `[rows, hidden]`, added to dx; read by the residual form alone.
    pub dh: *const u16,
    /// BF16 or FP32 `[hidden]`.
    pub w: *const u8,
    /// FP32 `[rows]`, of the forward.
    pub rstd: *const f32,
    /// BF16 `[rows, hidden]`.
    pub dx: *mut u16,
    /// FP32 `[slots, 2, hidden]`: a node of the dw tree a slot, its sums and its compensations.
    pub nodes: *mut f32,
    /// FP32 `[hidden]`; written by [`crate::backward::split`] alone.
    pub dw: *mut f32,
    /// Row stride of `dy`.
    pub dy_stride: i64,
    /// Row stride of `x`.
    pub x_stride: i64,
    /// Row stride of `dh`.
    pub dh_stride: i64,
    /// Row stride of `dx`.
    pub dx_stride: i64,
    /// T.
    pub rows: u32,
    /// H.
    pub hidden: u32,
    /// log₂ of the rows of a leaf.
    pub leaf_log2: u32,
    /// log₂ of the leaves of a run: what one worker folds before it stores a node.
    pub run_log2: u32,
}

/// dw from the nodes that the backward stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReduceParams {
    /// FP32 `[slots, 2, hidden]`.
    pub nodes: *const f32,
    /// FP32 `[hidden]`.
    pub dw: *mut f32,
    /// H.
    pub hidden: u32,
    /// Nodes.
    pub node_count: u32,
    /// log₂ of the consecutive nodes that one thread folds.
    pub chunk_log2: u32,
}

/// A copy, for comparison.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CopyParams {
    /// `[words]`.
    pub from: *const Words4,
    /// `[words]`.
    pub to: *mut Words4,
    /// Words of 16 bytes.
    pub words: u32,
}

/// A read of a buffer that is larger than the caches.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FlushParams {
    /// `[words]`, all zero.
    pub from: *const Words4,
    /// One value, which is never written.
    pub sink: *mut f32,
    /// Words of 16 bytes.
    pub words: u32,
}
