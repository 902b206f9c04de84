//! Where rows lie, and which of them a block has.

use crate::device::{math::wide_product, thread};
use crate::gated::params::Strides;

/// A row: a head of a token. As a distance, what is added to both.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    token: u32,
    head: u32,
}

impl Place {
    /// Row `row`, where a token has `heads`.
    #[inline(always)]
    pub fn of(row: u32, heads: u32) -> Self {
        let heads = heads.max(1); // tells the compiler that it is not zero
        Self {
            token: row / heads,
            head: row % heads,
        }
    }

    /// The row that lies `distance` rows further on.
    #[inline(always)]
    pub fn plus(self, distance: Place, heads: u32) -> Self {
        let head = self.head + distance.head;
        let token = self.token + distance.token;
        if head >= heads {
            Self {
                token: token + 1,
                head: head - heads,
            }
        } else {
            Self { token, head }
        }
    }

    /// Elements before the row.
    #[inline(always)]
    fn offset(self, strides: Strides) -> isize {
        // Tokens and heads stay below 2³¹.
        let product = |count: u32, stride: i32| wide_product(count as i32, stride);
        let vectors = product(self.token, strides.token) + product(self.head, strides.head);
        (8 * vectors) as isize
    }

    /// The start of the row.
    #[inline(always)]
    pub fn start(self, base: *const u16, strides: Strides) -> *const u16 {
        base.wrapping_offset(self.offset(strides))
    }

    /// The start of the row, to write to.
    #[inline(always)]
    pub fn start_mut(self, base: *mut u16, strides: Strides) -> *mut u16 {
        base.wrapping_offset(self.offset(strides))
    }
}

/// A block's part of the work: one group of columns, and every `workers`-th unit of rows from
/// number `worker` on. Blocks of neighbouring groups are neighbours, and read the same rows.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The group.
    pub group: u32,
    /// The first unit of rows.
    pub worker: u32,
    /// Blocks that share the group.
    pub workers: u32,
}

impl Part {
    /// The calling block's part.
    #[inline(always)]
    pub fn of_block(groups: u32) -> Self {
        let groups = groups.max(1); // tells the compiler that it is not zero
        Self {
            group: thread::block_idx_x() % groups,
            worker: thread::block_idx_x() / groups,
            workers: thread::grid_dim_x() / groups,
        }
    }
}
