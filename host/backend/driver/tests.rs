//! Loading and launching, on a driver that only notes what it is asked for.

use super::*;
use crate::plan::DeviceProperties;
use crate::ptx;
use cake_rmsnorm_kernels::KERNELS;
use cake_rmsnorm_kernels::contract::Kernel;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread::{self, ThreadId};

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// What the driver says of every kernel's largest block.
    static MAX_THREADS: Cell<c_int> = const { Cell::new(1024) };
    /// What loading answers.
    static LOADED: Cell<Status> = const { Cell::new(SUCCESS) };
}

/// Which thread loaded which library.
static LIBRARIES: Mutex<BTreeMap<usize, ThreadId>> = Mutex::new(BTreeMap::new());

/// What this driver has instead of a compiler refuses this kernel.
const REFUSED: usize = 2;
/// Of this one it finds only later that it must refuse it.
const FOUND_BAD: usize = 3;

fn note(call: String) {
    CALLS.with_borrow_mut(|calls| calls.push(call));
}

fn calls() -> Vec<String> {
    CALLS.take()
}

unsafe extern "C" fn module_load_data_ex(
    module: *mut Handle,
    image: *const c_void,
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> Status {
    // SAFETY: as the driver's function.
    unsafe {
        let image = CStr::from_ptr(image.cast()).to_string_lossy();
        note(format!("load {}", image.matches(".visible .entry").count()));
        *module = 0x10 as Handle;
        if LOADED.get() != SUCCESS {
            assert_eq!((count, *options, *options.add(1)), (2, 5, 6));
            (*values).cast::<[u8; 6]>().write(*b"no op\0");
        }
    }
    LOADED.get()
}

unsafe extern "C" fn module_get_function(
    function: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> Status {
    // SAFETY: as the driver's function.
    unsafe {
        let name = CStr::from_ptr(name).to_string_lossy();
        note(format!("get {name} of {module:?}"));
        *function = 0x20 as Handle;
    }
    SUCCESS
}

unsafe extern "C" fn module_unload(module: Handle) -> Status {
    note(format!("unload {module:?}"));
    SUCCESS
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn library_load_data(
    library: *mut Handle,
    image: *const c_void,
    options: *mut c_uint,
    values: *mut *mut c_void,
    count: c_uint,
    _: *mut c_uint,
    _: *mut *mut c_void,
    more: c_uint,
) -> Status {
    // SAFETY: as the driver's function.
    let image = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
    let entry = |kernel: &Kernel| image.contains(&format!(".visible .entry {}(", kernel.name));
    let index = KERNELS.iter().position(entry).expect("a kernel");
    assert!(count == 0 && more == 0 && options.is_null() && values.is_null());
    if index == REFUSED {
        return 218;
    }
    // SAFETY: as above.
    unsafe { *library = (0x100 + index) as Handle };
    let mut libraries = LIBRARIES.lock().expect("no panic");
    libraries.insert(index, thread::current().id());
    SUCCESS
}

unsafe extern "C" fn library_get_module(module: *mut Handle, library: Handle) -> Status {
    note(format!("module of {library:?}"));
    if library == (0x100 + FOUND_BAD) as Handle {
        return 218;
    }
    // SAFETY: as the driver's function.
    unsafe { *module = (library.addr() + 0x100) as Handle };
    SUCCESS
}

unsafe extern "C" fn library_unload(library: Handle) -> Status {
    note(format!("unload library {library:?}"));
    SUCCESS
}

unsafe extern "C" fn func_get_attribute(value: *mut c_int, name: c_int, _: Handle) -> Status {
    let answer = match name {
        0 => MAX_THREADS.get(),
        3 => 0,
        4 => 40,
        _ => return 1,
    };
    // SAFETY: as the driver's function.
    unsafe { *value = answer };
    SUCCESS
}

unsafe extern "C" fn func_set_attribute(_: Handle, name: c_int, value: c_int) -> Status {
    note(format!("attribute {name} = {value}"));
    SUCCESS
}

unsafe extern "C" fn func_load(function: Handle) -> Status {
    note(format!("load function {function:?}"));
    SUCCESS
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn launch_kernel(
    function: Handle,
    grid: c_uint,
    _: c_uint,
    _: c_uint,
    block: c_uint,
    _: c_uint,
    _: c_uint,
    shared: c_uint,
    stream: Handle,
    arguments: *mut *mut c_void,
    _: *mut *mut c_void,
) -> Status {
    // SAFETY: as the driver's function; the kernel takes a u32.
    let argument = unsafe { *(*arguments).cast::<u32>() };
    note(format!(
        "{function:?} <<<{grid}, {block}, {shared}, {stream:?}>>>({argument})"
    ));
    SUCCESS
}

unsafe extern "C" fn launch_kernel_ex(
    config: *const LaunchConfig,
    function: Handle,
    arguments: *mut *mut c_void,
    _: *mut *mut c_void,
) -> Status {
    // SAFETY: as the driver's function; the kernel takes a u32.
    unsafe {
        let LaunchConfig {
            grid,
            block,
            shared_bytes,
            stream,
            attributes,
            attribute_count,
        } = *config;
        let (id, value) = ((*attributes).id, (*attributes).value[0]);
        let argument = *(*arguments).cast::<u32>();
        note(format!(
            "{function:?} <<<{grid:?}, {block:?}, {shared_bytes}, {stream:?}>>>({argument}), \
             {attribute_count} attribute: {id} = {value}"
        ));
    }
    SUCCESS
}

unsafe extern "C" fn get_error_name(_: Status, name: *mut *const c_char) -> Status {
    // SAFETY: as the driver's function.
    unsafe { *name = c"CUDA_ERROR_OF_THE_TEST".as_ptr() };
    SUCCESS
}

unsafe extern "C" fn driver_get_version(version: *mut c_int) -> Status {
    // SAFETY: as the driver's function.
    unsafe { *version = 12_080 };
    SUCCESS
}

/// What drivers before CUDA 12 lack of loading.
const LIBRARY: &str = "cuLibraryLoadData";

/// The driver, without the functions named in `without`.
fn driver(without: &'static [&'static str]) -> Result<&'static Functions> {
    let find = |name: &'static CStr, _| match name.to_str() {
        Ok(name) if without.contains(&name) => std::ptr::null_mut(),
        Ok("cuModuleLoadDataEx") => module_load_data_ex as *mut c_void,
        Ok("cuModuleGetFunction") => module_get_function as *mut c_void,
        Ok("cuModuleUnload") => module_unload as *mut c_void,
        Ok("cuLibraryLoadData") => library_load_data as *mut c_void,
        Ok("cuLibraryGetModule") => library_get_module as *mut c_void,
        Ok("cuLibraryUnload") => library_unload as *mut c_void,
        Ok("cuFuncGetAttribute") => func_get_attribute as *mut c_void,
        Ok("cuFuncSetAttribute") => func_set_attribute as *mut c_void,
        Ok("cuFuncLoad") => func_load as *mut c_void,
        Ok("cuLaunchKernel") => launch_kernel as *mut c_void,
        Ok("cuLaunchKernelEx") => launch_kernel_ex as *mut c_void,
        Ok("cuGetErrorName") => get_error_name as *mut c_void,
        Ok("cuDriverGetVersion") => driver_get_version as *mut c_void,
        _ => std::ptr::null_mut(),
    };
    // SAFETY: the functions have the driver's signatures.
    let functions = unsafe { Functions::new(find)? };
    Ok(Box::leak(Box::new(functions)))
}

fn load(kernels: &Kernels, which: &[&'static Kernel]) -> Result<()> {
    // SAFETY: this driver has no contexts.
    unsafe { kernels.load(which, &DeviceProperties::H200, "a GPU") }
}

fn configuration(dependent: bool) -> Configuration {
    Configuration {
        grid: 3,
        block: 128,
        shared_bytes: 64,
        stream: 0x30 as Handle,
        dependent,
    }
}

#[test]
fn kernels_are_loaded_once_each_from_a_module_of_its_own() -> Result<()> {
    let mut kernels = Kernels::new(driver(&[LIBRARY])?);
    let (first, second) = (&KERNELS[0], &KERNELS[1]);
    assert!(matches!(
        kernels.function(first),
        Err(Error::NotPrepared { .. })
    ));
    load(&kernels, &[first])?;
    let shared = DeviceProperties::H200.shared_bytes_per_block;
    let expected = [
        "load 1".to_owned(),
        format!("get {} of 0x10", first.name),
        "load function 0x20".to_owned(),
        format!("attribute 8 = {shared}"),
    ];
    assert_eq!(calls(), expected);
    load(&kernels, &[first, second])?;
    assert_eq!(calls()[1], format!("get {} of 0x10", second.name));
    load(&kernels, &[first, second])?;
    assert!(calls().is_empty());
    assert_eq!(kernels.function(first), Ok(0x20 as Handle));
    assert_eq!(kernels.attributes(first)?.registers, 40);
    // SAFETY: as `load`.
    unsafe { kernels.unload() };
    assert_eq!(calls(), ["unload 0x10", "unload 0x10"]);
    Ok(())
}

#[test]
fn kernels_are_compiled_at_once() -> Result<()> {
    let mut kernels = Kernels::new(driver(&[])?);
    let (first, second) = (&KERNELS[0], &KERNELS[1]);
    load(&kernels, &[first, second, first])?;
    // Each on a thread of its own; what needs the context on this one, in order.
    let libraries = LIBRARIES.lock().expect("no panic").clone();
    let (a, b) = (libraries[&0], libraries[&1]);
    assert!(a != b && a != thread::current().id() && b != thread::current().id());
    let noted = calls();
    let of = |start: &'static str| noted.iter().filter(move |call| call.starts_with(start));
    let modules: Vec<_> = of("module").collect();
    assert_eq!(modules, ["module of 0x100", "module of 0x101"]);
    let functions: Vec<_> = of("get").cloned().collect();
    let expected = [(first, "0x200"), (second, "0x201")];
    let expected = expected.map(|(kernel, module)| format!("get {} of {module}", kernel.name));
    assert_eq!(functions, expected);
    load(&kernels, &[first, second])?;
    assert!(calls().is_empty());
    // SAFETY: as `load`.
    unsafe { kernels.unload() };
    assert_eq!(calls(), ["unload library 0x100", "unload library 0x101"]);
    Ok(())
}

#[test]
fn a_library_that_is_refused_is_a_module_s_error() -> Result<()> {
    for bad in [REFUSED, FOUND_BAD] {
        let mut kernels = Kernels::new(driver(&[])?);
        let (first, second, bad) = (&KERNELS[0], &KERNELS[1], &KERNELS[bad]);
        LOADED.set(218);
        let refused = load(&kernels, &[first, bad, second]);
        LOADED.set(SUCCESS);
        let Err(Error::Cuda { call, detail, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(call, "cuModuleLoadDataEx");
        assert!(detail.contains(bad.name), "{detail}");
        assert!(detail.ends_with("JIT log: no op"), "{detail}");
        // The others are loaded; nothing of this one is.
        assert!(kernels.function(bad).is_err());
        calls();
        load(&kernels, &[first, second])?;
        assert!(calls().is_empty());
        // Where a module does, it serves.
        load(&kernels, &[bad])?;
        assert_eq!(kernels.function(bad), Ok(0x20 as Handle));
        calls();
        // SAFETY: as `load`.
        unsafe { kernels.unload() };
        let unloaded = [
            "unload library 0x100",
            "unload library 0x101",
            "unload 0x10",
        ];
        assert_eq!(calls(), unloaded);
    }
    Ok(())
}

#[test]
fn kernels_that_cannot_run_are_refused_and_unloaded() -> Result<()> {
    let kernels = Kernels::new(driver(&[LIBRARY])?);
    let kernel = &KERNELS[0];
    MAX_THREADS.set(1);
    let refused = load(&kernels, &[kernel]);
    MAX_THREADS.set(1024);
    assert!(matches!(refused, Err(Error::BlockThreads { found: 1, .. })));
    assert_eq!(calls().last().map(String::as_str), Some("unload 0x10"));
    assert!(kernels.function(kernel).is_err());
    Ok(())
}

#[test]
fn the_compiler_s_log_is_in_the_error() -> Result<()> {
    let kernels = Kernels::new(driver(&[LIBRARY])?);
    LOADED.set(218);
    let refused = load(&kernels, &[&KERNELS[0]]);
    LOADED.set(SUCCESS);
    let Err(Error::Cuda {
        call,
        code,
        name,
        detail,
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((call, code), ("cuModuleLoadDataEx", 218));
    assert_eq!(name, "CUDA_ERROR_OF_THE_TEST");
    assert!(detail.contains("on a GPU"), "{detail}");
    assert!(detail.contains("driver for CUDA 12.8"), "{detail}");
    assert!(detail.ends_with("JIT log: no op"), "{detail}");
    assert!(
        ptx::MODULES
            .iter()
            .any(|module| detail.contains(&format!("sm_{}", module.sm)))
    );
    Ok(())
}

#[test]
fn launches_say_what_they_depend_on() -> Result<()> {
    let argument = 7u32;
    let launch = |functions: &Functions, dependent| {
        let parameters = (&raw const argument).cast();
        // SAFETY: this driver runs nothing.
        unsafe { functions.launch(0x20 as Handle, &configuration(dependent), parameters) }
    };
    let new = driver(&[])?;
    launch(new, false)?;
    launch(new, true)?;
    // Drivers without the newer function start one kernel after the other.
    let old = driver(&["cuLaunchKernelEx", "cuFuncLoad"])?;
    launch(old, true)?;
    let plain = "0x20 <<<3, 128, 64, 0x30>>>(7)";
    let extended = "0x20 <<<[3, 1, 1], [128, 1, 1], 64, 0x30>>>(7), 1 attribute: 6 = 1".to_owned();
    assert_eq!(calls(), [plain.to_owned(), extended, plain.to_owned()]);
    Ok(())
}

#[test]
fn a_driver_that_lacks_a_function_is_refused() {
    let Err(Error::Cuda { call, code, .. }) = driver(&["cuFuncSetAttribute"]) else {
        panic!("accepted");
    };
    assert_eq!((call, code), ("cuFuncSetAttribute", 500));
}
