//! The leaf table: how the rows are cut for the weight gradient. Part of the numerics contract:
//! it fixes the order in which dw is summed, so it depends on T and H alone.

/// Leaves that T rows of H elements are cut into at least, once T is large enough.
///
/// Narrow rows need many leaves (a warp works on each), wide rows few (a partial row is wide).
#[must_use]
#[inline(always)]
pub const fn leaves_target(hidden: u32) -> u64 {
    if hidden <= 512 {
        4096
    } else if hidden <= 1024 {
        1024
    } else if hidden <= 8192 {
        512
    } else {
        128
    }
}

/// Rows of a leaf: the largest power of two ≤ max(1, T / [`leaves_target`]\(H\)).
#[must_use]
#[inline(always)]
pub const fn leaf_rows(rows: u64, hidden: u32) -> u64 {
    let quotient = rows / leaves_target(hidden);
    if quotient <= 1 {
        1
    } else {
        1 << (63 - quotient.leading_zeros())
    }
}

/// Leaves of T rows: ⌈T / [`leaf_rows`]⌉, at most twice the target.
#[must_use]
#[inline(always)]
pub const fn leaf_count(rows: u64, hidden: u32) -> u64 {
    rows.div_ceil(leaf_rows(rows, hidden))
}

/// Rows of a leaf of the gated form, for groups of `width` elements: as [`leaf_rows`]; but for
/// widths up to 512, where that is more than 32, the largest power of two ≤ max(32, T / 65,536).
///
/// A row of the gated form costs more than a plain one, so the work is dealt out in smaller parts.
#[must_use]
#[inline(always)]
pub const fn gated_leaf_rows(rows: u64, width: u32) -> u64 {
    let plain = leaf_rows(rows, width);
    if width > 512 || plain <= 32 {
        return plain;
    }
    let quotient = rows / 65_536;
    if quotient <= 32 {
        32
    } else {
        1 << (63 - quotient.leading_zeros())
    }
}
