//! The kernels that are loaded on a GPU: each once, from PTX of its own, before any call.

use super::{Functions, Handle, LibraryFunctions, SUCCESS};
use crate::error::{Error, Result};
use crate::plan::DeviceProperties;
use crate::ptx;
use cake_rmsnorm_kernels::KERNELS;
use cake_rmsnorm_kernels::contract::Kernel;
use std::borrow::Cow;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

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

/// Compiled PTX.
#[derive(Clone, Copy, Debug)]
enum Image {
    /// Of the context that was current.
    Module(Handle),
    /// Of no context.
    Library(&'static LibraryFunctions, Handle),
}

// SAFETY: handles may be used from any thread that makes their context, if any, current.
unsafe impl Send for Image {}

impl Image {
    /// Its module in the current context.
    fn module(self, driver: &Functions, kernel: &Kernel) -> Result<Handle> {
        let (functions, library) = match self {
            Image::Module(module) => return Ok(module),
            Image::Library(functions, library) => (functions, library),
        };
        let mut module = ptr::null_mut();
        // SAFETY: the library is loaded; the out pointer is live.
        let status = unsafe { (functions.get_module)(&raw mut module, library) };
        let what = || format!(" for {}", kernel.name);
        driver.check_with("cuLibraryGetModule", status, what)?;
        Ok(module)
    }

    /// Unloads it.
    ///
    /// # Safety
    /// - A module's context is current; nothing uses the image's functions any more.
    unsafe fn unload(self, driver: &Functions) {
        // An error (a driver that is shutting down) leaves nothing to do.
        let _ = match self {
            // SAFETY: the caller's obligations.
            Image::Module(module) => unsafe { (driver.module_unload)(module) },
            // SAFETY: the caller's obligations.
            Image::Library(functions, library) => unsafe { (functions.unload)(library) },
        };
    }
}

/// A kernel in a context.
#[derive(Clone, Copy, Debug)]
struct Loaded {
    image: Image,
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
    pub(super) functions: &'static Functions,
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
        let bytes = ptr::from_ref(kernel)
            .addr()
            .wrapping_sub(KERNELS.as_ptr().addr());
        self.slots.get(bytes / size_of::<Kernel>())
    }

    /// Loads what is not loaded yet. The driver's compiler takes 50 to 150 ms a kernel: all are
    /// compiled at once, if the driver can. What is refused leaves the others loaded.
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
        let mut sources: Vec<Source> = Vec::new();
        for kernel in kernels {
            let listed = |source: &Source| ptr::eq(source.kernel, *kernel);
            if !sources.iter().any(listed) && self.loaded(kernel).is_err() {
                sources.push(Source::of(kernel, properties)?);
            }
        }
        let libraries: Vec<Option<Image>> = match &self.functions.library {
            Some(functions) => at_once(&sources, |source| compile_library(functions, source)),
            None => sources.iter().map(|_| None).collect(),
        };
        let mut refused = None;
        for (source, library) in sources.iter().zip(libraries) {
            match load_kernel(self.functions, source, library, properties, device) {
                Ok(loaded) => self.keep(source.kernel, loaded),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(()), Err)
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
            let image = compile_module(self.functions, ptx, what)?;
            let loaded = finish(self.functions, kernel, image, properties)?;
            self.keep(kernel, loaded);
        }
        Ok(())
    }

    fn keep(&self, kernel: &'static Kernel, loaded: Loaded) {
        if let Some(slot) = self.slot(kernel) {
            let _ = slot.set(loaded);
        }
    }

    /// Unloads every kernel.
    ///
    /// # Safety
    /// - The context is current, and no function is used any more.
    pub unsafe fn unload(&mut self) {
        for loaded in self.slots.iter_mut().filter_map(OnceLock::take) {
            // SAFETY: the caller's obligations.
            unsafe { loaded.image.unload(self.functions) };
        }
    }
}

/// `job` of every item, on threads of their own; on this one where there is no thread to be had.
fn at_once<T: Sync, R: Send>(items: &[T], job: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if let [item] = items {
        return vec![job(item)];
    }
    let job = &job;
    thread::scope(|scope| {
        let start = |item| {
            let started = thread::Builder::new().spawn_scoped(scope, move || job(item));
            (item, started.ok())
        };
        let started: Vec<_> = items.iter().map(start).collect();
        let result = |(item, thread): (_, Option<thread::ScopedJoinHandle<'_, R>>)| {
            let result = thread.and_then(|thread| thread.join().ok());
            result.unwrap_or_else(|| job(item))
        };
        started.into_iter().map(result).collect()
    })
}

/// The embedded PTX of a kernel.
struct Source {
    kernel: &'static Kernel,
    /// Compute capability that it is for, times ten.
    sm: u32,
    ptx: Cow<'static, str>,
}

impl Source {
    fn of(kernel: &'static Kernel, properties: &DeviceProperties) -> Result<Self> {
        let (major, minor) = properties.compute_capability;
        let module = ptx::Module::best(kernel.module, 10 * major + minor)
            .ok_or(Error::UnsupportedDevice { major, minor })?;
        let slice = module.entry(kernel.name);
        Ok(Self {
            kernel,
            sm: module.sm,
            ptx: slice.map_or(Cow::Borrowed(module.ptx), Cow::Owned),
        })
    }
}

/// Loads a kernel into the current context: from its library, or, where that cannot be, as a module
/// of its own. Of a library the driver may say that the PTX is not good only when its module is asked
/// for, and without a log; what it says of the module is the error then.
fn load_kernel(
    driver: &Functions,
    source: &Source,
    library: Option<Image>,
    properties: &DeviceProperties,
    device: &str,
) -> Result<Loaded> {
    let kernel = source.kernel;
    if let Some(library) = library
        && let Ok(loaded) = finish(driver, kernel, library, properties)
    {
        return Ok(loaded);
    }
    let image = compile_module(driver, &source.ptx, || {
        let (name, sm) = (kernel.name, source.sm);
        format!(" for {name} (PTX for sm_{sm}) on {device}")
    })?;
    finish(driver, kernel, image, properties)
}

/// Compiles PTX for no context, which needs none to be current; `None` where the driver refuses.
fn compile_library(functions: &'static LibraryFunctions, source: &Source) -> Option<Image> {
    let code = CString::new(&*source.ptx).unwrap_or_default();
    let mut library = ptr::null_mut();
    // SAFETY: the PTX is terminated and the out pointer is live; there are no options. Buffers for a
    // log would have to live as long as the driver may put compiling off.
    let status = unsafe {
        (functions.load_data)(
            &raw mut library,
            code.as_ptr().cast(),
            ptr::null_mut(),
            ptr::null_mut(),
            0,
            ptr::null_mut(),
            ptr::null_mut(),
            0,
        )
    };
    (status == SUCCESS).then_some(Image::Library(functions, library))
}

/// The kernel of an image in the current context, which is the device's; or the image is unloaded.
fn finish(
    driver: &Functions,
    kernel: &'static Kernel,
    image: Image,
    properties: &DeviceProperties,
) -> Result<Loaded> {
    let module = image.module(driver, kernel);
    let function = module.and_then(|module| function(driver, module, kernel.name));
    let function = function.and_then(|function| {
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
            image,
            function,
            attributes,
        }),
        Err(error) => {
            // SAFETY: loaded for this kernel, and nothing uses it.
            unsafe { image.unload(driver) };
            Err(error)
        }
    }
}

fn function(driver: &Functions, module: Handle, name: &str) -> Result<Handle> {
    let entry = CString::new(name).unwrap_or_default();
    let mut function = ptr::null_mut();
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

/// Compiles PTX for the current context; a failure carries the JIT log, and `what` it was for.
fn compile_module(driver: &Functions, ptx: &str, what: impl FnOnce() -> String) -> Result<Image> {
    const LOG_BYTES: usize = 8192;
    let image = CString::new(ptx).unwrap_or_default();
    let mut log = vec![0u8; LOG_BYTES];
    let mut options = [JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
    let mut module = ptr::null_mut();
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
    Ok(Image::Module(module))
}
