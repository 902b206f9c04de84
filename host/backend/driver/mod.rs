//! The CUDA driver's functions that load and launch kernels, by name: the backends on `cust` and
//! on `cudarc` differ in how they find them, and in whose contexts and streams they use.

mod chains;
mod kernels;
#[cfg(test)]
mod tests;

pub(super) use chains::{Chains, Context, Graphs};
pub use kernels::KernelAttributes;
pub(super) use kernels::Kernels;

use super::launcher::Bound;
use crate::error::{Error, Result};
use crate::plan::DeviceProperties;
use chains::GraphFunctions;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `CUmodule`, `CUfunction`, `CUstream`: pointers to what only the driver knows.
pub(super) type Handle = *mut c_void;

/// `CUresult`.
type Status = u32;

const SUCCESS: Status = 0;
/// `CUDA_ERROR_NOT_FOUND`, which this library gives too where the driver lacks a function.
const NOT_FOUND: Status = 500;

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
    stream: Handle,
    attributes: *mut LaunchAttribute,
    attribute_count: u32,
}

type ModuleLoadDataEx = unsafe extern "C" fn(
    *mut Handle,
    *const c_void,
    c_uint,
    *mut c_uint,
    *mut *mut c_void,
) -> Status;
type ModuleGetFunction = unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> Status;
type ModuleUnload = unsafe extern "C" fn(Handle) -> Status;
type LibraryLoadData = unsafe extern "C" fn(
    *mut Handle,
    *const c_void,
    *mut c_uint,
    *mut *mut c_void,
    c_uint,
    *mut c_uint,
    *mut *mut c_void,
    c_uint,
) -> Status;
type LibraryGetModule = unsafe extern "C" fn(*mut Handle, Handle) -> Status;
type LibraryUnload = unsafe extern "C" fn(Handle) -> Status;
type FuncGetAttribute = unsafe extern "C" fn(*mut c_int, c_int, Handle) -> Status;
type FuncSetAttribute = unsafe extern "C" fn(Handle, c_int, c_int) -> Status;
type FuncLoad = unsafe extern "C" fn(Handle) -> Status;
type LaunchKernel = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;
type LaunchKernelEx =
    unsafe extern "C" fn(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void) -> Status;
type GetErrorName = unsafe extern "C" fn(Status, *mut *const c_char) -> Status;
type DriverGetVersion = unsafe extern "C" fn(*mut c_int) -> Status;

/// Loading for every context at once. No context is locked meanwhile, so the driver's compiler runs
/// on several threads.
#[derive(Debug)]
struct LibraryFunctions {
    load_data: LibraryLoadData,
    get_module: LibraryGetModule,
    unload: LibraryUnload,
}

/// The functions of the driver that runs.
#[derive(Debug)]
pub(super) struct Functions {
    module_load_data_ex: ModuleLoadDataEx,
    module_get_function: ModuleGetFunction,
    module_unload: ModuleUnload,
    /// CUDA 12.0 and newer.
    library: Option<LibraryFunctions>,
    func_get_attribute: FuncGetAttribute,
    func_set_attribute: FuncSetAttribute,
    /// CUDA 12.4 and newer. Older drivers load a function when its attributes are asked for.
    func_load: Option<FuncLoad>,
    launch_kernel: LaunchKernel,
    /// CUDA 12.0 and newer.
    launch_kernel_ex: Option<LaunchKernelEx>,
    /// CUDA 12.0 and newer.
    graphs: Option<GraphFunctions>,
    get_error_name: GetErrorName,
    driver_get_version: DriverGetVersion,
}

/// The function `name` as `$type`.
macro_rules! typed {
    ($pointer:expr, $type:ty) => {
        // SAFETY: since the CUDA version asked for, the driver's function of that name has this
        // signature; `Functions::new` has its caller promise that it is the driver's.
        unsafe { std::mem::transmute::<*mut c_void, $type>($pointer) }
    };
}
use typed;

impl Functions {
    /// Looks the functions up. `find` is given a name and the first CUDA version whose function of
    /// that name is meant, and answers null where the driver has none.
    ///
    /// # Errors
    /// - [`Error::Cuda`] when the driver lacks a function that every supported one has.
    ///
    /// # Safety
    /// - What `find` answers is the driver's function of that name, or null.
    pub unsafe fn new(find: impl Fn(&'static CStr, c_int) -> *mut c_void) -> Result<Self> {
        let needed = |name: &'static CStr| match find(name, 11_000) {
            pointer if pointer.is_null() => Err(Error::Cuda {
                call: name.to_str().unwrap_or_default(),
                code: NOT_FOUND,
                name: "CUDA_ERROR_NOT_FOUND".to_owned(),
                detail: ": the driver has no such function".to_owned(),
            }),
            pointer => Ok(pointer),
        };
        let newer = |name, version| Some(find(name, version)).filter(|found| !found.is_null());
        let library = || {
            Some(LibraryFunctions {
                load_data: typed!(newer(c"cuLibraryLoadData", 12_000)?, LibraryLoadData),
                get_module: typed!(newer(c"cuLibraryGetModule", 12_000)?, LibraryGetModule),
                unload: typed!(newer(c"cuLibraryUnload", 12_000)?, LibraryUnload),
            })
        };
        Ok(Self {
            module_load_data_ex: typed!(needed(c"cuModuleLoadDataEx")?, ModuleLoadDataEx),
            module_get_function: typed!(needed(c"cuModuleGetFunction")?, ModuleGetFunction),
            module_unload: typed!(needed(c"cuModuleUnload")?, ModuleUnload),
            library: library(),
            func_get_attribute: typed!(needed(c"cuFuncGetAttribute")?, FuncGetAttribute),
            func_set_attribute: typed!(needed(c"cuFuncSetAttribute")?, FuncSetAttribute),
            func_load: newer(c"cuFuncLoad", 12_040).map(|found| typed!(found, FuncLoad)),
            launch_kernel: typed!(needed(c"cuLaunchKernel")?, LaunchKernel),
            launch_kernel_ex: newer(c"cuLaunchKernelEx", 12_000)
                .map(|found| typed!(found, LaunchKernelEx)),
            // SAFETY: the caller's obligation.
            graphs: unsafe { GraphFunctions::new(&find) },
            get_error_name: typed!(needed(c"cuGetErrorName")?, GetErrorName),
            driver_get_version: typed!(needed(c"cuDriverGetVersion")?, DriverGetVersion),
        })
    }

    /// The error of a driver call, or nothing.
    fn check(&self, call: &'static str, status: Status) -> Result<()> {
        self.check_with(call, status, String::new)
    }

    /// As [`Functions::check`], with more to say about a failure.
    fn check_with(
        &self,
        call: &'static str,
        status: Status,
        detail: impl FnOnce() -> String,
    ) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the driver's function; its out pointer is live.
        let error_name = |name| unsafe { (self.get_error_name)(status, name) };
        Err(failure(call, status, error_name, detail()))
    }

    /// The newest CUDA version that the driver serves: 1000 times the major one and 10 times the
    /// minor one; 0 where it does not say.
    fn version(&self) -> c_int {
        let mut version = 0;
        // SAFETY: the out pointer is live.
        let _ = unsafe { (self.driver_get_version)(&raw mut version) };
        version
    }

    /// Loads a function that the driver may have put off loading (its lazy mode) until the first
    /// launch, which would be inside a call.
    ///
    /// # Safety
    /// - The function is live in the current context.
    unsafe fn load_function(&self, function: Handle) -> Result<()> {
        let Some(load) = self.func_load else {
            return Ok(());
        };
        // SAFETY: the caller's obligation.
        self.check("cuFuncLoad", unsafe { load(function) })
    }

    /// Launches `function`.
    ///
    /// # Errors
    /// - [`Error::Cuda`].
    ///
    /// # Safety
    /// - `parameters` points to the function's only parameter; the context of `function` and of
    ///   the stream is current; the launch keeps the kernel's contract.
    unsafe fn launch(
        &self,
        function: Handle,
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
        let (arguments, none) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        let Some(launch_ex) = self.launch_kernel_ex.filter(|_| dependent) else {
            // SAFETY: the caller's obligations.
            let status = unsafe {
                (self.launch_kernel)(
                    function,
                    grid,
                    1,
                    1,
                    block,
                    1,
                    1,
                    shared_bytes,
                    stream,
                    arguments,
                    none,
                )
            };
            return self.check("cuLaunchKernel", status);
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
        let status = unsafe { launch_ex(&raw const config, function, arguments, none) };
        self.check("cuLaunchKernelEx", status)
    }
}

/// The error of a driver call that failed; `error_name` is the driver's `cuGetErrorName`.
pub(super) fn failure(
    call: &'static str,
    status: Status,
    error_name: impl FnOnce(*mut *const c_char) -> Status,
    detail: String,
) -> Error {
    let mut name: *const c_char = std::ptr::null();
    let named = error_name(&raw mut name);
    let name = if named == SUCCESS && !name.is_null() {
        // SAFETY: a static, terminated string of the driver.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    } else {
        "unknown".to_owned()
    };
    Error::Cuda {
        call,
        code: status,
        name,
        detail,
    }
}

/// A stream with what calls there are launched by.
pub(super) struct Queue<'a> {
    /// Of the stream's context.
    pub kernels: &'a Kernels,
    pub properties: &'a DeviceProperties,
    pub stream: Handle,
    /// Of this stream, where calls are to go that way.
    pub chains: Option<&'a Chains>,
}

impl Queue<'_> {
    /// Launches a call's kernels.
    ///
    /// # Errors
    /// - [`Error::NotPrepared`], before anything is enqueued; [`Error::Cuda`].
    ///
    /// # Safety
    /// - The stream's context is current.
    /// - As [`super::launcher::Launcher::launch`].
    pub unsafe fn launch(&self, launches: &[Bound]) -> Result<()> {
        // Nothing is enqueued unless everything can be.
        for Bound { launch, .. } in launches {
            self.kernels.function(launch.kernel)?;
        }
        if let Some(chains) = self.chains {
            // SAFETY: the caller's obligations; the kernels are loaded.
            if let Some(launched) = unsafe { chains.launch(self, launches) } {
                return launched;
            }
        }
        let driver = self.kernels.functions;
        for bound in launches {
            let function = self.kernels.function(bound.launch.kernel)?;
            let configuration = self.configuration(bound);
            // SAFETY: the caller's obligations; the function belongs to the context.
            unsafe { driver.launch(function, &configuration, bound.params)? };
        }
        Ok(())
    }

    fn configuration(&self, Bound { launch, .. }: &Bound) -> Configuration {
        Configuration {
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            stream: self.stream,
            dependent: launch.dependent && starts_dependents(self.properties),
        }
    }
}

/// Whether the GPU can start a kernel while the one before it drains.
fn starts_dependents(properties: &DeviceProperties) -> bool {
    properties.compute_capability.0 >= 9
}

/// Where and how a kernel runs.
struct Configuration {
    pub grid: u32,
    pub block: u32,
    pub shared_bytes: u32,
    pub stream: Handle,
    /// May start while the kernel before it drains.
    pub dependent: bool,
}
