//! The CUDA driver, loaded when a GPU is first asked for: the library itself loads on machines
//! without one.
//!
//! `cust` links the driver's functions by name. The functions of these names here, which no other
//! library sees, go on to the driver's, so that nothing is left for the linker to find in it.

use crate::failure::{CakeRmsnormStatus, Failure};
use libloading::Library;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// `CUDA_ERROR_NOT_FOUND`: what a function that the driver lacks returns.
extern "C" fn missing() -> u32 {
    500
}

macro_rules! functions {
    ($($name:ident)*) => {
        mod slot {
            use super::{AtomicPtr, c_void, missing};
            $(
                #[allow(non_upper_case_globals)]
                pub static $name: AtomicPtr<c_void> = AtomicPtr::new(missing as *mut c_void);
            )*
        }

        $(
            #[cfg(target_arch = "x86_64")]
            std::arch::global_asm!(
                concat!(".globl ", stringify!($name)),
                concat!(".hidden ", stringify!($name)),
                concat!(".type ", stringify!($name), ", @function"),
                concat!(stringify!($name), ":"),
                "jmp qword ptr [rip + {slot}]",
                slot = sym slot::$name,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::global_asm!(
                concat!(".globl ", stringify!($name)),
                concat!(".hidden ", stringify!($name)),
                concat!(".type ", stringify!($name), ", %function"),
                concat!(stringify!($name), ":"),
                "adrp x16, {slot}",
                "ldr x16, [x16, :lo12:{slot}]",
                "br x16",
                slot = sym slot::$name,
            );
        )*

        const FUNCTIONS: &[(&str, &AtomicPtr<c_void>)] =
            &[$((stringify!($name), &slot::$name)),*];
    };
}

functions! {
    cuCtxGetCurrent cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuDeviceGet cuDeviceGetAttribute
    cuDeviceGetName cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain cuDriverGetVersion
    cuFuncGetAttribute cuFuncSetAttribute cuGetErrorName cuGetProcAddress cuInit cuLaunchKernel
    cuModuleGetFunction cuModuleLoadDataEx cuModuleUnload cuStreamDestroy_v2
}

/// Loads the driver, once.
pub(crate) fn load() -> Result<(), Failure> {
    static LOADED: Mutex<bool> = Mutex::new(false);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if *loaded {
        return Ok(());
    }
    // SAFETY: the driver's initialisers are made to run in any program that uses CUDA.
    let driver = unsafe { Library::new("libcuda.so.1") };
    let driver = driver.map_err(|error| {
        let message = format!("the CUDA driver cannot be loaded: {error}");
        Failure::new(CakeRmsnormStatus::Cuda, message)
    })?;
    for (name, slot) in FUNCTIONS {
        // SAFETY: only the address is taken.
        if let Ok(function) = unsafe { driver.get::<*mut c_void>(name.as_bytes()) } {
            slot.store(*function, Ordering::Release);
        }
    }
    // Its functions are in use from now on.
    std::mem::forget(driver);
    *loaded = true;
    Ok(())
}
