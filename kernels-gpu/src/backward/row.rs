//! One row of the backward, for the threads that share it.

use crate::arith::{
    Lane, Width, accumulate, backward_scale, input_gradient, lane_dot, narrow, projection, unroll,
    weighted, widen,
};
use crate::device::{Words4, global};
use crate::params::BackwardParams;
use crate::ring::{Ring, RowStarts};
use crate::rows::{Columns, NO_WORDS, forget, row_start, row_start_mut};
use crate::tree::Node;

/// Matrices that a backward reads: dy, x, and dh in the residual form. The ring has places for
/// as many as its form needs.
pub const DY: usize = 0;
/// x in a ring.
pub const X: usize = 1;
/// dh in a ring.
pub const DH: usize = 2;

/// A row that is to be loaded, and where it lies in `TENSORS` matrices (2, or 3 in the residual form):
/// the same for all threads of a warp.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<const TENSORS: usize> {
    /// The row.
    pub row: u32,
    starts: RowStarts<TENSORS>,
}

impl<const TENSORS: usize> Cursor<TENSORS> {
    /// At row `row`, which need not be there.
    #[inline(always)]
    pub fn at<const GROUPED: bool>(p: &BackwardParams, row: u32) -> Self {
        let all = [(p.dy, p.dy_stride), (p.x, p.x_stride), (p.dh, p.dh_stride)];
        let mut rows = [p.dy; TENSORS];
        unroll!(TENSORS, |tensor| {
            let (base, stride) = all[tensor];
            rows[tensor] = row_start::<GROUPED>(base, row, stride, p.groups);
        });
        let scalar = p.rstd.wrapping_add(row as usize);
        let starts = RowStarts { rows, scalar };
        Self { row, starts }
    }

    /// Where row `r` from here lies, without groups.
    #[inline(always)]
    pub fn starts(&self, p: &BackwardParams, r: usize) -> RowStarts<TENSORS> {
        let all = [p.dy_stride, p.x_stride, p.dh_stride];
        let mut starts = self.starts;
        if r > 0 {
            unroll!(TENSORS, |tensor| {
                let distance = all[tensor].row.wrapping_mul(r as i64) as isize;
                starts.rows[tensor] = starts.rows[tensor].wrapping_offset(distance);
            });
            starts.scalar = starts.scalar.wrapping_add(r);
        }
        starts
    }

    /// `rows` rows on, without groups: additions alone.
    #[inline(always)]
    pub fn advance(&mut self, p: &BackwardParams, rows: u32) {
        self.starts = self.starts(p, rows as usize);
        self.row += rows;
    }
}

/// The start of row `row` of dx.
#[inline(always)]
pub fn dx_start<const GROUPED: bool>(p: &BackwardParams, row: u32) -> *mut u16 {
    row_start_mut::<GROUPED>(p.dx, row, p.dx_stride, p.groups)
}

/// A thread's part of a row, and the row's rstd.
#[derive(Clone, Copy, Debug)]
pub struct RowWords<const VECTORS: usize> {
    /// Vectors of dy.
    pub dy: [Words4; VECTORS],
    /// Vectors of x.
    pub x: [Words4; VECTORS],
    /// Vectors of the residual gradient, zeros where there is none.
    pub dh: [Words4; VECTORS],
    /// The row's rstd.
    pub rstd: f32,
    /// Multiplies dx, where the row was scaled.
    scale: Option<f32>,
}

impl<const VECTORS: usize> Default for RowWords<VECTORS> {
    /// A row of zeros with an ordinary rstd.
    #[inline(always)]
    fn default() -> Self {
        let none = [NO_WORDS; VECTORS];
        Self {
            dy: none,
            x: none,
            dh: none,
            rstd: 1.0,
            scale: None,
        }
    }
}

impl<const VECTORS: usize> RowWords<VECTORS> {
    /// Loads row `row`; the default past the last row.
    ///
    /// # Safety
    /// - `p` describes live buffers of p.rows rows, as [`Columns::load`] wants them.
    #[inline(always)]
    pub unsafe fn load<const RESIDUAL: bool>(
        p: &BackwardParams,
        columns: Columns<VECTORS>,
        row: u64,
    ) -> Self {
        let mut words = Self::default();
        if row < u64::from(p.rows) {
            let row = row as u32;
            // SAFETY: the row is inside the buffers.
            unsafe {
                words.dy = columns.load(row_start::<true>(p.dy, row, p.dy_stride, p.groups));
                words.x = columns.load(row_start::<true>(p.x, row, p.x_stride, p.groups));
                if RESIDUAL {
                    let dh = row_start::<true>(p.dh, row, p.dh_stride, p.groups);
                    words.dh = columns.load(dh);
                }
                words.rstd = global::load_f32(p.rstd.add(row as usize));
            }
        }
        words.scaled()
    }

    /// Row `row` of a ring's current stage, without the residual gradient.
    ///
    /// # Safety
    /// - As [`Ring::vectors`].
    #[inline(always)]
    pub unsafe fn take<const ROWS: usize, const STAGES: usize, const TENSORS: usize>(
        ring: &Ring<VECTORS, ROWS, STAGES, TENSORS>,
        row: usize,
    ) -> Self {
        // SAFETY: the caller's obligations.
        unsafe {
            Self {
                dy: ring.vectors(row, DY),
                x: ring.vectors(row, X),
                rstd: ring.scalar(row),
                ..Self::default()
            }
            .scaled()
        }
    }

    /// Scales the row if it is an extreme one: dx = scale · (the same formula of the scaled x and
    /// rstd), and the terms of dw do not change.
    #[inline(always)]
    fn scaled(mut self) -> Self {
        if let Some(scale) = backward_scale(self.rstd) {
            unroll!(VECTORS, |v| self.x[v] = scale.apply_words(self.x[v]));
            self.rstd *= scale.inverse;
            self.scale = Some(scale.scale);
        }
        self
    }

    /// Vector `v` of dy and of x.
    #[inline(always)]
    pub fn vector(&self, v: usize) -> (Lane, Lane) {
        (widen(self.dy[v]), widen(self.x[v]))
    }

    /// The thread's lane values of the dot product.
    #[inline(always)]
    pub fn dots(&self, w: impl Fn(usize) -> Lane) -> [f32; VECTORS] {
        let mut dots = [0.0; VECTORS];
        unroll!(VECTORS, |v| {
            let (dy, x) = self.vector(v);
            dots[v] = lane_dot(&weighted(&dy, &w(v)), &x);
        });
        dots
    }

    /// Adds the row's terms to the weight gradient of the thread's columns.
    #[inline(always)]
    pub fn accumulate(&self, node: &mut Node<VECTORS>) {
        unroll!(VECTORS, |v| {
            let (dy, x) = self.vector(v);
            accumulate(&mut node[v], &dy, &x, self.rstd);
        });
    }

    /// The same row, whose widened values need not stay in registers from here on.
    #[inline(always)]
    pub fn forget(&self) -> Self {
        Self {
            dy: forget(self.dy),
            x: forget(self.x),
            ..*self
        }
    }

    /// Stores dx where it is wanted, from the finished dot product, at `out` ([`dx_start`]).
    ///
    /// # Safety
    /// - `out` is a row of `p.dx`, as [`Columns::store`] wants it.
    #[inline(always)]
    pub unsafe fn store_dx<const RESIDUAL: bool>(
        &self,
        p: &BackwardParams,
        columns: Columns<VECTORS>,
        out: *mut u16,
        w: impl Fn(usize) -> Lane,
        dot: f32,
    ) {
        let k = projection(dot, Width::new(p.hidden), self.rstd);
        // Not a branch: the stores ask for the columns anyway.
        let columns = columns.forget().below(p.dx_columns);
        let out = out.wrapping_add(columns.first as usize);
        let store = |words: &Self, scale: Option<f32>| {
            unroll!(VECTORS, |v| {
                let (dy, x) = words.vector(v);
                let mut dx = input_gradient(&weighted(&dy, &w(v)), &x, words.rstd, k);
                if let Some(scale) = scale {
                    unroll!(8, |i| dx[i] *= scale);
                }
                if RESIDUAL {
                    let dh = widen(words.dh[v]);
                    unroll!(8, |i| dx[i] += dh[i]);
                }
                // SAFETY: the caller's obligation.
                unsafe { columns.store_stream(out, v, narrow(&dx)) };
            });
        };
        match self.scale {
            None => store(self, None),
            // From scratch: multiplications of the other rows by one would cost them more.
            Some(scale) => store(&self.forget(), Some(scale)),
        }
    }
}
