//! The kernels that are loaded on a GPU: each once, from PTX of its own, before any call.

use super::{Functions, Handle};
use crate::error::{Error, Result};
use crate::plan::DeviceProperties;
use crate::ptx;
use cake_rmsnorm_kernels::KERNELS;
use cake_rmsnorm_kernels::contract::Kernel;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};

/// What the driver's compiler made of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAttributes {
    /// Registers a thread.
    pub registers: u32,
    /// Local memory a thread, in bytes: spilled registers. None is expected.
    pub local_bytes: u32,
    /// Threads that a block may have.
    pub max_threads: u32,
}

/// A kernel in a context.
#[derive(Clone, Copy, Debug)]
struct Loaded {
    module: Handle,
    function: Handle,
    attributes: KernelAttributes,
}

// SAFETY: handles may be used from any thread that makes their context current.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// The kernels of one context, shared by all operators there. A call reads a slot, without a
/// lock.
#[derive(Debug)]
pub(in crate::backend) struct Kernels {
    functions: &'static Functions,
    /// By position in `KERNELS`.
    slots: Vec<OnceLock<Loaded>>,
    /// One loads at a time, so nothing is compiled twice.
    loading: Mutex<()>,
}

impl Kernels {
    pub fn new(functions: &'static Functions) -> Self {
        Self {
            functions,
            slots: KERNELS.iter().map(|_| OnceLock::new()).collect(),
            loading: Mutex::new(()),
        }
    }

    /// The function of a loaded kernel.
    pub fn function(&self, kernel: &'static Kernel) -> Result<Handle> {
        Ok(self.loaded(kernel)?.function)
    }

    /// What is known of a loaded kernel.
    pub fn attributes(&self, kernel: &'static Kernel) -> Result<KernelAttributes> {
        Ok(self.loaded(kernel)?.attributes)
    }

    fn loaded(&self, kernel: &'static Kernel) -> Result<&Loaded> {
        let loaded = self.slot(kernel).and_then(OnceLock::get);
        loaded.ok_or(Error::NotPrepared {
            kernel: kernel.name,
        })
    }

    /// The place of a kernel; none for one that is not of `KERNELS`.
    fn slot(&self, kernel: &'static Kernel) -> Option<&OnceLock<Loaded>> {
        let bytes = std::ptr::from_ref(kernel)
            .addr()
            .wrapping_sub(KERNELS.as_ptr().addr());
        self.slots.get(bytes / size_of::<Kernel>())
    }

    /// Loads what is not loaded yet, one after the other: the driver's compiler, which takes 50 to
    /// 150 ms a kernel, does not run on several threads at once.
    ///
    /// # Safety
    /// - The context that the kernels are for is current, and has these properties.
    pub unsafe fn load(
        &self,
        kernels: &[&'static Kernel],
        properties: &DeviceProperties,
        device: &str,
    ) -> Result<()> {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing = kernels.iter().filter(|kernel| self.loaded(kernel).is_err());
        missing.try_for_each(|kernel| {
            let loaded = load(self.functions, kernel, properties, device)?;
            self.keep(kernel, loaded);
            Ok(())
        })
    }

    /// Loads a kernel, if it is not loaded yet, from PTX that is given.
    ///
    /// # Safety
    /// - As [`Kernels::load`].
    /// - If the driver accepts the PTX, its entry of the kernel's name is that kernel.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub unsafe fn load_from(
        &self,
        kernel: &'static Kernel,
        ptx: &str,
        properties: &DeviceProperties,
        device: &str,
    ) -> Result<()> {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if self.loaded(kernel).is_err() {
            let what = || format!(" for {} on {device}", kernel.name);
            let loaded = load_from(self.functions, kernel, ptx, properties, what)?;
            self.keep(kernel, loaded);
        }
        Ok(())
    }

    fn keep(&self, kernel: &'static Kernel, loaded: Loaded) {
        if let Some(slot) = self.slot(kernel) {
            let _ = slot.set(loaded);
        }
    }

    /// Unloads every module.
    ///
    /// # Safety
    /// - The context is current, and no function is used any more.
    pub unsafe fn unload(&mut self) {
        for loaded in self.slots.iter_mut().filter_map(OnceLock::take) {
            // SAFETY: the caller's obligations. An error (a driver that is shutting down) leaves
            // nothing to do.
            let _ = unsafe { (self.functions.module_unload)(loaded.module) };
        }
    }
}

/// Loads a kernel into the current context, which is the device's.
fn load(
    driver: &Functions,
    kernel: &'static Kernel,
    properties: &DeviceProperties,
    device: &str,
) -> Result<Loaded> {
    let (major, minor) = properties.compute_capability;
    let module = ptx::Module::best(kernel.module, 10 * major + minor)
        .ok_or(Error::UnsupportedDevice { major, minor })?;
    let slice = module.entry(kernel.name);
    let ptx = slice.as_deref().unwrap_or(module.ptx);
    load_from(driver, kernel, ptx, properties, || {
        let (name, sm) = (kernel.name, module.sm);
        format!(" for {name} (PTX for sm_{sm}) on {device}")
    })
}

/// Loads a kernel from PTX that is given; `what` is for errors.
fn load_from(
    driver: &Functions,
    kernel: &'static Kernel,
    ptx: &str,
    properties: &DeviceProperties,
    what: impl FnOnce() -> String,
) -> Result<Loaded> {
    let module = load_ptx(driver, ptx, what)?;
    let function = function(driver, module, kernel.name).and_then(|function| {
        let attributes = attributes(driver, function)?;
        if attributes.max_threads < kernel.max_threads {
            return Err(Error::BlockThreads {
                kernel: kernel.name,
                needed: kernel.max_threads,
                found: attributes.max_threads,
            });
        }
        allow_shared_memory(driver, function, properties.shared_bytes_per_block)?;
        Ok((function, attributes))
    });
    match function {
        Ok((function, attributes)) => Ok(Loaded {
            module,
            function,
            attributes,
        }),
        Err(error) => {
            // SAFETY: loaded above, and nothing uses it.
            let _ = unsafe { (driver.module_unload)(module) };
            Err(error)
        }
    }
}

fn function(driver: &Functions, module: Handle, name: &str) -> Result<Handle> {
    let entry = CString::new(name).unwrap_or_default();
    let mut function = std::ptr::null_mut();
    // SAFETY: the module is loaded in the current context; the name is terminated.
    let status = unsafe { (driver.module_get_function)(&raw mut function, module, entry.as_ptr()) };
    driver.check_with("cuModuleGetFunction", status, || format!(" for {name}"))?;
    // SAFETY: the function is of that module.
    unsafe { driver.load_function(function)? };
    Ok(function)
}

// `CUfunction_attribute`.
const MAX_THREADS_PER_BLOCK: c_int = 0;
const LOCAL_SIZE_BYTES: c_int = 3;
const NUM_REGS: c_int = 4;
const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;

/// Asks the driver about a function, which it must have compiled to answer.
fn attributes(driver: &Functions, function: Handle) -> Result<KernelAttributes> {
    let attribute = |attribute| {
        let mut value: c_int = 0;
        // SAFETY: the function is of the current context; the out pointer is live.
        let status = unsafe { (driver.func_get_attribute)(&raw mut value, attribute, function) };
        driver.check("cuFuncGetAttribute", status)?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    Ok(KernelAttributes {
        registers: attribute(NUM_REGS)?,
        local_bytes: attribute(LOCAL_SIZE_BYTES)?,
        max_threads: attribute(MAX_THREADS_PER_BLOCK)?,
    })
}

fn allow_shared_memory(driver: &Functions, function: Handle, bytes: u32) -> Result<()> {
    let attribute = MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is of the current context.
    let status = unsafe { (driver.func_set_attribute)(function, attribute, bytes as c_int) };
    driver.check("cuFuncSetAttribute", status)
}

// `CUjit_option`.
const JIT_ERROR_LOG_BUFFER: c_uint = 5;
const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;

/// Loads PTX into the current context; a failure carries the JIT log.
fn load_ptx(driver: &Functions, ptx: &str, what: impl FnOnce() -> String) -> Result<Handle> {
    const LOG_BYTES: usize = 8192;
    let image = CString::new(ptx).unwrap_or_default();
    let mut log = vec![0u8; LOG_BYTES];
    let mut options = [JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is terminated; options and values have two entries, and the log's
    // buffer has the size given.
    let status = unsafe {
        (driver.module_load_data_ex)(
            &raw mut module,
            image.as_ptr().cast(),
            options.len() as c_uint,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    driver.check_with("cuModuleLoadDataEx", status, || {
        let mut detail = what();
        let version = ptx
            .lines()
            .find(|line| line.starts_with(".version"))
            .unwrap_or(".version ?");
        let cuda = driver.version();
        let _ = write!(
            detail,
            "; PTX {version}, driver for CUDA {}.{}",
            cuda / 1000,
            cuda % 1000 / 10
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
