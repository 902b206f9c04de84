//! The operator: y = norm(x)·w, with or without a residual.

use crate::device;
use crate::failure::{Failure, guard};
use crate::types::{self, CakeRmsnormMatrix, borrow, borrow_mut, check_size};
use cake_rmsnorm::{
    BackwardArgs, ForwardArgs, RmsNorm, RowsView, VectorView, WeightGradient, Workspace,
};
use std::ffi::c_void;

/// An operator: RMSNorm over rows of H elements, of given types. It never changes, so any number of
/// threads may use it at once. It serves every number of rows, every device and every stream.
pub struct CakeRmsnormOperator(pub(crate) RmsNorm);

/// What an operator is made of. Set everything that is not named to 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CakeRmsnormConfig {
    /// sizeof(CakeRmsnormConfig).
    pub struct_size: usize,
    /// H, from 1 to 65,536.
    pub hidden: u64,
    /// CakeRmsnormDtype of the matrices: x, residual, h, y, dy, dh, dx.
    pub input: i32,
    /// CakeRmsnormDtype of the weight; CAKE_RMSNORM_DTYPE_NONE: no weight, and no dw.
    pub weight: i32,
    /// Added to the mean square; finite and not negative.
    pub eps: f32,
    /// Added to each element of the weight, in FP32: 1 for zero-centred weights. Finite; 0 without a
    /// weight.
    pub weight_offset: f32,
}

/// Arguments of a forward. Set what is not there to 0.
///
/// Outputs share no memory with other arguments, but for y and h, which may lie in the place of x or
/// of residual: same address, same strides.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CakeRmsnormForward {
    /// sizeof(CakeRmsnormForward).
    pub struct_size: usize,
    /// T, at most 2^31 - 1.
    pub rows: u64,
    /// Input.
    pub x: CakeRmsnormMatrix,
    /// Input that is added to x first; together with h.
    pub residual: CakeRmsnormMatrix,
    /// Output x + residual, rounded; together with residual.
    pub h: CakeRmsnormMatrix,
    /// Output.
    pub y: CakeRmsnormMatrix,
    /// Input `[H]` of the operator's weight type; null without a weight.
    pub w: *const c_void,
    /// Output `[T]`, or null: a backward can work it out again.
    pub rstd: *mut f32,
}

/// Arguments of a backward. Set what is not there to 0.
///
/// Outputs share no memory with other arguments, but for dx, which may lie in the place of dy, x or
/// dh: same address, same strides.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CakeRmsnormBackward {
    /// sizeof(CakeRmsnormBackward).
    pub struct_size: usize,
    /// T, at most 2^31 - 1.
    pub rows: u64,
    /// Input: gradient of y.
    pub dy: CakeRmsnormMatrix,
    /// Input: what the forward normalised (x, or h of the residual form).
    pub x: CakeRmsnormMatrix,
    /// Input that is added to dx, or not there: gradient of h from elsewhere.
    pub dh: CakeRmsnormMatrix,
    /// Output, or not there: gradient of x (and of the residual).
    pub dx: CakeRmsnormMatrix,
    /// Input `[H]` of the operator's weight type; null without a weight.
    pub w: *const c_void,
    /// Input `[T]` of the forward; or null: it is worked out again, with the same bits.
    pub rstd: *const f32,
    /// Output `[H]`, or null: gradient of w.
    pub dw: *mut f32,
    /// Output `[H]`, BF16, or null: gradient of w, rounded once more. Alone only where it is
    /// overwritten.
    pub dw_bf16: *mut c_void,
    /// CakeRmsnormUpdate: whether dw is overwritten or added to.
    pub dw_update: i32,
    /// Scratch memory, a multiple of 16; its contents never matter. Not used at the same time by
    /// another call.
    pub workspace: *mut c_void,
    /// Its bytes: those of the call's plan, or of cake_rmsnorm_workspace_bytes, at least.
    pub workspace_bytes: u64,
}

/// Makes an operator and stores its handle, which cake_rmsnorm_destroy ends.
///
/// # Safety
/// - `config` and `op_out` are null (refused) or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_create(
    config: *const CakeRmsnormConfig,
    op_out: *mut *mut CakeRmsnormOperator,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let out = unsafe { borrow_mut("op_out", op_out) }?;
        *out = std::ptr::null_mut();
        // SAFETY: as above.
        let config = unsafe { borrow("config", config) }?;
        check_size::<CakeRmsnormConfig>("config", config.struct_size)?;
        let builder = RmsNorm::builder(config.hidden)
            .input(types::dtype("config.input", config.input)?)
            .eps(config.eps)
            .weight_offset(config.weight_offset);
        let builder = match types::weight_dtype("config.weight", config.weight)? {
            Some(dtype) => builder.weight(dtype),
            None => builder.no_weight(),
        };
        *out = Box::into_raw(Box::new(CakeRmsnormOperator(builder.build()?)));
        Ok(())
    })
}

/// Ends an operator. Work that was enqueued by it goes on. Null is accepted.
///
/// # Safety
/// - `op` is null, or a handle that nobody uses now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_destroy(op: *mut CakeRmsnormOperator) {
    let _ = guard(|| {
        if !op.is_null() {
            // SAFETY: made by `Box::into_raw`; nobody else uses it, as the caller promises.
            drop(unsafe { Box::from_raw(op) });
        }
        Ok(())
    });
}

/// Loads the kernels of every later call of this operator on this device, whatever T is. Takes
/// milliseconds to seconds the first time; calls themselves load nothing, so that they may be
/// captured in a CUDA graph. What is loaded stays, and is shared by all operators. Does nothing on the
/// CPU.
///
/// `residual` is 1 for calls with a residual (a dh, in the backward), 0 for those without; `views`
/// is a CakeRmsnormViews.
///
/// # Safety
/// - `op` is null (refused) or a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_prepare(
    op: *const CakeRmsnormOperator,
    device: i32,
    residual: i32,
    views: i32,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let op = unsafe { borrow("op", op) }?.0;
        let residual = types::flag("residual", residual)?;
        let views = types::views("views", views)?;
        // SAFETY: no stream.
        unsafe {
            device::with(device, std::ptr::null_mut(), |backend| {
                backend.prepare(&op, residual, views)
            })
        }
    })
}

/// Bytes of workspace that serve any backward over `rows` rows on this device, with a dh (`residual`
/// is 1) or without (0). None on the CPU. A plan tells of one call exactly.
///
/// # Safety
/// - `op` is null (refused) or a live handle; `bytes` is null (refused) or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_workspace_bytes(
    op: *const CakeRmsnormOperator,
    device: i32,
    rows: u64,
    residual: i32,
    bytes: *mut u64,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (op, bytes) = unsafe { (borrow("op", op)?.0, borrow_mut("bytes", bytes)?) };
        let residual = types::flag("residual", residual)?;
        // SAFETY: no stream.
        let needed = unsafe {
            device::with(device, std::ptr::null_mut(), |backend| {
                op.workspace_bytes(rows, residual, backend.properties())
            })
        }?;
        *bytes = if device == types::CAKE_RMSNORM_CPU {
            0
        } else {
            needed
        };
        Ok(())
    })
}

/// Enqueues a forward on `stream`, a CUstream (or cudaStream_t) of the device's primary context;
/// null is its default stream.
///
/// # Safety
/// - `op` and `args` are null (refused) or valid.
/// - Every address is valid on the device for the elements that the operator, T and the strides say,
///   until the work has completed; nobody writes the inputs or uses the outputs meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_forward(
    op: *const CakeRmsnormOperator,
    device: i32,
    stream: *mut c_void,
    args: *const CakeRmsnormForward,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (op, args) = unsafe { (borrow("op", op)?.0, borrow("args", args)?) };
        let args = args.views(&op)?;
        // SAFETY: as above.
        unsafe { device::with(device, stream, |backend| backend.forward(&op, &args)) }
    })
}

/// Enqueues a backward, as cake_rmsnorm_forward does.
///
/// # Safety
/// - As cake_rmsnorm_forward; the workspace counts as an output, and dw as an input too where it is
///   added to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_backward(
    op: *const CakeRmsnormOperator,
    device: i32,
    stream: *mut c_void,
    args: *const CakeRmsnormBackward,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (op, args) = unsafe { (borrow("op", op)?.0, borrow("args", args)?) };
        let args = args.views(&op)?;
        // Without rows, what is not there may be what is empty.
        if args.dy.rows == 0 && args.dx.is_none() && args.dw.is_none() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { device::with(device, stream, |backend| backend.backward(&op, &args)) }
    })
}

/// Describes a tensor of `dimensions` dimensions, of which the last is H and contiguous, as a
/// matrix, and stores its number of rows. `shape` and `strides` (in elements) have `dimensions`
/// elements each. Leading dimensions may have any strides as long as they join to two at most;
/// others are refused.
///
/// # Safety
/// - `shape` and `strides` are null (refused) or point to `dimensions` numbers; `matrix` and `rows`
///   are null (refused) or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_matrix_from_shape(
    data: *mut c_void,
    dimensions: usize,
    shape: *const u64,
    strides: *const i64,
    matrix: *mut CakeRmsnormMatrix,
    rows: *mut u64,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (matrix, rows) = unsafe { (borrow_mut("matrix", matrix)?, borrow_mut("rows", rows)?) };
        // SAFETY: as above.
        unsafe { (borrow("shape", shape)?, borrow("strides", strides)?) };
        // No tensor has more dimensions than this, and a slice may not be of any size.
        if dimensions > 64 {
            return Err(Failure::argument(format!(
                "dimensions is {dimensions}: accepted are 1 to 64"
            )));
        }
        // SAFETY: as above.
        let (shape, strides) = unsafe {
            (
                std::slice::from_raw_parts(shape, dimensions),
                std::slice::from_raw_parts(strides, dimensions),
            )
        };
        // The element type does not matter here.
        let view = RowsView::from_shape(data as u64, cake_rmsnorm::Dtype::Bf16, shape, strides)?;
        *rows = view.rows;
        *matrix = CakeRmsnormMatrix {
            data,
            row_stride: view.stride,
            group_rows: view.groups.map_or(0, |groups| groups.rows),
            group_stride: view.groups.map_or(0, |groups| groups.stride),
        };
        Ok(())
    })
}

/// The weight as a view; the library refuses one that is missing or not expected.
fn weight(op: &RmsNorm, w: *const c_void) -> Option<VectorView> {
    (!w.is_null()).then(|| VectorView {
        address: w as u64,
        // Without a weight the view is refused, whatever its type.
        dtype: op.weight().unwrap_or(op.input()),
        len: op.hidden(),
    })
}

impl CakeRmsnormForward {
    pub(crate) fn views(&self, op: &RmsNorm) -> Result<ForwardArgs, Failure> {
        check_size::<Self>("args", self.struct_size)?;
        let (dtype, rows, hidden) = (op.input(), self.rows, op.hidden());
        Ok(ForwardArgs {
            x: self.x.required(dtype, rows, hidden),
            residual: self.residual.view(dtype, rows, hidden),
            w: weight(op, self.w),
            h: self.h.view(dtype, rows, hidden),
            y: self.y.required(dtype, rows, hidden),
            rstd: (!self.rstd.is_null()).then(|| VectorView::f32(self.rstd as u64, rows)),
        })
    }
}

impl CakeRmsnormBackward {
    pub(crate) fn views(&self, op: &RmsNorm) -> Result<BackwardArgs, Failure> {
        check_size::<Self>("args", self.struct_size)?;
        let (dtype, rows, hidden) = (op.input(), self.rows, op.hidden());
        Ok(BackwardArgs {
            dy: self.dy.required(dtype, rows, hidden),
            x: self.x.required(dtype, rows, hidden),
            dh: self.dh.view(dtype, rows, hidden),
            w: weight(op, self.w),
            rstd: (!self.rstd.is_null()).then(|| VectorView::f32(self.rstd as u64, rows)),
            dx: self.dx.view(dtype, rows, hidden),
            dw: self.weight_gradient(hidden)?,
            workspace: Workspace {
                address: self.workspace as u64,
                bytes: self.workspace_bytes,
            },
        })
    }

    fn weight_gradient(&self, hidden: u64) -> Result<Option<WeightGradient>, Failure> {
        let update = types::update("args.dw_update", self.dw_update)?;
        let bf16 = (!self.dw_bf16.is_null()).then(|| VectorView::bf16(self.dw_bf16 as u64, hidden));
        let dw = (!self.dw.is_null()).then(|| VectorView::f32(self.dw as u64, hidden));
        Ok(match (dw, bf16) {
            (None, None) => None,
            (Some(dw), bf16) => Some(WeightGradient { dw, update, bf16 }),
            (None, Some(dw)) => Some(WeightGradient {
                dw,
                update,
                bf16: None,
            }),
        })
    }
}
