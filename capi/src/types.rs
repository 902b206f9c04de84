//! What crosses the boundary: numbers and structs. Enumerations cross as `int32_t`, so that any
//! number may arrive.

use crate::failure::Failure;
use cake_rmsnorm::gated::GateOrder;
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{Dtype, RowsView, Update};
use std::ffi::c_void;

/// Version of the interface that the header describes. A library of another version has structs or
/// functions that differ.
pub const CAKE_RMSNORM_ABI_VERSION: u32 = 1;

/// The device that is the CPU: pointers are host addresses, streams are ignored, and calls return
/// when the work is done. Other devices are CUDA ordinals.
pub const CAKE_RMSNORM_CPU: i32 = -1;

/// Version of this library's interface: compare with CAKE_RMSNORM_ABI_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn cake_rmsnorm_abi_version() -> u32 {
    CAKE_RMSNORM_ABI_VERSION
}

/// Element types.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CakeRmsnormDtype {
    /// No weight.
    None = 0,
    /// bfloat16.
    Bf16 = 1,
    /// IEEE half precision.
    F16 = 2,
    /// IEEE single precision.
    F32 = 3,
}

/// What happens to the values that dw holds.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CakeRmsnormUpdate {
    /// They do not matter.
    Overwrite = 0,
    /// They join the sum before it is rounded.
    Accumulate = 1,
}

/// How the arguments of an operator's calls lie in memory.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CakeRmsnormViews {
    /// Rows at one distance from each other, 16-byte aligned.
    Ordinary = 0,
    /// Also rows in groups, any alignment, outputs in the place of inputs.
    Any = 1,
}

/// Which comes first in the gated form.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CakeRmsnormGateOrder {
    /// y = norm(x) * w * silu(z).
    NormFirst = 0,
    /// y = norm(x * silu(z)) * w.
    GateFirst = 1,
}

/// A matrix [rows, H] with contiguous rows. Its element type and H are the operator's, its number
/// of rows the call's. `data` is null where an argument is not there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CakeRmsnormMatrix {
    /// The first element of row 0.
    pub data: *mut c_void,
    /// Elements between neighbouring rows: H where they are packed. Inputs may have any, 0 and
    /// negative ones included, outputs H at least.
    pub row_stride: i64,
    /// Rows of a group, where rows come in groups (a second leading dimension); else 0. In a gated
    /// call: the heads of a token.
    pub group_rows: u64,
    /// Elements between neighbouring groups; of no matter without groups.
    pub group_stride: i64,
}

impl CakeRmsnormMatrix {
    /// As a view of the library; none where there is no address.
    pub(crate) fn view(&self, dtype: Dtype, rows: u64, hidden: u64) -> Option<RowsView> {
        (!self.data.is_null()).then(|| self.required(dtype, rows, hidden))
    }

    /// As a view of the library, which refuses a null address itself where there are rows.
    pub(crate) fn required(&self, dtype: Dtype, rows: u64, hidden: u64) -> RowsView {
        let view = RowsView::packed(self.data as u64, rows, hidden)
            .with_dtype(dtype)
            .with_stride(self.row_stride);
        match self.group_rows {
            0 => view,
            group => view.with_groups(group, self.group_stride),
        }
    }
}

/// Checks that the caller's struct is this version's.
pub(crate) fn check_size<T>(name: &str, found: usize) -> Result<(), Failure> {
    let accepted = size_of::<T>();
    if found == accepted {
        return Ok(());
    }
    Err(Failure::argument(format!(
        "{name}.struct_size is {found}: accepted is {accepted}, of ABI version \
         {CAKE_RMSNORM_ABI_VERSION}"
    )))
}

/// What a pointer that must not be null points to.
///
/// # Safety
/// - Where it is not null, it points to a live `T` that nobody writes while the result is in use.
pub(crate) unsafe fn borrow<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller's obligations.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// As [`borrow`], for what the call writes.
///
/// # Safety
/// - Where it is not null, it points to a live `T` that nobody else uses meanwhile.
pub(crate) unsafe fn borrow_mut<'a, T>(name: &str, pointer: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's obligations.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(name))
}

fn null(name: &str) -> Failure {
    Failure::argument(format!("{name} is a null pointer"))
}

/// The element type of the matrices.
pub(crate) fn dtype(name: &str, value: i32) -> Result<Dtype, Failure> {
    weight_dtype(name, value)?.ok_or_else(|| {
        Failure::argument(format!(
            "{name} is 0: accepted are 1 (BF16), 2 (FP16) and 3 (FP32)"
        ))
    })
}

/// The element type of the weight, if there is one.
pub(crate) fn weight_dtype(name: &str, value: i32) -> Result<Option<Dtype>, Failure> {
    match value {
        0 => Ok(None),
        1 => Ok(Some(Dtype::Bf16)),
        2 => Ok(Some(Dtype::F16)),
        3 => Ok(Some(Dtype::F32)),
        _ => Err(Failure::argument(format!(
            "{name} is {value}: accepted are 0 (none, of a weight), 1 (BF16), 2 (FP16) and 3 (FP32)"
        ))),
    }
}

pub(crate) fn update(name: &str, value: i32) -> Result<Update, Failure> {
    match value {
        0 => Ok(Update::Overwrite),
        1 => Ok(Update::Accumulate),
        _ => Err(Failure::argument(format!(
            "{name} is {value}: accepted are 0 (overwrite) and 1 (accumulate)"
        ))),
    }
}

pub(crate) fn views(name: &str, value: i32) -> Result<Views, Failure> {
    match value {
        0 => Ok(Views::Ordinary),
        1 => Ok(Views::Any),
        _ => Err(Failure::argument(format!(
            "{name} is {value}: accepted are 0 (ordinary) and 1 (any)"
        ))),
    }
}

pub(crate) fn gate_order(name: &str, value: i32) -> Result<GateOrder, Failure> {
    match value {
        0 => Ok(GateOrder::NormFirst),
        1 => Ok(GateOrder::GateFirst),
        _ => Err(Failure::argument(format!(
            "{name} is {value}: accepted are 0 (norm first) and 1 (gate first)"
        ))),
    }
}

pub(crate) fn flag(name: &str, value: i32) -> Result<bool, Failure> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Failure::argument(format!(
            "{name} is {value}: accepted are 0 (no) and 1 (yes)"
        ))),
    }
}
