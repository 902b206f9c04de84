//! A GPU: its primary context, its properties, and the kernels loaded into it.

use super::driver::{check, check_with};
use crate::error::{Error, Result};
use crate::op::RmsNorm;
use crate::plan::DeviceProperties;
use crate::ptx;
use cake_rmsnorm_kernels::KERNELS;
use cake_rmsnorm_kernels::contract::Kernel;
use cust::sys;
use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A GPU with its primary context, which is shared with other libraries of the process.
#[derive(Clone, Debug)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: sys::CUdevice,
    context: sys::CUcontext,
    name: String,
    properties: DeviceProperties,
    /// Loaded modules by name.
    modules: Mutex<BTreeMap<&'static str, usize>>,
    /// Functions by position in `KERNELS`, as addresses.
    functions: Vec<OnceLock<usize>>,
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
        // SAFETY: the device exists; the context is released when the last clone goes.
        unsafe {
            let result = sys::cuDevicePrimaryCtxRetain(&raw mut context, device);
            check("cuDevicePrimaryCtxRetain", result)?;
        }
        let functions = KERNELS.iter().map(|_| OnceLock::new()).collect();
        let modules = Mutex::new(BTreeMap::new());
        Ok(Self(Arc::new(Inner {
            device,
            context,
            name,
            properties,
            modules,
            functions,
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

    /// Loads every kernel that `op` may launch, so that no later call loads anything (as stream
    /// capture demands).
    ///
    /// # Errors
    /// - [`Error::Cuda`], with the JIT log, when the driver cannot compile or load the PTX.
    pub fn load(&self, op: &RmsNorm) -> Result<()> {
        let weight = Some(op.weight_type());
        let wanted = |kernel: &&Kernel| kernel.weight.is_none() || kernel.weight == weight;
        for kernel in KERNELS.iter().filter(wanted) {
            self.function(kernel)?;
        }
        Ok(())
    }

    /// The function of a kernel; loads its module at its first use.
    pub(super) fn function(&self, kernel: &'static Kernel) -> Result<sys::CUfunction> {
        let position = KERNELS.iter().position(|k| std::ptr::eq(k, kernel));
        let position = position.unwrap_or_else(|| unreachable!("plans name entries of KERNELS"));
        let slot = &self.0.functions[position];
        if let Some(function) = slot.get() {
            return Ok(*function as sys::CUfunction);
        }
        let function = self.with_context(|| self.resolve(kernel))?;
        Ok(*slot.get_or_init(|| function as usize) as sys::CUfunction)
    }

    fn resolve(&self, kernel: &'static Kernel) -> Result<sys::CUfunction> {
        let module = self.module(kernel.module)?;
        let name = CString::new(kernel.name).unwrap_or_default();
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded in the current context; the name is terminated.
        unsafe {
            let result = sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr());
            check_with("cuModuleGetFunction", result, || {
                format!(" for {}", kernel.name)
            })?;
            let shared = self.0.properties.shared_bytes_per_block as c_int;
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            check(
                "cuFuncSetAttribute",
                sys::cuFuncSetAttribute(function, attribute, shared),
            )?;
        }
        Ok(function)
    }

    fn module(&self, name: &'static str) -> Result<sys::CUmodule> {
        let mut modules = self
            .0
            .modules
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(name) {
            return Ok(*module as sys::CUmodule);
        }
        let (major, minor) = self.0.properties.compute_capability;
        let capability = 10 * major + minor;
        let best = ptx::MODULES
            .iter()
            .filter(|module| module.name == name && module.sm <= capability)
            .max_by_key(|module| module.sm)
            .ok_or(Error::UnsupportedDevice { major, minor })?;
        let module = load_ptx(best.ptx, || {
            format!(
                " for module {name} (PTX for sm_{}) on {}",
                best.sm, self.0.name
            )
        })?;
        modules.insert(name, module as usize);
        Ok(module)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let modules = std::mem::take(
            self.modules
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner),
        );
        // SAFETY: nothing uses the modules or the context through this object any more. Errors
        // (a driver that is shutting down) leave nothing to do.
        unsafe {
            if sys::cuCtxPushCurrent_v2(self.context) == sys::CUresult::CUDA_SUCCESS {
                for module in modules.into_values() {
                    let _ = sys::cuModuleUnload(module as sys::CUmodule);
                }
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

/// Loads PTX into the current context; a failure carries the JIT log.
pub(super) fn load_ptx(ptx: &str, what: impl FnOnce() -> String) -> Result<sys::CUmodule> {
    const LOG_BYTES: usize = 8192;
    let image = CString::new(ptx).unwrap_or_default();
    let mut log = vec![0u8; LOG_BYTES];
    let mut options = [
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is terminated; options and values have two entries, and the log's
    // buffer has the size given.
    let result = unsafe {
        sys::cuModuleLoadDataEx(
            &raw mut module,
            image.as_ptr().cast(),
            options.len() as c_uint,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    check_with("cuModuleLoadDataEx", result, || {
        let mut detail = what();
        let version = ptx
            .lines()
            .find(|line| line.starts_with(".version"))
            .unwrap_or(".version ?");
        let mut driver: c_int = 0;
        // SAFETY: the out pointer is live.
        let _ = unsafe { sys::cuDriverGetVersion(&raw mut driver) };
        let _ = write!(
            detail,
            "; PTX {version}, driver for CUDA {}.{}",
            driver / 1000,
            driver % 1000 / 10
        );
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        if end > 0 {
            let _ = write!(
                detail,
                "; JIT log: {}",
                String::from_utf8_lossy(&log[..end]).trim()
            );
        }
        detail
    })?;
    Ok(module)
}
