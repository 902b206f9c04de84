//! One row of the backward, for the threads that share it.

use crate::arith::{
    Lane, RowScale, accumulate, backward_scale, input_gradient, lane_dot, narrow, projection,
    unroll, weighted, widen,
};
use crate::device::{Words4, global, hint};
use crate::params::BackwardParams;
use crate::rows::{Columns, NO_WORDS, row_start, row_start_mut};
use crate::tree::Node;

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
}

impl<const VECTORS: usize> Default for RowWords<VECTORS> {
    #[inline(always)]
    fn default() -> Self {
        let none = [NO_WORDS; VECTORS];
        Self { dy: none, x: none, dh: none, rstd: 0.0 }
    }
}

impl<const VECTORS: usize> RowWords<VECTORS> {
    /// Loads row `row`; zeros past the last row.
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
                words.dy = columns.load(row_start(p.dy, row, p.dy_stride));
                words.x = columns.load(row_start(p.x, row, p.x_stride));
                if RESIDUAL {
                    words.dh = columns.load(row_start(p.dh, row, p.dh_stride));
                }
                words.rstd = global::load_f32(p.rstd.add(row as usize));
            }
        }
        words
    }

    /// The scale of an extreme row.
    #[inline(always)]
    pub fn scale(&self) -> Option<RowScale> {
        backward_scale(self.rstd)
    }

    /// rstd of the scaled row.
    #[inline(always)]
    pub fn scaled_rstd(&self, scale: Option<RowScale>) -> f32 {
        match scale {
            None => self.rstd,
            Some(scale) => self.rstd * scale.inverse,
        }
    }

    #[inline(always)]
    fn x(&self, v: usize, scale: Option<RowScale>) -> Lane {
        let x = widen(self.x[v]);
        match scale {
            None => x,
            Some(scale) => scale.apply(&x),
        }
    }

    /// Vector `v` of dy, and of the scaled x.
    #[inline(always)]
    pub fn vector(&self, v: usize, scale: Option<RowScale>) -> (Lane, Lane) {
        (widen(self.dy[v]), self.x(v, scale))
    }

    /// The thread's lane values of the dot product.
    #[inline(always)]
    pub fn dots(&self, w: impl Fn(usize) -> Lane, scale: Option<RowScale>) -> [f32; VECTORS] {
        let mut dots = [0.0; VECTORS];
        unroll::<VECTORS>(|v| {
            dots[v] = lane_dot(&weighted(&widen(self.dy[v]), &w(v)), &self.x(v, scale));
        });
        dots
    }

    /// Adds the row's terms to the weight gradient of the thread's columns.
    #[inline(always)]
    pub fn accumulate(&self, node: &mut Node<VECTORS>, scale: Option<RowScale>) {
        let rstd = self.scaled_rstd(scale);
        unroll::<VECTORS>(|v| {
            accumulate(&mut node[v], &widen(self.dy[v]), &self.x(v, scale), rstd);
        });
    }

    /// The same row, whose widened values need not stay in registers across the barrier.
    #[inline(always)]
    pub fn forget(&self) -> Self {
        let forget = |w: Words4| {
            Words4(hint::forget(w.0), hint::forget(w.1), hint::forget(w.2), hint::forget(w.3))
        };
        let mut words = *self;
        unroll::<VECTORS>(|v| {
            words.dy[v] = forget(words.dy[v]);
            words.x[v] = forget(words.x[v]);
        });
        words
    }

    /// Stores dx, from the finished dot product.
    ///
    /// # Safety
    /// - `p.dx` holds row `row`, as [`Columns::store`] wants it.
    #[inline(always)]
    pub unsafe fn store_dx<const RESIDUAL: bool>(
        &self,
        p: &BackwardParams,
        columns: Columns<VECTORS>,
        row: u32,
        w: impl Fn(usize) -> Lane,
        dot: f32,
        scale: Option<RowScale>,
    ) {
        let rstd = self.scaled_rstd(scale);
        let k = projection(dot, p.hidden as f32, rstd);
        let out = row_start_mut(p.dx, row, p.dx_stride);
        unroll::<VECTORS>(|v| {
            let a = weighted(&widen(self.dy[v]), &w(v));
            let mut dx = input_gradient(&a, &self.x(v, scale), rstd, k);
            if let Some(scale) = scale {
                dx = scale.apply(&dx);
            }
            if RESIDUAL {
                let dh = widen(self.dh[v]);
                unroll::<8>(|i| dx[i] += dh[i]);
            }
            // SAFETY: the caller's obligation.
            unsafe { columns.store(out, v, narrow(&dx)) };
        });
    }
}
