//! The driver calls that this backend makes, with typed errors.
//!
//! `cust`'s bindings are CUDA 11.4's. What they lack (dependent launch) is fetched by name from
//! the driver that runs.

use crate::error::{Error, Result};
use cust::sys;
use std::ffi::{CStr, c_char, c_int, c_void};
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
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: the driver writes a pointer to a static string, or null.
    let named = unsafe { sys::cuGetErrorName(result, &raw mut name) };
    let name = if named == sys::CUresult::CUDA_SUCCESS && !name.is_null() {
        // SAFETY: a static, terminated string of the driver.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    } else {
        "unknown".to_owned()
    };
    Err(Error::Cuda {
        call,
        code: result as u32,
        name,
        detail: detail(),
    })
}

/// `CUlaunchAttribute` of CUDA 12: an identifier, then a 64-byte value.
#[repr(C)]
struct LaunchAttribute {
    id: u32,
    padding: [u8; 4],
    value: [u32; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;

/// `CUlaunchConfig` of CUDA 12.
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: sys::CUstream,
    attributes: *mut LaunchAttribute,
    attribute_count: u32,
}

type LaunchKernelEx = unsafe extern "C" fn(
    *const LaunchConfig,
    sys::CUfunction,
    *mut *mut c_void,
    *mut *mut c_void,
) -> sys::CUresult;

/// `cuLaunchKernelEx`, where the driver has it (CUDA 12.0 and newer).
fn launch_kernel_ex() -> Option<LaunchKernelEx> {
    static FUNCTION: OnceLock<Option<LaunchKernelEx>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        let function = newer_function(c"cuLaunchKernelEx", 12_000)?;
        // SAFETY: the driver's function of that name has this signature since CUDA 12.0.
        Some(unsafe { std::mem::transmute::<*mut c_void, LaunchKernelEx>(function) })
    })
}

/// Loads a function that the driver may have put off loading (its lazy mode) until the first
/// launch, which would be inside a call.
pub(super) fn load_function(function: sys::CUfunction) -> Result<()> {
    type FuncLoad = unsafe extern "C" fn(sys::CUfunction) -> sys::CUresult;
    // Older drivers load a function when its attributes are asked for.
    let Some(load) = newer_function(c"cuFuncLoad", 12_040) else {
        return Ok(());
    };
    // SAFETY: the driver's function of that name has this signature since CUDA 12.4.
    let load = unsafe { std::mem::transmute::<*mut c_void, FuncLoad>(load) };
    // SAFETY: the function is live in the current context.
    check("cuFuncLoad", unsafe { load(function) })
}

/// A driver function that the bindings lack; none where the driver is older than `version`.
fn newer_function(name: &CStr, version: c_int) -> Option<*mut c_void> {
    let mut function: *mut c_void = std::ptr::null_mut();
    // SAFETY: the name is terminated; the driver writes the function's address or null.
    let result = unsafe { sys::cuGetProcAddress(name.as_ptr(), &raw mut function, version, 0) };
    (result == sys::CUresult::CUDA_SUCCESS && !function.is_null()).then_some(function)
}

/// Where and how a kernel runs.
pub(super) struct Configuration {
    pub grid: u32,
    pub block: u32,
    pub shared_bytes: u32,
    pub stream: sys::CUstream,
    /// May start while the kernel before it drains.
    pub dependent: bool,
}

/// Launches `function`.
///
/// # Safety
/// - `parameters` points to the function's only parameter; the context of `function` and of the
///   stream is current; the launch keeps the kernel's contract.
pub(super) unsafe fn launch(
    function: sys::CUfunction,
    configuration: &Configuration,
    parameters: *const u8,
) -> Result<()> {
    let Configuration {
        grid,
        block,
        shared_bytes,
        stream,
        dependent,
    } = *configuration;
    let mut arguments = [parameters.cast_mut().cast::<c_void>()];
    let extended = if dependent { launch_kernel_ex() } else { None };
    let Some(launch_ex) = extended else {
        // SAFETY: the caller's obligations.
        let result = unsafe {
            sys::cuLaunchKernel(
                function,
                grid,
                1,
                1,
                block,
                1,
                1,
                shared_bytes,
                stream,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        return check("cuLaunchKernel", result);
    };
    let mut value = [0; 16];
    value[0] = 1;
    let mut attribute = LaunchAttribute {
        id: PROGRAMMATIC_STREAM_SERIALIZATION,
        padding: [0; 4],
        value,
    };
    let config = LaunchConfig {
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared_bytes,
        stream,
        attributes: &raw mut attribute,
        attribute_count: 1,
    };
    // SAFETY: the caller's obligations; config and attribute outlive the call.
    let result = unsafe {
        launch_ex(
            &raw const config,
            function,
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    };
    check("cuLaunchKernelEx", result)
}
