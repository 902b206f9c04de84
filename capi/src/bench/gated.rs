//! The benchmark's plug-in interface for the gated form. Tensors are
//! packed BF16 [rows, hidden]; `order` is 0 for norm before gate, 1 for gate before norm.

use super::{answer, bytes_or_none, count, dtype, on_gpu, properties};
use crate::failure::Failure;
use cake_rmsnorm::gated::{
    GateOrder, GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, HeadsView,
};
use cake_rmsnorm::{Error, Update, VectorView, Workspace};
use std::ffi::{c_int, c_longlong, c_void};

/// Bytes of workspace that a backward needs, or -1 when it is not supported.
#[unsafe(no_mangle)]
pub extern "C" fn rmsnorm_bench_gated_workspace(
    rows: c_longlong,
    hidden: c_longlong,
    groups: c_longlong,
    wdtype: c_int,
    order: c_int,
) -> c_longlong {
    let shape = Shape {
        rows,
        hidden,
        groups,
        wdtype,
        order,
    };
    bytes_or_none(|| shape.workspace_bytes(&shape.operator(0.0)?))
}

/// Forward: y, and rstd (FP32 [rows, groups]) where it is not null.
///
/// # Safety
/// - As [`super::rmsnorm_bench_fwd`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmsnorm_bench_gated_fwd(
    x: *const c_void,
    z: *const c_void,
    w: *const c_void,
    y: *mut c_void,
    rstd: *mut f32,
    rows: c_longlong,
    hidden: c_longlong,
    groups: c_longlong,
    eps: f32,
    wdtype: c_int,
    order: c_int,
    stream: *mut c_void,
) -> c_int {
    let shape = Shape {
        rows,
        hidden,
        groups,
        wdtype,
        order,
    };
    answer(|| {
        let op = shape.operator(eps)?;
        let args = GatedForwardArgs {
            x: shape.matrix(x),
            z: shape.matrix(z),
            w: shape.weight(w),
            y: shape.matrix(y),
            rstd: shape.statistics(rstd),
        };
        // SAFETY: the caller's obligations.
        unsafe {
            on_gpu(
                stream,
                |gpu| gpu.prepare_gated(&op),
                |gpu| gpu.gated_forward(&op, &args),
            )
        }
    })
}

/// Backward: dx, dz and dw (FP32 [hidden]); `rstd` is recomputed where it is null.
///
/// # Safety
/// - As [`super::rmsnorm_bench_bwd`]; `workspace` has the bytes that
///   [`rmsnorm_bench_gated_workspace`] answers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmsnorm_bench_gated_bwd(
    dy: *const c_void,
    x: *const c_void,
    z: *const c_void,
    w: *const c_void,
    rstd: *mut f32,
    dx: *mut c_void,
    dz: *mut c_void,
    dw: *mut f32,
    workspace: *mut c_void,
    rows: c_longlong,
    hidden: c_longlong,
    groups: c_longlong,
    eps: f32,
    wdtype: c_int,
    order: c_int,
    stream: *mut c_void,
) -> c_int {
    let shape = Shape {
        rows,
        hidden,
        groups,
        wdtype,
        order,
    };
    answer(|| {
        let op = shape.operator(eps)?;
        let args = GatedBackwardArgs {
            dy: shape.matrix(dy),
            x: shape.matrix(x),
            z: shape.matrix(z),
            w: shape.weight(w),
            rstd: shape.statistics(rstd),
            dx: shape.matrix(dx),
            dz: shape.matrix(dz),
            dw: Some((VectorView::f32(dw as u64, count(hidden)), Update::Overwrite)),
            workspace: Workspace {
                address: workspace as u64,
                bytes: shape.workspace_bytes(&op)?,
            },
        };
        // SAFETY: the caller's obligations.
        unsafe {
            on_gpu(
                stream,
                |gpu| gpu.prepare_gated(&op),
                |gpu| gpu.gated_backward(&op, &args),
            )
        }
    })
}

/// What every call says of its tensors.
#[derive(Clone, Copy)]
struct Shape {
    rows: c_longlong,
    hidden: c_longlong,
    groups: c_longlong,
    wdtype: c_int,
    order: c_int,
}

impl Shape {
    fn operator(self, eps: f32) -> Result<GatedRmsNorm, Error> {
        let order = if self.order == 0 {
            GateOrder::NormFirst
        } else {
            GateOrder::GateFirst
        };
        let (hidden, groups) = (count(self.hidden), count(self.groups));
        GatedRmsNorm::with_groups(order, hidden, groups, dtype(self.wdtype), eps)
    }

    fn workspace_bytes(self, op: &GatedRmsNorm) -> Result<u64, Failure> {
        let plan = op.backward_plan(count(self.rows), true, &properties()?)?;
        Ok(plan.workspace_bytes)
    }

    fn matrix(self, pointer: *const c_void) -> HeadsView {
        HeadsView::packed(pointer as u64, count(self.rows), 1, count(self.hidden))
    }

    fn weight(self, pointer: *const c_void) -> VectorView {
        VectorView {
            address: pointer as u64,
            dtype: dtype(self.wdtype),
            len: count(self.hidden),
        }
    }

    fn statistics(self, pointer: *const f32) -> Option<VectorView> {
        let len = count(self.rows).saturating_mul(count(self.groups));
        (!pointer.is_null()).then(|| VectorView::f32(pointer as u64, len))
    }
}
