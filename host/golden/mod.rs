//! The golden implementation: the numerics contract (docs/numerics.md) on the CPU, bit for bit
//! what the kernels give.
//!
//! It is written straight from the contract, without the kernels' data movement: row sums are
//! 32-lane arrays, the weight gradient is a recursion over the aligned tree of leaves. It shares
//! with the kernels only the arithmetic of single elements
//! ([`arith`](cake_rmsnorm_kernels::arith)) and the leaf table
//! ([`leaf`](cake_rmsnorm_kernels::leaf)). Rows and leaves are spread over rayon's threads, which
//! changes no bit.
//!
//! - [`forward_slices`] and [`backward_slices`] work on slices and check them.
//! - [`forward`] and [`backward`] work on the addresses of an operator's arguments, as a
//!   [`Backend`](crate::backend::Backend) does.

mod memory;
mod row;
mod slices;
#[cfg(test)]
mod tests;
mod weight_gradient;

pub use slices::{Backward, Forward, Weight, backward_slices, forward_slices};

use crate::element::Element;
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm};
use crate::view::{Dtype, VectorView};
use cake_rmsnorm_kernels::arith::backward_scale;
use cake_rmsnorm_kernels::instructions::Instructions;
use half::{bf16, f16};
use memory::{Elements, ElementsMut, Rows, RowsMut};
use rayon::prelude::*;
use row::RowWeight;
use std::ops::Range;
use std::slice;
use weight_gradient::{Leaves, Node};

/// Elements worth a task of their own.
const TASK_ELEMENTS: usize = 1 << 14;

/// Forward on host addresses, of any alignment that their element types allow.
///
/// # Safety
/// - The arguments' shapes and types are those of `op` (a [`Backend`](crate::backend::Backend)
///   checks them), and addresses are aligned to their element types.
/// - Every address is valid for the elements of its view; outputs share memory with nothing, and
///   nobody else writes the inputs or accesses the outputs during the call.
pub unsafe fn forward(op: &RmsNorm, args: &ForwardArgs) {
    // SAFETY: the caller's obligations.
    unsafe {
        match op.input() {
            Dtype::Bf16 => typed_forward::<bf16>(op, args),
            Dtype::F16 => typed_forward::<f16>(op, args),
            Dtype::F32 => typed_forward::<f32>(op, args),
        }
    }
}

/// # Safety
/// - As [`forward`], for matrices of `E`.
unsafe fn typed_forward<E: Element>(op: &RmsNorm, args: &ForwardArgs) {
    let task = ForwardTask {
        x: Rows::<E>::new(&args.x),
        residual: args.residual.as_ref().map(Rows::new),
        // SAFETY: the weight has H elements of its type.
        w: unsafe { row_weight(&args.w) },
        h: args.h.as_ref().map(RowsMut::new),
        y: RowsMut::new(&args.y),
        rstd: ElementsMut::new(&args.rstd),
        eps: op.eps(),
        hidden: op.hidden() as usize,
    };
    // SAFETY: the caller's obligations.
    unsafe { task.run(args.x.rows as usize, Instructions::detect()) }
}

/// Backward on host addresses, of any alignment that their element types allow. Needs no
/// workspace.
///
/// # Safety
/// - As [`forward`].
pub unsafe fn backward(op: &RmsNorm, args: &BackwardArgs) {
    // SAFETY: the caller's obligations.
    unsafe {
        match op.input() {
            Dtype::Bf16 => typed_backward::<bf16>(op, args),
            Dtype::F16 => typed_backward::<f16>(op, args),
            Dtype::F32 => typed_backward::<f32>(op, args),
        }
    }
}

/// # Safety
/// - As [`forward`], for matrices of `E`.
unsafe fn typed_backward<E: Element>(op: &RmsNorm, args: &BackwardArgs) {
    let task = BackwardTask {
        dy: Rows::<E>::new(&args.dy),
        x: Rows::new(&args.x),
        dh: args.dh.as_ref().map(Rows::new),
        // SAFETY: the weight has H elements of its type.
        w: unsafe { row_weight(&args.w) },
        rstd: Elements::new(&args.rstd),
        dx: RowsMut::new(&args.dx),
        hidden: op.hidden() as usize,
    };
    // SAFETY: the caller's obligations.
    unsafe {
        let dw = slice::from_raw_parts_mut(args.dw.address as usize as *mut f32, task.hidden);
        task.run(args.dy.rows as usize, dw, Instructions::detect());
    }
}

/// The weight, widened to FP32 (exact).
///
/// # Safety
/// - The view describes live memory that nobody writes during the call.
unsafe fn row_weight(view: &VectorView) -> RowWeight {
    let (address, len) = (view.address as usize, view.len as usize);
    // SAFETY: the caller's obligation.
    let elements = unsafe {
        match view.dtype {
            Dtype::F32 => slice::from_raw_parts(address as *const f32, len).to_vec(),
            Dtype::Bf16 => {
                let narrow = slice::from_raw_parts(address as *const bf16, len);
                narrow.iter().map(|&w| Element::to_f32(w)).collect()
            }
            Dtype::F16 => {
                let narrow = slice::from_raw_parts(address as *const f16, len);
                narrow.iter().map(|&w| Element::to_f32(w)).collect()
            }
        }
    };
    RowWeight::new(elements)
}

/// A forward, with H free.
struct ForwardTask<E> {
    x: Rows<E>,
    residual: Option<Rows<E>>,
    w: RowWeight,
    h: Option<RowsMut<E>>,
    y: RowsMut<E>,
    rstd: ElementsMut,
    eps: f32,
    hidden: usize,
}

impl<E: Element> ForwardTask<E> {
    /// # Safety
    /// - Every address is valid for `rows` rows; outputs share memory with nothing, and nobody
    ///   else writes the inputs or accesses the outputs during the call.
    unsafe fn run(&self, rows: usize, instructions: Instructions) {
        // SAFETY: each row is visited once, and rows of an output do not overlap.
        (0..rows)
            .into_par_iter()
            .with_min_len(TASK_ELEMENTS.div_ceil(self.hidden))
            .for_each(|row| unsafe { self.row(row, instructions) });
    }

    /// # Safety
    /// - As [`ForwardTask::run`], for one row, whose outputs nobody else accesses.
    unsafe fn row(&self, row: usize, instructions: Instructions) {
        // SAFETY: the caller's obligations.
        unsafe {
            let (x, y) = (self.x.row(row), self.y.row(row));
            let h = match (&self.residual, &self.h) {
                (Some(residual), Some(h)) => {
                    let (residual, h) = (residual.row(row), h.row(row));
                    instructions.run(
                        #[inline(always)]
                        || row::add_residual(x, residual, h),
                    );
                    &*h
                }
                _ => x,
            };
            let rstd = instructions.run(
                #[inline(always)]
                || row::forward(h, &self.w, self.eps, y),
            );
            self.rstd.write(row, rstd);
        }
    }
}

/// A backward, with H free.
struct BackwardTask<E> {
    dy: Rows<E>,
    x: Rows<E>,
    dh: Option<Rows<E>>,
    w: RowWeight,
    rstd: Elements,
    dx: RowsMut<E>,
    hidden: usize,
}

impl<E: Element> BackwardTask<E> {
    /// # Safety
    /// - As [`ForwardTask::run`].
    unsafe fn run(&self, rows: usize, dw: &mut [f32], instructions: Instructions) {
        // SAFETY: each leaf is visited once, hence each row.
        let leaf = |rows: Range<usize>| unsafe { self.leaf(rows, instructions) };
        let leaves = Leaves::new(rows, self.hidden);
        match leaves.root(&leaf, instructions) {
            Some(root) => root.round(dw),
            None => dw.fill(0.0),
        }
    }

    /// dx of a leaf's rows, and the leaf's share of dw.
    ///
    /// # Safety
    /// - As [`ForwardTask::run`], for the rows, whose dx nobody else accesses.
    unsafe fn leaf(&self, rows: Range<usize>, instructions: Instructions) -> Node {
        // SAFETY: the caller's obligations.
        unsafe {
            for row in rows.clone() {
                let (dy, x, dx) = (self.dy.row(row), self.x.row(row), self.dx.row(row));
                let dh = self.dh.as_ref().map(|dh| dh.row(row));
                let rstd = self.rstd.read(row);
                instructions.run(
                    #[inline(always)]
                    || match backward_scale(rstd) {
                        None => row::backward(dy, x, dh, &self.w, rstd, 1.0, dx),
                        Some(row) => {
                            let (x, r) = (row::scaled(x, row), rstd * row.inverse);
                            row::backward(dy, &x, dh, &self.w, r, row.scale, dx);
                        }
                    },
                );
            }
            let terms = rows.map(|row| (self.dy.row(row), self.x.row(row), self.rstd.read(row)));
            instructions.run(
                #[inline(always)]
                || Node::leaf(self.hidden, terms),
            )
        }
    }
}
