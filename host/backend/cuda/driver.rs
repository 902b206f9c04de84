//! The driver by way of `cust`.

use crate::backend::driver::{self, Functions};
use crate::error::{Error, Result};
use cust::sys;
use std::ffi::c_void;
use std::sync::OnceLock;

/// The error of a driver call, or nothing.
pub(super) fn check(call: &'static str, result: sys::CUresult) -> Result<()> {
    check_with(call, result, String::new)
}

/// As [`check`], with more to say about a failure.
pub(super) fn check_with(
    call: &'static str,
    result: sys::CUresult,
    detail: impl FnOnce() -> String,
) -> Result<()> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    // SAFETY: the driver writes a pointer to a static string, or null.
    let error_name = |name| unsafe { sys::cuGetErrorName(result, name) as u32 };
    let code = result as u32;
    Err(driver::failure(call, code, error_name, detail()))
}

/// The driver's functions. `cust`'s bindings are CUDA 11.4's, so what is newer (dependent launch)
/// can only be had by name.
pub(super) fn functions() -> Result<&'static Functions> {
    static FUNCTIONS: OnceLock<Result<Functions>> = OnceLock::new();
    let functions = FUNCTIONS.get_or_init(|| {
        // SAFETY: the driver is asked for its functions.
        unsafe {
            Functions::new(|name, version| {
                let mut found: *mut c_void = std::ptr::null_mut();
                let result = sys::cuGetProcAddress(name.as_ptr(), &raw mut found, version, 0);
                match result {
                    sys::CUresult::CUDA_SUCCESS => found,
                    _ => std::ptr::null_mut(),
                }
            })
        }
    });
    functions.as_ref().map_err(Error::clone)
}
