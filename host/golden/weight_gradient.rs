//! The weight gradient: leaves of rows, summed in an aligned binary tree.

use super::TASK_ELEMENTS;
use super::row::scaled;
use crate::element::Element;
use crate::op::{Update, WeightGradient};
use crate::view::Dtype;
use cake_rmsnorm_kernels::arith::{Pair, backward_scale};
use cake_rmsnorm_kernels::instructions::Instructions;
use cake_rmsnorm_kernels::leaf;
use half::bf16;
use std::ops::Range;
use std::slice;

/// Columns whose sums stay in the innermost cache while the rows of a leaf go by.
const COLUMNS: usize = 1024;

/// The leaf table of T rows, and the tree over it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaves {
    rows: usize,
    hidden: usize,
    leaf_rows: usize,
    count: usize,
}

impl Leaves {
    pub(super) fn new(rows: usize, hidden: usize) -> Self {
        let (t, h) = (rows as u64, hidden as u32);
        let (leaf_rows, count) = (
            leaf::leaf_rows(t, h) as usize,
            leaf::leaf_count(t, h) as usize,
        );
        Self {
            rows,
            hidden,
            leaf_rows,
            count,
        }
    }

    /// The same with leaves of another number of rows, a power of two.
    pub(super) fn of_rows(rows: usize, hidden: usize, leaf_rows: usize) -> Self {
        Self {
            rows,
            hidden,
            leaf_rows,
            count: rows.div_ceil(leaf_rows),
        }
    }

    /// The sum of all leaves; `None` when there are no rows.
    pub(super) fn root<F>(&self, leaf: &F, instructions: Instructions) -> Option<Node>
    where
        F: Fn(Range<usize>) -> Node + Sync,
    {
        let level = self.count.next_power_of_two().trailing_zeros();
        (self.count > 0).then(|| self.node(level, 0, leaf, instructions))
    }

    /// Node `index` of level `level`: leaves index·2^level … (index + 1)·2^level − 1, as far as
    /// there are. It is its left child where there are none on the right.
    fn node<F>(&self, level: u32, index: usize, leaf: &F, instructions: Instructions) -> Node
    where
        F: Fn(Range<usize>) -> Node + Sync,
    {
        if level == 0 {
            let first = index * self.leaf_rows;
            return leaf(first..(first + self.leaf_rows).min(self.rows));
        }
        let half = |index| self.node(level - 1, index, leaf, instructions);
        if (2 * index + 1) << (level - 1) >= self.count {
            return half(2 * index);
        }
        let elements = (self.leaf_rows << level) * self.hidden;
        let (mut left, right) = if elements > TASK_ELEMENTS {
            rayon::join(|| half(2 * index), || half(2 * index + 1))
        } else {
            (half(2 * index), half(2 * index + 1))
        };
        left.add(&right, instructions);
        left
    }
}

/// A partial sum of dw: a pair a column.
#[derive(Clone, Debug)]
pub(super) struct Node {
    sum: Vec<f32>,
    comp: Vec<f32>,
}

impl Node {
    /// The empty sum.
    pub(super) fn empty(hidden: usize) -> Self {
        Self {
            sum: vec![0.0; hidden],
            comp: vec![0.0; hidden],
        }
    }

    /// The sum of dy·x·rstd over rows (dy, x, rstd), in order from (0, 0).
    #[inline(always)]
    pub(super) fn leaf<'a, E: Element>(
        hidden: usize,
        rows: impl Iterator<Item = (&'a [E], &'a [E], f32)> + Clone,
    ) -> Self {
        let mut node = Self::empty(hidden);
        let blocks = node
            .sum
            .chunks_mut(COLUMNS)
            .zip(node.comp.chunks_mut(COLUMNS));
        for (block, (sum, comp)) in blocks.enumerate() {
            let columns = block * COLUMNS..block * COLUMNS + sum.len();
            for (dy, x, rstd) in rows.clone() {
                let (dy, x) = (&dy[columns.clone()], &x[columns.clone()]);
                match backward_scale(rstd) {
                    None => add_row(sum, comp, dy, x, rstd),
                    Some(row) => add_row(sum, comp, dy, &scaled(x, row), rstd * row.inverse),
                }
            }
        }
        node
    }

    /// Adds g·r, column by column.
    #[inline(always)]
    pub(super) fn add_products(&mut self, products: impl Iterator<Item = (f32, f32)>) {
        let columns = self.sum.iter_mut().zip(&mut self.comp);
        for ((sum, comp), (g, r)) in columns.zip(products) {
            let pair = Pair {
                sum: *sum,
                comp: *comp,
            }
            .add_product(g, r);
            (*sum, *comp) = (pair.sum, pair.comp);
        }
    }

    /// self = self + right.
    fn add(&mut self, right: &Node, instructions: Instructions) {
        instructions.run(
            #[inline(always)]
            || {
                let left = self.sum.iter_mut().zip(&mut self.comp);
                for ((sum, comp), (&right_sum, &right_comp)) in
                    left.zip(right.sum.iter().zip(&right.comp))
                {
                    let left = Pair {
                        sum: *sum,
                        comp: *comp,
                    };
                    let node = left.combine(Pair {
                        sum: right_sum,
                        comp: right_comp,
                    });
                    (*sum, *comp) = (node.sum, node.comp);
                }
            },
        );
    }

    /// The pair of a column.
    fn pair(&self, column: usize) -> Pair {
        Pair {
            sum: self.sum[column],
            comp: self.comp[column],
        }
    }
}

/// Where dw goes.
pub(super) struct WeightGradientOut<'a> {
    pub dw: Option<&'a mut [f32]>,
    pub bf16: Option<&'a mut [bf16]>,
    pub update: Update,
}

impl WeightGradientOut<'_> {
    /// # Safety
    /// - The outputs are live memory of `hidden` elements that nobody else accesses while this lives.
    pub(super) unsafe fn new(dw: &WeightGradient, hidden: usize) -> Self {
        let (f32, bf16) = dw.outputs();
        // SAFETY: the caller's obligations.
        unsafe {
            Self {
                dw: f32.map(|view| slice::from_raw_parts_mut(view.address as *mut f32, hidden)),
                bf16: bf16.map(|view| slice::from_raw_parts_mut(view.address as *mut _, hidden)),
                update: dw.update,
            }
        }
    }

    /// dw, rounded once, and once more to BF16. What is there joins the sum first, if it is to.
    pub(super) fn store(&mut self, root: &Node) {
        for column in 0..root.sum.len() {
            let mut pair = root.pair(column);
            if let (Update::Accumulate, Some(dw)) = (self.update, &self.dw) {
                pair = pair.add_value(dw[column]);
            }
            let rounded = pair.round();
            if let Some(dw) = &mut self.dw {
                dw[column] = rounded;
            }
            if let Some(bf16) = &mut self.bf16 {
                bf16[column] = Element::from_f32(rounded);
            }
        }
    }
}

/// Adds one row's terms to the pairs of neighbouring columns.
#[inline(always)]
fn add_row<E: Element, X: Element>(
    sum: &mut [f32],
    comp: &mut [f32],
    dy: &[E],
    x: &[X],
    rstd: f32,
) {
    for ((sum, comp), (&dy, &x)) in sum.iter_mut().zip(comp).zip(dy.iter().zip(x)) {
        let (dy, x) = (dy.to_f32(), x.to_f32());
        let pair = Pair {
            sum: *sum,
            comp: *comp,
        };
        let pair = match E::DTYPE {
            Dtype::F32 => pair.add_inexact_product(dy, x, rstd),
            _ => pair.add_product(dy * x, rstd),
        };
        (*sum, *comp) = (pair.sum, pair.comp);
    }
}
