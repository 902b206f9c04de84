//! What goes in, and what the golden implementation makes of it.

use super::{Case, Data, Draw, Layout, Layouts, Step};
use crate::element::Element;
use crate::golden::{self, Forward};
use crate::inputs::{Weight, bell};
use crate::op::{BackwardArgs, RmsNorm, WeightGradient};
use crate::view::{RowsView, VectorView, Workspace};
use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Packed inputs; rows that are the same one in memory are equal.
pub(super) struct Values<E> {
    pub x: Vec<E>,
    pub residual: Option<Vec<E>>,
    pub dy: Vec<E>,
    pub dh: Option<Vec<E>>,
    pub w: Option<Weight>,
    /// What dw holds, where it is added to.
    pub old_dw: Option<Vec<f32>>,
}

/// Outputs, packed. What was not wanted holds anything.
pub(super) struct Results<E> {
    pub forward: Forward<E>,
    pub dx: Vec<E>,
    pub dw: Vec<f32>,
    pub dw_bf16: Vec<bf16>,
}

impl<E: Element> Values<E> {
    pub(super) fn draw(case: &Case, layouts: &Layouts) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(case.seed ^ u64::MAX);
        let draw = &mut Draw(&mut rng);
        let mut matrix = |data: Data, layout: Layout| {
            let mut values = data.rows(draw, case.rows, case.hidden);
            if layout.step == Step::Same {
                let (first, rest) = values.split_at_mut(case.hidden.min(case.rows * case.hidden));
                rest.chunks_exact_mut(case.hidden)
                    .for_each(|row| row.copy_from_slice(first));
            }
            values
        };
        let x = matrix(case.x, layouts.x);
        let dy = matrix(case.dy, layouts.dy);
        let residual = case
            .residual
            .then(|| matrix(Data::Ordinary, layouts.residual));
        let dh = case.residual.then(|| matrix(Data::Ordinary, layouts.dh));
        let mean = 1.0 - case.weight_offset;
        let w = (0..case.hidden).map(|_| mean + 0.25 * bell(draw.bits()));
        let w = Weight::F32(w.collect());
        let w = case.weight.map(|dtype| w.to_dtype(dtype));
        let scale = [0.0, 1.0, 64.0][draw.below(3)];
        let old = case.dw.accumulates() && case.wants_dw();
        let old_dw = old.then(|| {
            (0..case.hidden)
                .map(|_| scale * bell(draw.bits()))
                .collect()
        });
        Self {
            x,
            residual,
            dy,
            dh,
            w,
            old_dw,
        }
    }

    /// By the golden implementation, from packed rows.
    pub(super) fn expected(&self, op: &RmsNorm) -> crate::Result<Results<E>> {
        let w = self.golden_weight();
        let forward = golden::forward_slices(op, &self.x, self.residual.as_deref(), w)?;
        let h = forward.h.as_ref().unwrap_or(&self.x);
        let dh = self.dh.as_deref();
        let backward = golden::backward_slices(op, &self.dy, h, dh, w, &forward.rstd)?;
        let dw = match &self.old_dw {
            Some(old) => self.accumulated(op, h, &forward.rstd, old),
            None => backward.dw,
        };
        Ok(Results {
            dx: backward.dx,
            dw_bf16: dw.iter().map(|&dw| narrow(dw)).collect(),
            dw,
            forward,
        })
    }

    fn golden_weight(&self) -> golden::Weight<'_> {
        let w = self.w.as_ref();
        w.map_or(golden::Weight::None, Weight::as_golden)
    }

    /// dw added to `old`.
    fn accumulated(&self, op: &RmsNorm, x: &[E], rstd: &[f32], old: &[f32]) -> Vec<f32> {
        let mut dw = old.to_vec();
        let packed = |rows: &[E]| {
            let address = rows.as_ptr() as u64;
            RowsView::packed(address, rstd.len() as u64, op.hidden()).with_dtype(E::DTYPE)
        };
        let view = VectorView::f32(dw.as_mut_ptr() as u64, op.hidden());
        let args = BackwardArgs {
            dy: packed(&self.dy),
            x: packed(x),
            dh: None,
            w: self.golden_weight().view(),
            rstd: Some(VectorView::f32(rstd.as_ptr() as u64, rstd.len() as u64)),
            dx: None,
            dw: Some(WeightGradient::accumulate(view)),
            workspace: Workspace {
                address: 0,
                bytes: 0,
            },
        };
        // SAFETY: views of live vectors of these lengths, the output apart from the inputs.
        unsafe { golden::backward(op, &args) };
        dw
    }
}

/// dw, rounded once more; NaN is canonical.
fn narrow(dw: f32) -> bf16 {
    match dw.is_nan() {
        true => bf16::from_bits(0x7fff),
        false => bf16::from_f32(dw),
    }
}
