//! The gated form: y = norm(x)·w·silu(z), or y = norm(x·silu(z))·w.

use crate::device;
use crate::failure::{Failure, guard};
use crate::types::{self, CakeRmsnormMatrix, borrow, borrow_mut, check_size};
use cake_rmsnorm::gated::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, HeadsView};
use cake_rmsnorm::{Argument, Dtype, Error, VectorView, Workspace};
use std::ffi::c_void;

/// A gated operator: as CakeRmsnormOperator.
pub struct CakeRmsnormGatedOperator(pub(crate) GatedRmsNorm);

/// What a gated operator is made of. Matrices are BF16.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CakeRmsnormGatedConfig {
    /// sizeof(CakeRmsnormGatedConfig).
    pub struct_size: usize,
    /// H, at most 65,536: `groups` times a multiple of 8 from 8 to 8,192.
    pub hidden: u64,
    /// Groups of a row that are normalised each on its own: 1 for the whole row.
    pub groups: u64,
    /// CakeRmsnormDtype of the weight: BF16 or FP32.
    pub weight: i32,
    /// CakeRmsnormGateOrder.
    pub order: i32,
    /// Added to the mean square; finite and not negative.
    pub eps: f32,
}

/// Arguments of a gated forward. Rows are the heads of all tokens, one token after the other: a
/// matrix has its token's heads in `group_rows`, the distance of heads in `row_stride`, that of
/// tokens in `group_stride` (or no groups, where all rows have one distance). Addresses are multiples
/// of 16, strides of 8 elements; outputs share no memory with other arguments.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CakeRmsnormGatedForward {
    /// sizeof(CakeRmsnormGatedForward).
    pub struct_size: usize,
    /// Rows: tokens times heads, at most 2^31 - 1.
    pub rows: u64,
    /// Input.
    pub x: CakeRmsnormMatrix,
    /// Input: the gate.
    pub z: CakeRmsnormMatrix,
    /// Output.
    pub y: CakeRmsnormMatrix,
    /// Input `[H]` of the operator's weight type; all heads share it.
    pub w: *const c_void,
    /// Output `[rows, groups]`, or null.
    pub rstd: *mut f32,
}

/// Arguments of a gated backward, laid out as those of the forward.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CakeRmsnormGatedBackward {
    /// sizeof(CakeRmsnormGatedBackward).
    pub struct_size: usize,
    /// Rows: tokens times heads, at most 2^31 - 1.
    pub rows: u64,
    /// Input: gradient of y.
    pub dy: CakeRmsnormMatrix,
    /// Input of the forward.
    pub x: CakeRmsnormMatrix,
    /// Input of the forward.
    pub z: CakeRmsnormMatrix,
    /// Output: gradient of x.
    pub dx: CakeRmsnormMatrix,
    /// Output: gradient of z.
    pub dz: CakeRmsnormMatrix,
    /// Input `[H]` of the operator's weight type.
    pub w: *const c_void,
    /// Input `[rows, groups]` of the forward; or null: it is worked out again, with the same bits.
    pub rstd: *const f32,
    /// Output `[H]`, or null: gradient of w.
    pub dw: *mut f32,
    /// CakeRmsnormUpdate: whether dw is overwritten or added to.
    pub dw_update: i32,
    /// Scratch memory, a multiple of 16.
    pub workspace: *mut c_void,
    /// Its bytes.
    pub workspace_bytes: u64,
}

/// Makes a gated operator and stores its handle, which cake_rmsnorm_gated_destroy ends.
///
/// # Safety
/// - As cake_rmsnorm_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_gated_create(
    config: *const CakeRmsnormGatedConfig,
    op_out: *mut *mut CakeRmsnormGatedOperator,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let out = unsafe { borrow_mut("op_out", op_out) }?;
        *out = std::ptr::null_mut();
        // SAFETY: as above.
        let config = unsafe { borrow("config", config) }?;
        check_size::<CakeRmsnormGatedConfig>("config", config.struct_size)?;
        let op = GatedRmsNorm::with_groups(
            types::gate_order("config.order", config.order)?,
            config.hidden,
            config.groups,
            types::dtype("config.weight", config.weight)?,
            config.eps,
        )?;
        *out = Box::into_raw(Box::new(CakeRmsnormGatedOperator(op)));
        Ok(())
    })
}

/// Ends a gated operator, as cake_rmsnorm_destroy does.
///
/// # Safety
/// - As cake_rmsnorm_destroy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_gated_destroy(op: *mut CakeRmsnormGatedOperator) {
    let _ = guard(|| {
        if !op.is_null() {
            // SAFETY: made by `Box::into_raw`; nobody else uses it, as the caller promises.
            drop(unsafe { Box::from_raw(op) });
        }
        Ok(())
    });
}

/// Loads the kernels of every later call of this operator on this device, as cake_rmsnorm_prepare
/// does.
///
/// # Safety
/// - As cake_rmsnorm_prepare.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_gated_prepare(
    op: *const CakeRmsnormGatedOperator,
    device: i32,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let op = unsafe { borrow("op", op) }?.0;
        // SAFETY: no stream.
        unsafe {
            device::with(device, std::ptr::null_mut(), |backend| {
                backend.prepare_gated(&op)
            })
        }
    })
}

/// Bytes of workspace of a gated backward over `rows` rows on this device that gives dw (none is
/// needed without). None on the CPU.
///
/// # Safety
/// - As cake_rmsnorm_workspace_bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_gated_workspace_bytes(
    op: *const CakeRmsnormGatedOperator,
    device: i32,
    rows: u64,
    bytes: *mut u64,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (op, bytes) = unsafe { (borrow("op", op)?.0, borrow_mut("bytes", bytes)?) };
        // SAFETY: no stream.
        let plan = unsafe {
            device::with(device, std::ptr::null_mut(), |backend| {
                op.backward_plan(rows, true, backend.properties())
            })
        }?;
        let cpu = device == types::CAKE_RMSNORM_CPU;
        *bytes = if cpu { 0 } else { plan.workspace_bytes };
        Ok(())
    })
}

/// Enqueues a gated forward, as cake_rmsnorm_forward does.
///
/// # Safety
/// - As cake_rmsnorm_forward.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_gated_forward(
    op: *const CakeRmsnormGatedOperator,
    device: i32,
    stream: *mut c_void,
    args: *const CakeRmsnormGatedForward,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (op, args) = unsafe { (borrow("op", op)?.0, borrow("args", args)?) };
        let args = args.views(&op)?;
        // SAFETY: as above.
        unsafe { device::with(device, stream, |backend| backend.gated_forward(&op, &args)) }
    })
}

/// Enqueues a gated backward, as cake_rmsnorm_backward does.
///
/// # Safety
/// - As cake_rmsnorm_backward.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cake_rmsnorm_gated_backward(
    op: *const CakeRmsnormGatedOperator,
    device: i32,
    stream: *mut c_void,
    args: *const CakeRmsnormGatedBackward,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's obligations.
        let (op, args) = unsafe { (borrow("op", op)?.0, borrow("args", args)?) };
        let args = args.views(&op)?;
        // SAFETY: as above.
        unsafe { device::with(device, stream, |backend| backend.gated_backward(&op, &args)) }
    })
}

/// Rows of a gated call as tokens and heads.
struct Rows {
    rows: u64,
    heads: u64,
    hidden: u64,
}

impl Rows {
    /// The heads are those of the first matrix that has some.
    fn of(op: &GatedRmsNorm, rows: u64, matrices: &[&CakeRmsnormMatrix]) -> Self {
        let mut heads = matrices.iter().map(|matrix| matrix.group_rows);
        Self {
            rows,
            heads: heads.find(|&heads| heads > 0).unwrap_or(1),
            hidden: op.hidden(),
        }
    }

    fn view(&self, argument: Argument, matrix: &CakeRmsnormMatrix) -> Result<HeadsView, Error> {
        let Self {
            rows,
            heads,
            hidden,
        } = *self;
        let (found, token_stride) = match matrix.group_rows {
            // All rows at one distance. A distance out of range stays so for validation.
            0 => {
                let heads = i64::try_from(heads).unwrap_or(i64::MAX);
                (self.heads, matrix.row_stride.saturating_mul(heads))
            }
            found => (found, matrix.group_stride),
        };
        if !rows.is_multiple_of(found) {
            return Err(Error::RowGroups {
                argument,
                rows,
                group: found,
            });
        }
        if found != heads {
            return Err(Error::Heads {
                argument,
                found,
                expected: heads,
            });
        }
        let packed = HeadsView::packed(matrix.data as u64, rows / heads, heads, hidden);
        Ok(packed.with_strides(token_stride, matrix.row_stride))
    }
}

fn weight(op: &GatedRmsNorm, w: *const c_void) -> VectorView {
    VectorView {
        address: w as u64,
        dtype: op.weight(),
        len: op.hidden(),
    }
}

fn statistics(op: &GatedRmsNorm, rows: u64, rstd: *const f32) -> Option<VectorView> {
    let len = rows.saturating_mul(op.groups());
    (!rstd.is_null()).then(|| VectorView::f32(rstd as u64, len))
}

impl CakeRmsnormGatedForward {
    pub(crate) fn views(&self, op: &GatedRmsNorm) -> Result<GatedForwardArgs, Failure> {
        check_size::<Self>("args", self.struct_size)?;
        let rows = Rows::of(op, self.rows, &[&self.x, &self.z, &self.y]);
        Ok(GatedForwardArgs {
            x: rows.view(Argument::X, &self.x)?,
            z: rows.view(Argument::Z, &self.z)?,
            w: weight(op, self.w),
            y: rows.view(Argument::Y, &self.y)?,
            rstd: statistics(op, self.rows, self.rstd),
        })
    }
}

impl CakeRmsnormGatedBackward {
    pub(crate) fn views(&self, op: &GatedRmsNorm) -> Result<GatedBackwardArgs, Failure> {
        check_size::<Self>("args", self.struct_size)?;
        let update = types::update("args.dw_update", self.dw_update)?;
        let matrices = [&self.dy, &self.x, &self.z, &self.dx, &self.dz];
        let rows = Rows::of(op, self.rows, &matrices);
        let dw = (!self.dw.is_null()).then(|| VectorView {
            address: self.dw as u64,
            dtype: Dtype::F32,
            len: op.hidden(),
        });
        Ok(GatedBackwardArgs {
            dy: rows.view(Argument::Dy, &self.dy)?,
            x: rows.view(Argument::X, &self.x)?,
            z: rows.view(Argument::Z, &self.z)?,
            w: weight(op, self.w),
            rstd: statistics(op, self.rows, self.rstd),
            dx: rows.view(Argument::Dx, &self.dx)?,
            dz: rows.view(Argument::Dz, &self.dz)?,
            dw: dw.map(|dw| (dw, update)),
            workspace: Workspace {
                address: self.workspace as u64,
                bytes: self.workspace_bytes,
            },
        })
    }
}
