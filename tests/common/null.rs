//! Calls for a backend that launches nothing: what a call costs without a driver.

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::null::Null;
use cake_rmsnorm::plan::DeviceProperties;
use cake_rmsnorm::{BackwardArgs, Dtype, ForwardArgs, RmsNorm, RowsView, VectorView, Workspace};
use std::fmt;
use std::hint::black_box;

/// An operator with arguments of the right shape, at addresses where nothing is.
pub struct Call {
    pub op: RmsNorm,
    pub residual: bool,
    rows: u64,
    forward: ForwardArgs,
    backward: BackwardArgs,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.residual { "residual" } else { "plain" };
        write!(f, "H={} T={} {form}", self.op.hidden(), self.rows)
    }
}

impl Call {
    /// A call with an FP32 weight.
    pub fn new(hidden: u64, rows: u64, residual: bool) -> Self {
        let op = RmsNorm::new(hidden, Dtype::F32, 1e-6).expect("a supported width");
        let plan = op.backward_plan(rows, residual, &DeviceProperties::H200);
        let workspace_bytes = plan.expect("a plan").workspace_bytes;
        // Far enough from each other for any shape.
        let at = |slot: u64| slot << 48;
        let matrix = |slot| RowsView::packed(at(slot), rows, hidden);
        let w = VectorView::f32(at(1), hidden);
        let rstd = VectorView::f32(at(2), rows);
        Self {
            op,
            residual,
            rows,
            forward: ForwardArgs {
                x: matrix(3),
                residual: residual.then(|| matrix(4)),
                w: Some(w),
                h: residual.then(|| matrix(5)),
                y: matrix(6),
                rstd: Some(rstd),
            },
            backward: BackwardArgs {
                dy: matrix(7),
                x: matrix(3),
                dh: residual.then(|| matrix(8)),
                w: Some(w),
                rstd: Some(rstd),
                dx: Some(matrix(9)),
                dw: Some(VectorView::f32(at(10), hidden).into()),
                workspace: Workspace {
                    address: at(11),
                    bytes: workspace_bytes,
                },
            },
        }
    }

    pub fn forward(&self, backend: &Null) {
        // SAFETY: the backend touches no memory.
        unsafe { backend.forward(black_box(&self.op), black_box(&self.forward)) }.expect("a call");
    }

    pub fn backward(&self, backend: &Null) {
        // SAFETY: as above.
        unsafe { backend.backward(black_box(&self.op), black_box(&self.backward)) }
            .expect("a call");
    }
}
