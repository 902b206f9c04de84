//! A context of `cudarc`, and the kernels loaded into it.

use super::check;
use crate::backend::driver::{self, Functions, KernelAttributes, Kernels};
use crate::error::{Error, Result};
use crate::plan::DeviceProperties;
use ::cudarc::driver::{CudaContext, sys};
use cake_rmsnorm_kernels::contract::Kernel;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// A context with the kernels that are loaded into it. There is one a context: clones, and whoever
/// asks for the same context again, share the kernels, which stay as long as one of them does.
#[derive(Clone, Debug)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    context: Arc<CudaContext>,
    name: String,
    properties: DeviceProperties,
    kernels: Kernels,
}

impl Device {
    /// The device of `context`.
    ///
    /// # Errors
    /// - [`Error::Cuda`] when the context is no more usable, or the driver older than CUDA 11.3.
    /// - [`Error::UnsupportedDevice`] when the GPU is older than compute capability 8.0.
    pub fn of(context: &Arc<CudaContext>) -> Result<Self> {
        static DEVICES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|device| device.strong_count() > 0);
        let mut known = devices.iter().filter_map(Weak::upgrade);
        if let Some(device) = known.find(|device| device.context.cu_ctx() == context.cu_ctx()) {
            return Ok(Self(device));
        }
        drop(known);
        let device = Arc::new(Inner::new(context)?);
        devices.push(Arc::downgrade(&device));
        Ok(Self(device))
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

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    /// Loads kernels; those that are loaded stay as they are.
    ///
    /// [`crate::backend::Backend::prepare`] calls this with the kernels of an operator.
    ///
    /// # Errors
    /// - [`Error::Cuda`], with the JIT log, when the driver cannot compile or load the PTX.
    /// - [`Error::BlockThreads`] when it needs too many registers for the kernel's blocks.
    pub fn load(&self, kernels: &[&'static Kernel]) -> Result<()> {
        let Inner {
            context,
            name,
            properties,
            kernels: loaded,
        } = &*self.0;
        check("cuCtxSetCurrent", context.bind_to_thread())?;
        // SAFETY: the context is current, and these are its device's properties.
        unsafe { loaded.load(kernels, properties, name) }
    }

    /// What the driver's compiler made of a kernel.
    ///
    /// # Errors
    /// - [`Error::NotPrepared`].
    pub fn kernel_attributes(&self, kernel: &'static Kernel) -> Result<KernelAttributes> {
        self.0.kernels.attributes(kernel)
    }
}

impl driver::Context for Device {
    fn kernels(&self) -> &Kernels {
        &self.0.kernels
    }

    fn run<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        check("cuCtxSetCurrent", self.context().bind_to_thread())?;
        body()
    }
}

impl Inner {
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let properties = properties(context)?;
        let (major, minor) = properties.compute_capability;
        if major < 8 {
            return Err(Error::UnsupportedDevice { major, minor });
        }
        Ok(Self {
            name: check("cuDeviceGetName", context.name())?,
            kernels: Kernels::new(functions()?),
            context: context.clone(),
            properties,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the context is current; nothing uses the kernels through this object any
            // more, and the driver lets work that was enqueued finish.
            unsafe { self.kernels.unload() };
        }
    }
}

/// The driver's functions.
pub(super) fn functions() -> Result<&'static Functions> {
    static FUNCTIONS: OnceLock<Result<Functions>> = OnceLock::new();
    let functions = FUNCTIONS.get_or_init(|| {
        // SAFETY: the driver is asked for its functions.
        unsafe {
            Functions::new(|name, version| {
                let mut found: *mut c_void = std::ptr::null_mut();
                let mut status = sys::CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
                let result = sys::cuGetProcAddress_v2(
                    name.as_ptr(),
                    &raw mut found,
                    version,
                    0,
                    &raw mut status,
                );
                match result {
                    sys::CUresult::CUDA_SUCCESS => found,
                    _ => std::ptr::null_mut(),
                }
            })
        }
    });
    functions.as_ref().map_err(Error::clone)
}

fn properties(context: &CudaContext) -> Result<DeviceProperties> {
    use sys::CUdevice_attribute as A;
    let attribute = |name| {
        let value = check("cuDeviceGetAttribute", context.attribute(name))?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    Ok(DeviceProperties {
        sm_count: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        compute_capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        shared_bytes_per_block: attribute(
            A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
    })
}
