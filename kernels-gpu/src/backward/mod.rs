//! Backward: with a = dy ⊗ w,
//!
//! ```text
//! dot = Σ a·x                    k = (((dot / H) ⊗ rstd) ⊗ rstd) ⊗ rstd
//! dx = BF16(fma(−k, x, rstd ⊗ a) [⊕ dh])
//! dw = Σ over rows of (dy·x)·rstd, compensated, in the canonical tree
//! ```
//!
//! The derivative of y = x·rstd·w: dx = rstd·(a − x̂·mean(a·x̂)), with x̂ = x·rstd.
//!
//! - [`block`]: a block a row, for H ≥ 512 or so. Reads x and dy once, stores nodes of dw.
//! - [`wide`]: the same for rows whose sums do not fit in registers.
//! - [`warp`]: a warp a row, for narrow rows. Reads x and dy once, stores nodes of dw.
//! - [`split`]: one launch for few rows, and for any row: blocks for dx beside blocks for dw.
//! - [`reduce`]: dw from the nodes.

pub mod block;
pub mod reduce;
pub mod row;
pub mod split;
pub mod warp;
pub mod wide;
