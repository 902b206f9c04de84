//! The benchmark's plug-in interface, version 1: device pointers to packed row-major tensors, a
//! `cudaStream_t`, and a return code. The GPU is ordinal 0.
//!
//! `wdtype` is 0 for an FP32 weight, 1 for BF16. Functions return 0, or another number
//! when the call was refused or failed; nothing is enqueued then. `residual`, `h` and `dh` are null in
//! the plain form; in the residual form the backward's `x` is `h`.

mod gated;

use crate::device;
use crate::failure::{CakeRmsnormStatus, Failure, guard};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::plan::{DeviceProperties, Views};
use cake_rmsnorm::{
    BackwardArgs, Dtype, Error, ForwardArgs, RmsNorm, RowsView, VectorView, Workspace,
};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_longlong, c_void};

/// What a call returns: 1 where something was refused or is not supported, 2 for an error of the
/// driver.
fn answer(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    const OK: i32 = CakeRmsnormStatus::Ok as i32;
    const DRIVER: i32 = CakeRmsnormStatus::Cuda as i32;
    match guard(body) {
        OK => 0,
        DRIVER => 2,
        _ => 1,
    }
}

/// As [`answer`], for what returns bytes: -1 where there is no answer.
fn bytes_or_none(body: impl FnOnce() -> Result<u64, Failure>) -> c_longlong {
    let mut found = -1;
    let _ = guard(|| {
        found = c_longlong::try_from(body()?).unwrap_or(-1);
        Ok(())
    });
    found
}

/// Version of this interface.
#[unsafe(no_mangle)]
pub extern "C" fn rmsnorm_bench_abi() -> c_int {
    1
}

/// The label under which results appear.
#[unsafe(no_mangle)]
pub extern "C" fn rmsnorm_bench_name() -> *const c_char {
    c"cake-rmsnorm".as_ptr()
}

/// Bytes of workspace that a backward needs, or -1 when it is not supported.
#[unsafe(no_mangle)]
pub extern "C" fn rmsnorm_bench_workspace(
    rows: c_longlong,
    hidden: c_longlong,
    wdtype: c_int,
    add: c_int,
) -> c_longlong {
    bytes_or_none(|| {
        let op = operator(hidden, wdtype, 0.0)?;
        workspace_bytes(&op, count(rows), add != 0)
    })
}

/// Forward: y and rstd, and h in the residual form.
///
/// # Safety
/// - Pointers are device memory of packed BF16 [rows, hidden] tensors (`w`: [hidden] of the
///   weight's type, `rstd`: FP32 [rows]), valid until the work has completed.
/// - `stream` is a live stream of the current device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmsnorm_bench_fwd(
    x: *const c_void,
    residual: *const c_void,
    w: *const c_void,
    h: *mut c_void,
    y: *mut c_void,
    rstd: *mut f32,
    rows: c_longlong,
    hidden: c_longlong,
    eps: f32,
    wdtype: c_int,
    stream: *mut c_void,
) -> c_int {
    let matrix = |pointer| matrix(pointer, rows, hidden);
    let optional = |pointer: *const c_void| (!pointer.is_null()).then(|| matrix(pointer));
    answer(|| {
        let op = operator(hidden, wdtype, eps)?;
        let args = ForwardArgs {
            x: matrix(x),
            residual: optional(residual),
            w: Some(weight(w, hidden, wdtype)),
            h: optional(h),
            y: matrix(y),
            rstd: Some(VectorView::f32(rstd as u64, count(rows))),
        };
        // SAFETY: the caller's obligations.
        unsafe {
            on_gpu(
                stream,
                |gpu| gpu.prepare(&op, args.residual.is_some(), Views::Ordinary),
                |gpu| gpu.forward(&op, &args),
            )
        }
    })
}

/// Backward: dx and dw.
///
/// # Safety
/// - As [`rmsnorm_bench_fwd`]; `dw` is FP32 [hidden], and `workspace` has the bytes that
///   [`rmsnorm_bench_workspace`] answers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmsnorm_bench_bwd(
    dy: *const c_void,
    dh: *const c_void,
    x: *const c_void,
    w: *const c_void,
    rstd: *const f32,
    dx: *mut c_void,
    dw: *mut f32,
    workspace: *mut c_void,
    rows: c_longlong,
    hidden: c_longlong,
    wdtype: c_int,
    stream: *mut c_void,
) -> c_int {
    let matrix = |pointer| matrix(pointer, rows, hidden);
    let add = !dh.is_null();
    answer(|| {
        let op = operator(hidden, wdtype, 0.0)?;
        let args = BackwardArgs {
            dy: matrix(dy),
            x: matrix(x),
            dh: add.then(|| matrix(dh)),
            w: Some(weight(w, hidden, wdtype)),
            rstd: Some(VectorView::f32(rstd as u64, count(rows))),
            dx: Some(matrix(dx)),
            dw: Some(VectorView::f32(dw as u64, count(hidden)).into()),
            workspace: Workspace {
                address: workspace as u64,
                bytes: workspace_bytes(&op, count(rows), add)?,
            },
        };
        // SAFETY: the caller's obligations.
        unsafe {
            on_gpu(
                stream,
                |gpu| gpu.prepare(&op, add, Views::Ordinary),
                |gpu| gpu.backward(&op, &args),
            )
        }
    })
}

/// Bytes of workspace that a backward needs. The interface does not say how many a caller has, so
/// every call asks; the answer for this thread's last shape is kept.
fn workspace_bytes(op: &RmsNorm, rows: u64, add: bool) -> Result<u64, Failure> {
    thread_local! {
        static LAST: Cell<Option<(RmsNorm, u64, bool, u64)>> = const { Cell::new(None) };
    }
    if let Some((last_op, last_rows, last_add, bytes)) = LAST.get()
        && (last_op, last_rows, last_add) == (*op, rows, add)
    {
        return Ok(bytes);
    }
    let plan = op.backward_plan(rows, add, &properties()?)?;
    LAST.set(Some((*op, rows, add, plan.workspace_bytes)));
    Ok(plan.workspace_bytes)
}

/// Makes a call on the GPU. The interface has no construction, so an operator's first call finds
/// its kernels missing, loads them and is made again.
///
/// # Safety
/// - As [`device::with`], and those of the call.
unsafe fn on_gpu(
    stream: *mut c_void,
    prepare: impl Fn(&dyn Backend) -> Result<(), Error>,
    call: impl Fn(&dyn Backend) -> Result<(), Error>,
) -> Result<(), Failure> {
    // SAFETY: the caller's obligations.
    unsafe {
        device::with(0, stream, |gpu| match call(gpu) {
            Err(Error::NotPrepared { .. }) => {
                prepare(gpu)?;
                call(gpu)
            }
            result => result,
        })
    }
}

fn properties() -> Result<DeviceProperties, Failure> {
    // SAFETY: no stream.
    unsafe { device::with(0, std::ptr::null_mut(), |gpu| Ok(*gpu.properties())) }
}

/// A count that the interface passes as a signed number; negative ones are refused as too large.
fn count(value: c_longlong) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

fn operator(hidden: c_longlong, wdtype: c_int, eps: f32) -> Result<RmsNorm, Error> {
    RmsNorm::new(count(hidden), dtype(wdtype), eps)
}

fn dtype(wdtype: c_int) -> Dtype {
    if wdtype == 0 { Dtype::F32 } else { Dtype::Bf16 }
}

fn matrix(pointer: *const c_void, rows: c_longlong, hidden: c_longlong) -> RowsView {
    RowsView::packed(pointer as u64, count(rows), count(hidden))
}

fn weight(pointer: *const c_void, hidden: c_longlong, wdtype: c_int) -> VectorView {
    VectorView {
        address: pointer as u64,
        dtype: dtype(wdtype),
        len: count(hidden),
    }
}
