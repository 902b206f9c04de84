//! Parameters of the gated kernels.
//!
//! Row r of the `rows` rows is head r mod `heads` of token r / `heads`. A row is cut into `groups`
//! groups of `width` elements. Matrices have 16-byte aligned rows.

/// Distances in a matrix [tokens, heads, hidden], in 16-byte vectors of 8 elements.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Strides {
    /// Between neighbouring tokens.
    pub token: i32,
    /// Between neighbouring heads.
    pub head: i32,
}

/// Forward: y = norm(x)·w·silu(z), or norm(x·silu(z))·w.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GatedForwardParams {
    /// BF16 `[tokens, heads, hidden]`.
    pub x: *const u16,
    /// BF16 `[tokens, heads, hidden]`.
    pub z: *const u16,
    /// BF16 or FP32 `[hidden]`.
    pub w: *const u8,
    /// BF16 `[tokens, heads, hidden]`.
    pub y: *mut u16,
    /// FP32 `[rows, groups]`; null where it is not wanted.
    pub rstd: *mut f32,
    /// Of `x`.
    pub x_strides: Strides,
    /// Of `z`.
    pub z_strides: Strides,
    /// Of `y`.
    pub y_strides: Strides,
    /// Tokens times heads.
    pub rows: u32,
    /// Heads of a token.
    pub heads: u32,
    /// Groups of a row.
    pub groups: u32,
    /// Elements of a group.
    pub width: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether L2 is told to keep what is read, 0 or 1.
    pub keep: u32,
}

/// Backward: dx, dz, and nodes of dw.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GatedBackwardParams {
    /// BF16 `[tokens, heads, hidden]`.
    pub dy: *const u16,
    /// BF16 `[tokens, heads, hidden]`.
    pub x: *const u16,
    /// BF16 `[tokens, heads, hidden]`.
    pub z: *const u16,
    /// BF16 or FP32 `[hidden]`.
    pub w: *const u8,
    /// FP32 `[rows, groups]`; null where it is to be recomputed.
    pub rstd: *const f32,
    /// BF16 `[tokens, heads, hidden]`.
    pub dx: *mut u16,
    /// BF16 `[tokens, heads, hidden]`.
    pub dz: *mut u16,
    /// A node of the dw tree a slot, as [`crate::tree::store_node`] wants it; null
    /// where dw is not wanted.
    pub nodes: *mut f32,
    /// Of `dy`.
    pub dy_strides: Strides,
    /// Of `x`.
    pub x_strides: Strides,
    /// Of `z`.
    pub z_strides: Strides,
    /// Of `dx`.
    pub dx_strides: Strides,
    /// Of `dz`.
    pub dz_strides: Strides,
    /// Tokens times heads.
    pub rows: u32,
    /// Heads of a token.
    pub heads: u32,
    /// Groups of a row.
    pub groups: u32,
    /// Elements of a group.
    pub width: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether L2 is told to keep what is read, 0 or 1.
    pub keep: u32,
    /// log₂ of the rows of a leaf.
    pub leaf_log2: u32,
    /// log₂ of the leaves of a run.
    pub run_log2: u32,
}
