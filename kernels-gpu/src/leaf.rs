//! The leaf table: how the rows are cut for the weight gradient. Part of the numerics contract:
//! it fixes the order in which dw is summed, so it depends on T and H alone.

/// Most rows of the window in which a column's rows are dealt to at most [`window_leaves`] workers,
/// a leaf each.
#[must_use]
#[inline(always)]
pub const fn window_rows(hidden: u32) -> u64 {
    if hidden <= 256 {
        256
    } else if hidden <= 1024 {
        512
    } else {
        1024
    }
}

/// Most leaves of T rows of H elements in the window.
#[must_use]
#[inline(always)]
pub const fn window_leaves(rows: u64, hidden: u32) -> u64 {
    // With fewer workers a column, more columns are worked on at once.
    if hidden > 2048 && hidden <= 4096 && rows <= 256 {
        64
    } else if hidden > 4096 && hidden <= 8192 && rows > 64 && rows <= 128 {
        32
    } else {
        128
    }
}

/// Leaves that T rows of H elements are cut into at least, beyond [`window_rows`]\(H\); for H ≤ 512,
/// once T is large enough.
///
/// Narrow rows need many leaves (a warp works on each), wide rows few (a partial row is wide).
#[must_use]
#[inline(always)]
pub const fn leaves_target(hidden: u32) -> u64 {
    if hidden <= 256 {
        2048
    } else if hidden <= 1024 {
        1024
    } else if hidden <= 4096 {
        512
    } else if hidden <= 8192 {
        256
    } else {
        128
    }
}

/// Rows of a leaf: up to [`window_rows`]\(H\) the smallest power of two with which
/// [`window_leaves`] leaves suffice; beyond, the largest power of two ≤ max(1, T / N), N =
/// [`leaves_target`]\(H\).
///
/// But for H ≤ 512 N is half of it as long as a leaf then has at most eight rows (and at least two,
/// for H > 256), and beyond a leaf has eight rows at least: where every multiprocessor has a run or
/// two, fewer nodes are worth more than more even work.
#[must_use]
#[inline(always)]
pub const fn leaf_rows(rows: u64, hidden: u32) -> u64 {
    if rows <= window_rows(hidden) {
        let leaves = window_leaves(rows, hidden);
        return rows.div_ceil(leaves).next_power_of_two();
    }
    let leaf = power_of_two_up_to(rows / leaves_target(hidden));
    if hidden > 512 {
        return leaf;
    }
    let few = power_of_two_up_to(rows / (leaves_target(hidden) / 2));
    if few > EIGHT {
        return if leaf > EIGHT { leaf } else { EIGHT };
    }
    if few == 1 && hidden > 256 { 2 } else { few }
}

/// Rows of a leaf of narrow rows, from which on leaves grow later.
const EIGHT: u64 = 8;

/// Leaves of T rows: ⌈T / [`leaf_rows`]⌉, at most twice the target beyond the window.
#[must_use]
#[inline(always)]
pub const fn leaf_count(rows: u64, hidden: u32) -> u64 {
    rows.div_ceil(leaf_rows(rows, hidden))
}

/// Leaves that T rows of groups of `width` elements are cut into at least in the gated form, once
/// T is large enough.
#[must_use]
#[inline(always)]
pub const fn gated_leaves_target(width: u32) -> u64 {
    if width <= 512 {
        8192
    } else if width <= 1024 {
        1024
    } else {
        512
    }
}

/// Rows of a leaf of the gated form: the largest power of two ≤ max(m, T / N), N =
/// [`gated_leaves_target`]\(D\) and m = 1; but for D ≤ 512 m is 2 beyond T = 2048, and where that gives
/// more than 8, a leaf has the largest power of two ≤ max(8, T / 65,536).
///
/// A row of the gated form costs more than a plain one, so the work is dealt out in smaller parts; of
/// narrow rows two are worked on at a time.
#[must_use]
#[inline(always)]
pub const fn gated_leaf_rows(rows: u64, width: u32) -> u64 {
    let leaf = power_of_two_up_to(rows / gated_leaves_target(width));
    if width > 512 {
        return leaf;
    }
    if leaf <= 8 {
        return if leaf == 1 && rows > 2048 { 2 } else { leaf };
    }
    let larger = power_of_two_up_to(rows / 65_536);
    if larger > 8 { larger } else { 8 }
}

/// The largest power of two ≤ max(1, n).
#[inline(always)]
const fn power_of_two_up_to(n: u64) -> u64 {
    if n <= 1 {
        1
    } else {
        1 << (63 - n.leading_zeros())
    }
}
