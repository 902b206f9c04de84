//! The benchmark's plug-in interface, version 1.
//!
//! `wdtype` is 0 for an FP32 weight, 1 for BF16. Functions return 0, or one of [`Status`] when
//! the call was refused or failed; nothing is enqueued then. `residual`, `h` and `dh` are null in
//! the plain form; in the residual form the backward's `x` is `h`.

use cake_rmsnorm::{
    BackwardArgs, Dtype, Error, ForwardArgs, RmsNorm, RowsView, VectorView, Workspace,
};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_longlong, c_void};

/// Return codes.
#[repr(i32)]
pub(crate) enum Status {
    Ok = 0,
    /// The shape, type or device is not supported, or an argument was refused.
    Refused = 1,
    /// The driver reported an error.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    Driver = 2,
}

impl Status {
    pub(crate) fn of(result: &Result<(), Error>) -> c_int {
        status(result) as c_int
    }
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
    let bytes =
        operator(hidden, wdtype, 0.0).and_then(|op| workspace_bytes(&op, count(rows), add != 0));
    bytes.map_or(-1, |bytes| c_longlong::try_from(bytes).unwrap_or(-1))
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
    let result = operator(hidden, wdtype, eps).and_then(|op| {
        let args = ForwardArgs {
            x: matrix(x),
            residual: optional(residual),
            w: Some(weight(w, hidden, wdtype)),
            h: optional(h),
            y: matrix(y),
            rstd: Some(VectorView::f32(rstd as u64, count(rows))),
        };
        // SAFETY: the caller's obligations.
        unsafe { device::forward(&op, &args, stream) }
    });
    status(&result) as c_int
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
    let result = operator(hidden, wdtype, 0.0).and_then(|op| {
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
        unsafe { device::backward(&op, &args, stream) }
    });
    status(&result) as c_int
}

/// Bytes of workspace that a backward needs. The interface does not say how many a caller has, so
/// every call asks; the answer for this thread's last shape is kept.
fn workspace_bytes(op: &RmsNorm, rows: u64, add: bool) -> Result<u64, Error> {
    thread_local! {
        static LAST: Cell<Option<(RmsNorm, u64, bool, u64)>> = const { Cell::new(None) };
    }
    if let Some((last_op, last_rows, last_add, bytes)) = LAST.get()
        && (last_op, last_rows, last_add) == (*op, rows, add)
    {
        return Ok(bytes);
    }
    let plan = op.backward_plan(rows, add, &device::properties()?)?;
    LAST.set(Some((*op, rows, add, plan.workspace_bytes)));
    Ok(plan.workspace_bytes)
}

fn status(result: &Result<(), Error>) -> Status {
    match result {
        Ok(()) => Status::Ok,
        Err(Error::Cuda { .. }) => Status::Driver,
        Err(_) => Status::Refused,
    }
}

/// A count that the interface passes as a signed number; negative ones are refused as too large.
pub(crate) fn count(value: c_longlong) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

fn operator(hidden: c_longlong, wdtype: c_int, eps: f32) -> Result<RmsNorm, Error> {
    RmsNorm::new(count(hidden), dtype(wdtype), eps)
}

pub(crate) fn dtype(wdtype: c_int) -> Dtype {
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

/// The GPU, opened at the first call.
#[cfg(feature = "cuda")]
pub(crate) mod device {
    use super::{BackwardArgs, Error, ForwardArgs, RmsNorm, c_void};
    use cake_rmsnorm::backend::Backend;
    use cake_rmsnorm::backend::cuda::{Cuda, Device};
    use cake_rmsnorm::gated::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm};
    use cake_rmsnorm::plan::{DeviceProperties, Views};
    use std::sync::OnceLock;

    fn device() -> Result<&'static Device, Error> {
        static DEVICE: OnceLock<Result<Device, Error>> = OnceLock::new();
        let device = DEVICE.get_or_init(|| Device::open(0));
        device.as_ref().map_err(Error::clone)
    }

    pub fn properties() -> Result<DeviceProperties, Error> {
        Ok(*device()?.properties())
    }

    /// # Safety
    /// - As [`super::rmsnorm_bench_fwd`].
    pub unsafe fn forward(
        op: &RmsNorm,
        args: &ForwardArgs,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        // SAFETY: the caller's obligations.
        let cuda = unsafe { Cuda::with_stream(device()?.clone(), stream.cast()) };
        prepared(&cuda, op, args.residual.is_some(), || {
            // SAFETY: the caller's obligations.
            unsafe { cuda.forward(op, args) }
        })
    }

    /// # Safety
    /// - As [`super::rmsnorm_bench_bwd`].
    pub unsafe fn backward(
        op: &RmsNorm,
        args: &BackwardArgs,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        // SAFETY: the caller's obligations.
        let cuda = unsafe { Cuda::with_stream(device()?.clone(), stream.cast()) };
        prepared(&cuda, op, args.dh.is_some(), || {
            // SAFETY: the caller's obligations.
            unsafe { cuda.backward(op, args) }
        })
    }

    /// # Safety
    /// - As [`super::rmsnorm_bench_fwd`].
    pub unsafe fn gated_forward(
        op: &GatedRmsNorm,
        args: &GatedForwardArgs,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        // SAFETY: the caller's obligations.
        let cuda = unsafe { Cuda::with_stream(device()?.clone(), stream.cast()) };
        retried(
            || cuda.prepare_gated(op),
            || {
                // SAFETY: the caller's obligations.
                unsafe { cuda.gated_forward(op, args) }
            },
        )
    }

    /// # Safety
    /// - As [`super::rmsnorm_bench_bwd`].
    pub unsafe fn gated_backward(
        op: &GatedRmsNorm,
        args: &GatedBackwardArgs,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        // SAFETY: the caller's obligations.
        let cuda = unsafe { Cuda::with_stream(device()?.clone(), stream.cast()) };
        retried(
            || cuda.prepare_gated(op),
            || {
                // SAFETY: the caller's obligations.
                unsafe { cuda.gated_backward(op, args) }
            },
        )
    }

    /// As [`prepared`], for an operator that `prepare` prepares.
    fn retried(
        prepare: impl Fn() -> Result<(), Error>,
        call: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        match call() {
            Err(Error::NotPrepared { .. }) => {
                prepare()?;
                call()
            }
            result => result,
        }
    }

    /// Makes a call. The interface has no construction, so an operator's first call finds its
    /// kernels missing, loads them and is made again.
    fn prepared(
        cuda: &Cuda,
        op: &RmsNorm,
        residual: bool,
        call: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        retried(|| cuda.prepare(op, residual, Views::Ordinary), call)
    }
}

/// No GPU in this build.
#[cfg(not(feature = "cuda"))]
pub(crate) mod device {
    use super::{BackwardArgs, Error, ForwardArgs, RmsNorm, c_void};
    use cake_rmsnorm::gated::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm};
    use cake_rmsnorm::plan::DeviceProperties;

    const NONE: Error = Error::UnsupportedDevice { major: 0, minor: 0 };

    pub fn properties() -> Result<DeviceProperties, Error> {
        Err(NONE)
    }

    /// # Safety
    /// - None.
    pub unsafe fn forward(_: &RmsNorm, _: &ForwardArgs, _: *mut c_void) -> Result<(), Error> {
        Err(NONE)
    }

    /// # Safety
    /// - None.
    pub unsafe fn backward(_: &RmsNorm, _: &BackwardArgs, _: *mut c_void) -> Result<(), Error> {
        Err(NONE)
    }

    /// # Safety
    /// - None.
    pub unsafe fn gated_forward(
        _: &GatedRmsNorm,
        _: &GatedForwardArgs,
        _: *mut c_void,
    ) -> Result<(), Error> {
        Err(NONE)
    }

    /// # Safety
    /// - None.
    pub unsafe fn gated_backward(
        _: &GatedRmsNorm,
        _: &GatedBackwardArgs,
        _: *mut c_void,
    ) -> Result<(), Error> {
        Err(NONE)
    }
}
