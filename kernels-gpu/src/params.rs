//! Kernel parameters: defined once, used by the kernels and by the host.
//!
//! Pointers are device pointers. Strides are in elements between the starts of neighbouring
//! rows. Where a kernel makes 16-byte accesses, its documentation says which pointers must be
//! 16-byte aligned and which strides multiples of 8.
//!
//! What every launch reads stands first: a kernel fetches its parameters line by line from memory
//! when it starts, which at few rows is a good part of its time.

use crate::device::Words4;

/// Distances between rows, in elements: row r starts at r·`row` + g·`group`, where g is the number
/// of complete [`Groups`] before it. Programs that take no groups ignore `group`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stride {
    /// Between neighbouring rows of a group.
    pub row: i64,
    /// What the distance between neighbouring groups has beyond their rows' distances.
    pub group: i64,
}

/// How rows are cut into groups of equal size: the second leading dimension of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Groups {
    /// ⌈2^shift / rows of a group⌉; 0 where all rows are one group.
    pub multiplier: u32,
    /// 31 + ⌈log₂ rows of a group⌉.
    pub shift: u32,
}

impl Groups {
    /// All rows in one group.
    pub const ONE: Groups = Groups {
        multiplier: 0,
        shift: 31,
    };

    /// Groups of `rows` rows, from 1 to 2³¹.
    #[must_use]
    pub const fn of(rows: u32) -> Self {
        let shift = 31 + (u32::BITS - (rows - 1).leading_zeros());
        // At most 2³¹ + 2³¹/rows: 2^shift is below 2³²·rows.
        let multiplier = (1u64 << shift).div_ceil(rows as u64) as u32;
        Self { multiplier, shift }
    }

    /// Complete groups before row `row` < 2³¹: ⌊row / rows of a group⌋ (Granlund and Montgomery,
    /// "Division by invariant integers using multiplication", 1994).
    #[inline(always)]
    #[must_use]
    pub const fn before(self, row: u32) -> u32 {
        ((row as u64 * self.multiplier as u64) >> self.shift) as u32
    }
}

/// Where dw goes; the pointers of what is not wanted are null.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WeightGradientOut {
    /// FP32 `[hidden]`.
    pub dw: *mut f32,
    /// BF16 `[hidden]`: dw rounded.
    pub dw_bf16: *mut u16,
    /// Whether the values that `dw` holds join the sum, 0 or 1.
    pub accumulate: u32,
}

impl WeightGradientOut {
    /// Whether dw is wanted at all.
    #[inline(always)]
    #[must_use]
    pub fn wanted(&self) -> bool {
        !(self.dw.is_null() && self.dw_bf16.is_null())
    }
}

/// `keep` of a launch that reads `matrices` matrices of BF16 rows, each of `row` elements.
#[must_use]
pub const fn keep(matrices: u64, rows: u64, row: u64) -> u32 {
    /// An H200's L2 holds 60 MiB. Where a launch reads more, memory is 1 to 3 % faster when it is told.
    const FROM_BYTES: u64 = 64 << 20;
    (2 * matrices * rows * row >= FROM_BYTES) as u32
}

/// Forward: y = norm(h) · w, with h = x or BF16(x + residual).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ForwardParams {
    /// BF16 `[rows, hidden]`.
    pub x: *const u16,
    /// BF16 or FP32 `[hidden]`; null for a weight of ones.
    pub w: *const u8,
    /// BF16 `[rows, hidden]`.
    pub y: *mut u16,
    /// FP32 `[rows]`; null where it is not wanted.
    pub rstd: *mut f32,
    /// T.
    pub rows: u32,
    /// H.
    pub hidden: u32,
    /// Columns of y that are stored: H, or 0 for rstd alone.
    pub y_columns: u32,
    /// Whether L2 is told to keep what is read, 0 or 1.
    pub keep: u32,
    /// Added to the mean square.
    pub eps: f32,
    /// Added to every element of `w`; −0 adds nothing.
    pub weight_offset: f32,
    /// Groups of rows.
    pub groups: Groups,
    /// Stride of `x`.
    pub x_stride: Stride,
    /// Stride of `y`.
    pub y_stride: Stride,
    /// BF16 `[rows, hidden]`; read by the residual form alone.
    pub residual: *const u16,
    /// BF16 `[rows, hidden]`; written by the residual form alone.
    pub h: *mut u16,
    /// Stride of `residual`.
    pub residual_stride: Stride,
    /// Stride of `h`.
    pub h_stride: Stride,
}

/// Backward: dx, and partial sums of dw.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BackwardParams {
    /// BF16 `[rows, hidden]`.
    pub dy: *const u16,
    /// BF16 `[rows, hidden]`: what the forward normalised (x, or h of the residual form).
    pub x: *const u16,
    /// BF16 or FP32 `[hidden]`; null for a weight of ones.
    pub w: *const u8,
    /// FP32 `[rows]`, of the forward.
    pub rstd: *const f32,
    /// BF16 `[rows, hidden]`.
    pub dx: *mut u16,
    /// Written by [`crate::backward::split`] alone.
    pub dw: WeightGradientOut,
    /// T.
    pub rows: u32,
    /// H.
    pub hidden: u32,
    /// log₂ of the rows of a leaf.
    pub leaf_log2: u32,
    /// log₂ of the leaves of a run: what one worker folds before it stores a node.
    pub run_log2: u32,
    /// Columns of dx that are stored: H, or 0 where dx is not wanted.
    pub dx_columns: u32,
    /// Whether L2 is told to keep what is read, 0 or 1.
    pub keep: u32,
    /// Added to every element of `w`; −0 adds nothing.
    pub weight_offset: f32,
    /// Groups of rows.
    pub groups: Groups,
    /// Stride of `dy`.
    pub dy_stride: Stride,
    /// Stride of `x`.
    pub x_stride: Stride,
    /// Stride of `dx`.
    pub dx_stride: Stride,
    /// A node of the dw tree a slot, as [`crate::tree::store_node`] wants it.
    /// Null where dw is not wanted, which [`crate::backward::warp`] alone accepts.
    pub nodes: *mut f32,
    /// BF16 `[rows, hidden]`, added to dx; read by the residual form alone.
    pub dh: *const u16,
    /// Stride of `dh`.
    pub dh_stride: Stride,
}

/// dw from the nodes that the backward stored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReduceParams {
    /// Nodes, as [`crate::tree::store_node`] left them, with as many columns as
    /// [`crate::tree::node_columns`] says.
    pub nodes: *const f32,
    /// dw.
    pub dw: WeightGradientOut,
    /// H.
    pub hidden: u32,
    /// Nodes; without any, dw is 0.
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

/// A comparison of two buffers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CompareParams {
    /// `[words]`.
    pub a: *const Words4,
    /// `[words]`.
    pub b: *const Words4,
    /// One value, which becomes 1 if they differ.
    pub flag: *mut f32,
    /// Words of 16 bytes.
    pub words: u32,
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    use super::{Groups, keep};

    #[test]
    fn l2_is_told_to_keep_what_is_larger() {
        assert_eq!(keep(1, 65_536, 512), 1);
        assert_eq!(keep(1, 65_535, 512), 0);
        assert_eq!(keep(2, 65_535, 512), 1);
        assert_eq!(keep(3, 1 << 31, 65_536), 1);
        assert_eq!(keep(2, 0, 4096), 0);
    }

    /// Rows at which the quotient changes, for every kind of group size.
    #[test]
    fn groups_divide_exactly() {
        let last = (1u32 << 31) - 1;
        let sizes = (1..2000).chain((1..31).flat_map(|log2| {
            let power = 1u32 << log2;
            [power - 1, power, power + 1]
        }));
        for size in sizes
            .chain([last - 1, last, 1 << 31])
            .filter(|&size| size > 0)
        {
            let groups = Groups::of(size);
            let multiples = [1, 2, 3, 1000, last / size / 2, last / size];
            let edges = multiples.map(|n| (u64::from(n) * u64::from(size)).min(u64::from(last)));
            for edge in edges {
                for row in [edge.saturating_sub(1), edge, edge + 1, u64::from(last)] {
                    let row = row.min(u64::from(last)) as u32;
                    assert_eq!(groups.before(row), row / size, "{row} / {size}");
                }
            }
        }
        assert_eq!(Groups::ONE.before(last), 0);
    }
}
