//! A GPU: its primary context, its properties, and the kernels loaded into it.

use super::driver::{self, check};
use crate::backend::driver::{Context, KernelAttributes, Kernels};
use crate::error::{Error, Result};
use crate::plan::DeviceProperties;
use cake_rmsnorm_kernels::contract::Kernel;
use cust::sys;
use std::ffi::c_int;
use std::sync::Arc;

/// A GPU with its primary context, which is shared with other libraries of the process. Clones
/// share the kernels that are loaded.
#[derive(Clone, Debug)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: sys::CUdevice,
    context: sys::CUcontext,
    name: String,
    properties: DeviceProperties,
    kernels: Kernels,
}

// SAFETY: a context may be used from any thread that makes it current, which every use does.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver's functions are thread-safe.
unsafe impl Sync for Inner {}

impl Device {
    /// Opens GPU `ordinal`.
    ///
    /// # Errors
    /// - [`Error::Cuda`] when there is no driver or no such GPU.
    /// - [`Error::UnsupportedDevice`] when it is older than compute capability 8.0.
    pub fn open(ordinal: u32) -> Result<Self> {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: plain driver calls; the out pointers are live.
        unsafe {
            check("cuInit", sys::cuInit(0))?;
            check(
                "cuDeviceGet",
                sys::cuDeviceGet(&raw mut device, ordinal as c_int),
            )?;
        }
        let properties = properties(device)?;
        let (major, minor) = properties.compute_capability;
        if major < 8 {
            return Err(Error::UnsupportedDevice { major, minor });
        }
        let name = device_name(device)?;
        let functions = driver::functions()?;
        // SAFETY: the device exists; the context is released when the last clone goes.
        unsafe {
            let result = sys::cuDevicePrimaryCtxRetain(&raw mut context, device);
            check("cuDevicePrimaryCtxRetain", result)?;
        }
        Ok(Self(Arc::new(Inner {
            device,
            context,
            name,
            properties,
            kernels: Kernels::new(functions),
        })))
    }

    /// What plans need to know.
    #[must_use]
    pub fn properties(&self) -> &DeviceProperties {
        &self.0.properties
    }

    /// The GPU's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Bytes of the last cache before memory.
    ///
    /// # Errors
    /// - [`Error::Cuda`].
    pub fn cache_bytes(&self) -> Result<u64> {
        let name = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        attribute(self.0.device, name).map(u64::from)
    }

    /// The newest CUDA version that the driver serves, major and minor.
    ///
    /// # Errors
    /// - [`Error::Cuda`].
    pub fn driver_version(&self) -> Result<(u32, u32)> {
        let mut version: c_int = 0;
        // SAFETY: the out pointer is live.
        let result = unsafe { sys::cuDriverGetVersion(&raw mut version) };
        check("cuDriverGetVersion", result)?;
        let version = u32::try_from(version).unwrap_or(0);
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Runs `body` with the device's context current, and restores what was current.
    ///
    /// # Errors
    /// - [`Error::Cuda`], and what `body` reports.
    pub fn with_context<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut current = std::ptr::null_mut();
        // SAFETY: plain driver call; the out pointer is live.
        check("cuCtxGetCurrent", unsafe {
            sys::cuCtxGetCurrent(&raw mut current)
        })?;
        if current == self.0.context {
            return body();
        }
        // SAFETY: the context is retained.
        check("cuCtxPushCurrent", unsafe {
            sys::cuCtxPushCurrent_v2(self.0.context)
        })?;
        let result = body();
        // SAFETY: pops what was pushed above.
        check("cuCtxPopCurrent", unsafe {
            sys::cuCtxPopCurrent_v2(&raw mut current)
        })?;
        result
    }

    /// Loads kernels, several at a time; those that are loaded stay as they are.
    ///
    /// [`crate::backend::Backend::prepare`] calls this with the kernels of an operator.
    ///
    /// # Errors
    /// - [`Error::Cuda`], with the JIT log, when the driver cannot compile or load the PTX.
    /// - [`Error::BlockThreads`] when it needs too many registers for the kernel's blocks.
    pub fn load(&self, kernels: &[&'static Kernel]) -> Result<()> {
        let Inner {
            name,
            properties,
            kernels: loaded,
            ..
        } = &*self.0;
        // SAFETY: the device's context is current, and these are its properties.
        self.with_context(|| unsafe { loaded.load(kernels, properties, name) })
    }

    /// Loads a kernel, if it is not loaded yet, from PTX that is given: how `cake-rmsnorm
    /// reliability` sees what becomes of PTX that was damaged.
    ///
    /// # Errors
    /// - As [`Device::load`].
    ///
    /// # Safety
    /// - If the driver accepts the PTX, its entry of the kernel's name is that kernel.
    #[doc(hidden)]
    pub unsafe fn load_from(&self, kernel: &'static Kernel, ptx: &str) -> Result<()> {
        let Inner {
            name, properties, ..
        } = &*self.0;
        // SAFETY: the device's context is current, and these are its properties; the caller
        // vouches for the PTX.
        self.with_context(|| unsafe { self.0.kernels.load_from(kernel, ptx, properties, name) })
    }

    /// What the driver's compiler made of a kernel.
    ///
    /// # Errors
    /// - [`Error::NotPrepared`].
    pub fn kernel_attributes(&self, kernel: &'static Kernel) -> Result<KernelAttributes> {
        self.0.kernels.attributes(kernel)
    }
}

impl Context for Device {
    fn kernels(&self) -> &Kernels {
        &self.0.kernels
    }

    fn run<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.with_context(body)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: nothing uses the kernels or the context through this object any more. Errors
        // (a driver that is shutting down) leave nothing to do.
        unsafe {
            if sys::cuCtxPushCurrent_v2(self.context) == sys::CUresult::CUDA_SUCCESS {
                self.kernels.unload();
                let mut popped = std::ptr::null_mut();
                let _ = sys::cuCtxPopCurrent_v2(&raw mut popped);
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

fn attribute(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: the device exists; the out pointer is live.
    let result = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    check("cuDeviceGetAttribute", result)?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn properties(device: sys::CUdevice) -> Result<DeviceProperties> {
    use sys::CUdevice_attribute as A;
    Ok(DeviceProperties {
        sm_count: attribute(device, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        compute_capability: (
            attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        shared_bytes_per_block: attribute(
            device,
            A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
    })
}

fn device_name(device: sys::CUdevice) -> Result<String> {
    let mut name = [0u8; 128];
    // SAFETY: the driver writes a terminated string of at most the given length.
    let result =
        unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device) };
    check("cuDeviceGetName", result)?;
    let end = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}
