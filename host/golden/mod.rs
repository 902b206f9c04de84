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

pub mod gated;
mod memory;
mod row;
mod slices;
#[cfg(test)]
mod tests;
mod weight_gradient;

pub use slices::{Backward, Forward, Weight, backward_slices, forward_slices};

use crate::element::Element;
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm};
use crate::view::{Dtype, RowsView, VectorView};
use cake_rmsnorm_kernels::arith::backward_scale;
use cake_rmsnorm_kernels::instructions::Instructions;
use half::{bf16, f16};
use memory::{Elements, ElementsMut, Rows, RowsMut};
use rayon::prelude::*;
use row::RowWeight;
use std::ops::Range;
use std::slice;
use weight_gradient::{Leaves, Node, WeightGradientOut};

/// Elements worth a task of their own.
const TASK_ELEMENTS: usize = 1 << 14;

/// Forward on host addresses, of any alignment that their element types allow.
///
/// # Safety
/// - The arguments' shapes and types are those of `op` (a [`Backend`](crate::backend::Backend)
///   checks them), and addresses are aligned to their element types.
/// - Every address is valid for the elements of its view; outputs share memory with nothing, but as
///   [`ForwardArgs`] says; and nobody else writes the inputs or accesses the outputs during the call.
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
    let inputs = [Some(args.x), args.residual];
    let over = |output: RowsView| {
        let mut inputs = inputs.iter().flatten();
        inputs.any(|input| input.same_memory(&output))
    };
    let task = ForwardTask {
        x: Rows::<E>::new(&args.x),
        residual: args.residual.as_ref().map(Rows::new),
        // SAFETY: the weight has H elements of its type.
        w: unsafe { row_weight(op, args.w.as_ref()) },
        h: args.h.as_ref().map(RowsMut::new),
        y: RowsMut::new(&args.y),
        rstd: args.rstd.as_ref().map(ElementsMut::new),
        eps: op.eps(),
        hidden: op.hidden() as usize,
        in_place: over(args.y) || args.h.is_some_and(over),
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
    let hidden = op.hidden() as usize;
    let over = |input: RowsView| args.dx.is_some_and(|dx| dx.same_memory(&input));
    let task = BackwardTask {
        dy: Rows::<E>::new(&args.dy),
        x: Rows::new(&args.x),
        dh: args.dh.as_ref().map(Rows::new),
        // SAFETY: the weight has H elements of its type.
        w: unsafe { row_weight(op, args.w.as_ref()) },
        rstd: args.rstd.as_ref().map(Elements::new),
        dx: args.dx.as_ref().map(RowsMut::new),
        eps: op.eps(),
        hidden,
        in_place: over(args.dy) || over(args.x) || args.dh.is_some_and(over),
    };
    // SAFETY: the caller's obligations.
    unsafe {
        let dw = args
            .dw
            .as_ref()
            .map(|dw| WeightGradientOut::new(dw, hidden));
        task.run(args.dy.rows as usize, dw, Instructions::detect());
    }
}

/// What rows are multiplied by: the weight, widened to FP32 (exact), plus its offset; or ones.
///
/// # Safety
/// - The view describes live memory that nobody writes during the call.
unsafe fn row_weight(op: &RmsNorm, view: Option<&VectorView>) -> RowWeight {
    let Some(view) = view else {
        return RowWeight::new(vec![1.0; op.hidden() as usize]);
    };
    let (address, len) = (view.address as usize, view.len as usize);
    // SAFETY: the caller's obligation.
    let mut elements: Vec<f32> = unsafe {
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
    if op.weight_offset() != 0.0 {
        elements.iter_mut().for_each(|w| *w += op.weight_offset());
    }
    RowWeight::new(elements)
}

/// A forward, with H free.
struct ForwardTask<E> {
    x: Rows<E>,
    residual: Option<Rows<E>>,
    w: RowWeight,
    h: Option<RowsMut<E>>,
    y: RowsMut<E>,
    rstd: Option<ElementsMut>,
    eps: f32,
    hidden: usize,
    /// An output lies in the place of an input.
    in_place: bool,
}

impl<E: Element> ForwardTask<E> {
    /// # Safety
    /// - Every address is valid for `rows` rows; outputs share memory with nothing, but for elements
    ///   in the place of the same ones of an input where `in_place` says so; and nobody else writes
    ///   the inputs or accesses the outputs during the call.
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
        // SAFETY: the caller's obligations; copies are made before the outputs are written.
        unsafe {
            let (x, residual) = (self.x.row(row), self.residual.as_ref());
            let residual = residual.map(|residual| residual.row(row));
            if self.in_place {
                let (x, residual) = (x.to_vec(), residual.map(<[E]>::to_vec));
                self.row_of(&x, residual.as_deref(), row, instructions);
            } else {
                self.row_of(x, residual, row, instructions);
            }
        }
    }

    /// # Safety
    /// - As [`ForwardTask::row`], whose inputs `x` and `residual` are.
    unsafe fn row_of(
        &self,
        x: &[E],
        residual: Option<&[E]>,
        row: usize,
        instructions: Instructions,
    ) {
        // SAFETY: the caller's obligations.
        unsafe {
            let y = self.y.row(row);
            let h = match (residual, &self.h) {
                (Some(residual), Some(h)) => {
                    let h = h.row(row);
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
            if let Some(out) = &self.rstd {
                out.write(row, rstd);
            }
        }
    }
}

/// A backward, with H free.
struct BackwardTask<E> {
    dy: Rows<E>,
    x: Rows<E>,
    dh: Option<Rows<E>>,
    w: RowWeight,
    rstd: Option<Elements>,
    dx: Option<RowsMut<E>>,
    eps: f32,
    hidden: usize,
    /// dx lies in the place of an input.
    in_place: bool,
}

impl<E: Element> BackwardTask<E> {
    /// # Safety
    /// - As [`ForwardTask::run`].
    unsafe fn run(
        &self,
        rows: usize,
        dw: Option<WeightGradientOut<'_>>,
        instructions: Instructions,
    ) {
        let Some(mut dw) = dw else {
            // SAFETY: each row is visited once.
            return (0..rows)
                .into_par_iter()
                .with_min_len(TASK_ELEMENTS.div_ceil(self.hidden))
                .for_each(|row| unsafe { self.input_gradient(row, self.rstd(row), instructions) });
        };
        // SAFETY: each leaf is visited once, hence each row.
        let leaf = |rows: Range<usize>| unsafe { self.leaf(rows, instructions) };
        let leaves = Leaves::new(rows, self.hidden);
        let root = leaves.root(&leaf, instructions);
        dw.store(&root.unwrap_or_else(|| Node::empty(self.hidden)));
    }

    /// dx of a leaf's rows, and the leaf's share of dw.
    ///
    /// # Safety
    /// - As [`ForwardTask::run`], for the rows, whose dx nobody else accesses.
    unsafe fn leaf(&self, rows: Range<usize>, instructions: Instructions) -> Node {
        // SAFETY: the caller's obligations; dx is written when its rows have joined the sum.
        unsafe {
            let rstd: Vec<f32> = rows.clone().map(|row| self.rstd(row)).collect();
            let inputs = rows.clone().zip(&rstd);
            let terms = inputs.map(|(row, &rstd)| (self.dy.row(row), self.x.row(row), rstd));
            let node = instructions.run(
                #[inline(always)]
                || Node::leaf(self.hidden, terms),
            );
            for (row, rstd) in rows.zip(rstd) {
                self.input_gradient(row, rstd, instructions);
            }
            node
        }
    }

    /// The row's rstd: the caller's, or worked out again.
    ///
    /// # Safety
    /// - As [`BackwardTask::leaf`], for one row.
    unsafe fn rstd(&self, row: usize) -> f32 {
        // SAFETY: the caller's obligations.
        unsafe {
            match &self.rstd {
                Some(rstd) => rstd.read(row),
                None => row::rstd(self.x.row(row), self.eps),
            }
        }
    }

    /// dx of a row, if it is wanted.
    ///
    /// # Safety
    /// - As [`BackwardTask::leaf`], for one row.
    unsafe fn input_gradient(&self, row: usize, rstd: f32, instructions: Instructions) {
        let Some(dx) = &self.dx else { return };
        // SAFETY: the caller's obligations; copies are made before dx is written.
        unsafe {
            let (dy, x) = (self.dy.row(row), self.x.row(row));
            let dh = self.dh.as_ref().map(|dh| dh.row(row));
            let gradient = |dy: &[E], x: &[E], dh: Option<&[E]>, dx: &mut [E]| {
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
            };
            if self.in_place {
                let (dy, x, dh) = (dy.to_vec(), x.to_vec(), dh.map(<[E]>::to_vec));
                gradient(&dy, &x, dh.as_deref(), dx.row(row));
            } else {
                gradient(dy, x, dh, dx.row(row));
            }
        }
    }
}
