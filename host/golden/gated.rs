//! The gated form, from the contract: one row after the other, in plain arrays.

use super::row::RowSum;
use super::weight_gradient::{Leaves, Node, WeightGradientOut};
use crate::gated::{GateOrder, GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, HeadsView};
use crate::op::Update;
use crate::view::{Dtype, VectorView};
use cake_rmsnorm_kernels::arith::{
    LANE_ELEMENTS, RowScale, TILE, Width, backward_scale, canonical, mean_square, projection,
    reciprocal_root, rescued_rstd, widen_low,
};
use cake_rmsnorm_kernels::device::math::bf16x2;
use cake_rmsnorm_kernels::gated::arith::{
    Element, gate_gradient, gradient, input_gradient, normalised, of_norm, output,
};
use cake_rmsnorm_kernels::gated::gate::Gate;
use cake_rmsnorm_kernels::instructions::Instructions;
use cake_rmsnorm_kernels::leaf::gated_leaf_rows;
use half::bf16;
use rayon::prelude::*;
use std::ops::Range;
use std::slice;

/// Elements worth a task of their own.
const TASK_ELEMENTS: usize = 1 << 12;

/// Forward of the gated form on host addresses.
///
/// # Safety
/// - The arguments' shapes and types are those of `op`, and addresses are aligned to their
///   element types.
/// - Every address is valid for the elements of its view; outputs share memory with nothing, and
///   nobody else writes the inputs or accesses the outputs during the call.
pub unsafe fn forward(op: &GatedRmsNorm, args: &GatedForwardArgs) {
    match op.order() {
        // SAFETY: the caller's obligations.
        GateOrder::NormFirst => unsafe { run_forward::<false>(op, args) },
        // SAFETY: the caller's obligations.
        GateOrder::GateFirst => unsafe { run_forward::<true>(op, args) },
    }
}

/// Backward of the gated form on host addresses. Needs no workspace.
///
/// # Safety
/// - As [`forward`].
pub unsafe fn backward(op: &GatedRmsNorm, args: &GatedBackwardArgs) {
    match op.order() {
        // SAFETY: the caller's obligations.
        GateOrder::NormFirst => unsafe { run_backward::<false>(op, args) },
        // SAFETY: the caller's obligations.
        GateOrder::GateFirst => unsafe { run_backward::<true>(op, args) },
    }
}

/// # Safety
/// - As [`forward`].
unsafe fn run_forward<const GATE_FIRST: bool>(op: &GatedRmsNorm, args: &GatedForwardArgs) {
    let (width, groups) = (op.width() as usize, op.groups() as usize);
    let [x, z, y] = [&args.x, &args.z, &args.y].map(Rows::new);
    // SAFETY: the weight has H elements of its type.
    let w = unsafe { weight(&args.w) };
    let rstd = args.rstd.map(|view| Address(view.address));
    let instructions = Instructions::detect();
    (0..x.count)
        .into_par_iter()
        .with_min_len(TASK_ELEMENTS.div_ceil(width * groups))
        .for_each_init(
            || Row::new(width),
            |scratch, row| {
                for group in 0..groups {
                    let columns = group * width..(group + 1) * width;
                    // SAFETY: each row is visited once, and rows of an output do not overlap.
                    unsafe {
                        let (x, z) = (x.row(row, &columns), z.row(row, &columns));
                        let y = y.row_mut(row, &columns);
                        let value = instructions.run(
                            #[inline(always)]
                            || scratch.forward::<GATE_FIRST>(x, z, &w[columns], op.eps(), y),
                        );
                        if let Some(rstd) = rstd {
                            *rstd.f32_at(row * groups + group) = canonical(value);
                        }
                    }
                }
            },
        );
}

/// # Safety
/// - As [`forward`].
unsafe fn run_backward<const GATE_FIRST: bool>(op: &GatedRmsNorm, args: &GatedBackwardArgs) {
    let (width, groups) = (op.width() as usize, op.groups() as usize);
    let [dy, x, z, dx, dz] = [&args.dy, &args.x, &args.z, &args.dx, &args.dz].map(Rows::new);
    // SAFETY: the weight has H elements of its type.
    let w = unsafe { weight(&args.w) };
    let rstd = args.rstd.map(|view| Address(view.address));
    let instructions = Instructions::detect();
    let leaf_rows = gated_leaf_rows(dy.count as u64, width as u32) as usize;
    let leaves = Leaves::of_rows(dy.count, width, leaf_rows);
    for group in 0..groups {
        let columns = group * width..(group + 1) * width;
        let leaf = |rows: Range<usize>| {
            let mut scratch = Row::new(width);
            let mut node = Node::empty(width);
            for row in rows {
                // SAFETY: each row is visited once in a group, and rows of an output do not
                // overlap.
                unsafe {
                    let given = rstd.map(|rstd| *rstd.f32_at(row * groups + group));
                    let inputs = [&dy, &x, &z].map(|matrix| matrix.row(row, &columns));
                    let outputs = [&dx, &dz].map(|matrix| matrix.row_mut(row, &columns));
                    let w = &w[columns.clone()];
                    instructions.run(
                        #[inline(always)]
                        || {
                            scratch.backward::<GATE_FIRST>(inputs, w, given, op.eps(), outputs);
                            let terms = scratch.exact.iter().zip(&scratch.factor);
                            node.add_products(terms.map(|(&g, &r)| (g, r)));
                        },
                    );
                }
            }
            node
        };
        let root = leaves.root(&leaf, instructions);
        let Some((dw, update)) = args.dw else {
            continue;
        };
        let first = Address(dw.address);
        // SAFETY: dw has H FP32 elements that nobody else accesses.
        let dw = unsafe {
            let start: *mut f32 = first.f32_at(columns.start);
            slice::from_raw_parts_mut(start, width)
        };
        let mut out = WeightGradientOut {
            dw: Some(dw),
            bf16: None,
            update,
        };
        match root {
            Some(root) => out.store(&root),
            None if update == Update::Overwrite => out.store(&Node::empty(width)),
            None => {}
        }
    }
}

/// The weight, widened to FP32 (exact).
///
/// # Safety
/// - The view describes live memory that nobody writes during the call.
unsafe fn weight(view: &VectorView) -> Vec<f32> {
    let (address, len) = (view.address as usize, view.len as usize);
    // SAFETY: the caller's obligation.
    unsafe {
        match view.dtype {
            Dtype::F32 => slice::from_raw_parts(address as *const f32, len).to_vec(),
            _ => {
                let narrow = slice::from_raw_parts(address as *const bf16, len);
                narrow.iter().map(|w| w.to_f32()).collect()
            }
        }
    }
}

/// An address that threads share.
#[derive(Clone, Copy)]
struct Address(u64);

impl Address {
    fn f32_at(self, index: usize) -> *mut f32 {
        (self.0 as usize as *mut f32).wrapping_add(index)
    }
}

/// A BF16 matrix [tokens, heads, hidden] as rows.
#[derive(Clone, Copy)]
struct Rows {
    address: Address,
    heads: usize,
    token_stride: isize,
    head_stride: isize,
    /// Tokens times heads.
    count: usize,
}

impl Rows {
    fn new(view: &HeadsView) -> Self {
        Self {
            address: Address(view.address),
            heads: (view.heads as usize).max(1),
            token_stride: view.token_stride as isize,
            head_stride: view.head_stride as isize,
            count: (view.tokens * view.heads) as usize,
        }
    }

    fn start(&self, row: usize, columns: &Range<usize>) -> *mut u16 {
        let (token, head) = ((row / self.heads) as isize, (row % self.heads) as isize);
        let first = self.address.0 as usize as *mut u16;
        let offset = token * self.token_stride + head * self.head_stride;
        first.wrapping_offset(offset).wrapping_add(columns.start)
    }

    /// # Safety
    /// - The row is inside live memory that nobody writes while the slice lives.
    unsafe fn row<'a>(&self, row: usize, columns: &Range<usize>) -> &'a [u16] {
        // SAFETY: the caller's obligation.
        unsafe { slice::from_raw_parts(self.start(row, columns), columns.len()) }
    }

    /// # Safety
    /// - The row is inside live memory that nobody else accesses while the slice lives.
    unsafe fn row_mut<'a>(&self, row: usize, columns: &Range<usize>) -> &'a mut [u16] {
        // SAFETY: the caller's obligation.
        unsafe { slice::from_raw_parts_mut(self.start(row, columns), columns.len()) }
    }
}

/// One row of one group, on its way.
struct Row {
    /// silu(z).
    gate: Vec<f32>,
    /// silu′(z).
    slope: Vec<f32>,
    /// What is normalised.
    u: Vec<f32>,
    /// The gradient of u ⊗ rstd.
    a: Vec<f32>,
    /// Of the terms of dw, the part that is exact.
    exact: Vec<f32>,
    /// And the factor that is rounded.
    factor: Vec<f32>,
}

impl Row {
    fn new(width: usize) -> Self {
        let zeros = || vec![0.0; width];
        Self {
            gate: zeros(),
            slope: zeros(),
            u: zeros(),
            a: zeros(),
            exact: zeros(),
            factor: zeros(),
        }
    }

    /// y; returns rstd.
    #[inline(always)]
    fn forward<const GATE_FIRST: bool>(
        &mut self,
        x: &[u16],
        z: &[u16],
        w: &[f32],
        eps: f32,
        y: &mut [u16],
    ) -> f32 {
        let parts = self.gate.iter_mut().zip(&mut self.u);
        for ((gate, u), (&x, &z)) in parts.zip(x.iter().zip(z)) {
            *gate = Gate::of(widen(z)).silu();
            *u = normalised::<GATE_FIRST>(widen(x), *gate);
        }
        let rstd = rstd(&self.u, eps);
        for (((y, &u), &w), &gate) in y.iter_mut().zip(&self.u).zip(w).zip(&self.gate) {
            *y = narrow(output::<GATE_FIRST>(u, rstd, w, gate));
        }
        rstd
    }

    /// dx, dz and the terms of dw. `inputs` are dy, x and z.
    #[inline(always)]
    fn backward<const GATE_FIRST: bool>(
        &mut self,
        inputs: [&[u16]; 3],
        w: &[f32],
        given: Option<f32>,
        eps: f32,
        outputs: [&mut [u16]; 2],
    ) {
        let ([dy, x, z], [dx, dz]) = (inputs, outputs);
        let width = x.len();
        for j in 0..width {
            let gate = Gate::of(widen(z[j]));
            self.gate[j] = gate.silu();
            self.slope[j] = gate.slope();
            self.u[j] = normalised::<GATE_FIRST>(widen(x[j]), self.gate[j]);
            self.a[j] = of_norm::<GATE_FIRST>(widen(dy[j]) * w[j], self.gate[j]);
        }
        let rstd = given.unwrap_or_else(|| rstd(&self.u, eps));
        let mut scaled = rstd;
        let mut scale = 1.0;
        if let Some(row) = backward_scale(rstd) {
            scaled = rstd * row.inverse;
            scale = row.scale;
            for u in &mut self.u {
                // x stays BF16; a product has no such form.
                *u *= scale;
                if !GATE_FIRST {
                    *u = widen(narrow(*u));
                }
            }
        }
        let k = projection(row_sum(&self.a, &self.u), Width::new(width as u32), scaled);
        for j in 0..width {
            let (dy, x, u, gate) = (widen(dy[j]), widen(x[j]), self.u[j], self.gate[j]);
            (self.exact[j], self.factor[j]) = if GATE_FIRST {
                (dy * x, gate * rstd)
            } else {
                (dy * u, gate * scaled)
            };
            let element = Element {
                q: dy * w[j],
                x,
                u,
                factor: self.factor[j],
                rstd: scaled,
                k,
            };
            let du = gradient::<GATE_FIRST>(&element) * scale;
            dx[j] = narrow(input_gradient::<GATE_FIRST>(du, gate));
            dz[j] = narrow(gate_gradient::<GATE_FIRST>(&element, du, self.slope[j]));
        }
    }
}

/// rstd of a row u.
#[inline(always)]
fn rstd(u: &[f32], eps: f32) -> f32 {
    let width = Width::new(u.len() as u32);
    let (mean, rescue) = mean_square(row_sum(u, u), width, eps);
    match rescue {
        None => reciprocal_root(mean),
        Some(row) => rescued_rstd(scaled_sum_of_squares(u, row), width, eps, row),
    }
}

#[cold]
fn scaled_sum_of_squares(u: &[f32], row: RowScale) -> f32 {
    let scaled: Vec<f32> = u.iter().map(|u| u * row.scale).collect();
    row_sum(&scaled, &scaled)
}

/// The row sum of (a, b).
#[inline(always)]
fn row_sum(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = TILE as usize / LANE_ELEMENTS;
    let mut sum = RowSum::default();
    for (a, b) in a.chunks(TILE as usize).zip(b.chunks(TILE as usize)) {
        let mut values = [0.0f32; LANES];
        let lanes = a.as_chunks::<LANE_ELEMENTS>().0.iter();
        let lanes = lanes.zip(b.as_chunks::<LANE_ELEMENTS>().0);
        for (v, (a, b)) in values.iter_mut().zip(lanes) {
            for (a, b) in a.iter().zip(b) {
                *v = a.mul_add(*b, *v);
            }
        }
        sum.add_tile(values);
    }
    sum.finish()
}

#[inline(always)]
fn widen(bits: u16) -> f32 {
    widen_low(u32::from(bits))
}

#[inline(always)]
fn narrow(value: f32) -> u16 {
    bf16x2(value, 0.0) as u16
}
