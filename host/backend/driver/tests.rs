//! Loading and launching, on a driver that only notes what it is asked for.

use super::chains::KernelNodeParams;
use super::*;
use crate::plan::{DeviceProperties, Launch};
use crate::ptx;
use cake_rmsnorm_kernels::KERNELS;
use cake_rmsnorm_kernels::contract::{Kernel, Program};
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
    /// Grids of what was captured so far, on a stream that captures.
    static CAPTURED: RefCell<Option<Vec<c_uint>>> = const { RefCell::new(None) };
    /// What this call of the graphs' functions answers, if not success.
    static GRAPHS_REFUSE: Cell<Option<&'static str>> = const { Cell::new(None) };
    /// Whether somebody captures the stream of the calls.
    static CAPTURING: Cell<bool> = const { Cell::new(false) };
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
    if capture(stream, grid) {
        return answer("cuLaunchKernel");
    }
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
        if capture(stream, grid[0]) {
            note(format!(
                "capture: {attribute_count} attribute: {id} = {value}"
            ));
            return SUCCESS;
        }
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

/// The stream that chains are captured on.
const PRIVATE: usize = 0x40;

/// Whether a launch on this stream is one that is captured.
fn capture(stream: Handle, grid: c_uint) -> bool {
    CAPTURED.with_borrow_mut(|captured| {
        let captured = captured.as_mut().filter(|_| stream.addr() == PRIVATE);
        captured.is_some_and(|grids| {
            grids.push(grid);
            true
        })
    })
}

/// What `call` answers.
fn answer(call: &str) -> Status {
    match GRAPHS_REFUSE.get() {
        Some(refused) if refused == call => 999,
        _ => SUCCESS,
    }
}

unsafe extern "C" fn stream_create(stream: *mut Handle, flags: c_uint) -> Status {
    assert_eq!(flags, 1);
    // SAFETY: as the driver's function.
    unsafe { *stream = PRIVATE as Handle };
    answer("cuStreamCreate")
}

unsafe extern "C" fn stream_destroy(stream: Handle) -> Status {
    note(format!("destroy stream {stream:?}"));
    SUCCESS
}

unsafe extern "C" fn begin_capture(stream: Handle, mode: c_uint) -> Status {
    assert_eq!((stream.addr(), mode), (PRIVATE, 1));
    CAPTURED.set(Some(Vec::new()));
    SUCCESS
}

/// Of a graph of `n` kernels, 0x50 + n.
unsafe extern "C" fn end_capture(_: Handle, graph: *mut Handle) -> Status {
    let captured = CAPTURED.take().expect("a capture");
    assert!(captured.iter().copied().eq(1..=captured.len() as c_uint));
    let answer = answer("cuStreamEndCapture");
    if answer == SUCCESS {
        // SAFETY: as the driver's function.
        unsafe { *graph = (0x50 + captured.len()) as Handle };
    }
    answer
}

unsafe extern "C" fn is_capturing(_: Handle, status: *mut c_uint) -> Status {
    // SAFETY: as the driver's function.
    unsafe { *status = CAPTURING.get().into() };
    SUCCESS
}

/// The last one first: drivers promise no order.
unsafe extern "C" fn get_nodes(graph: Handle, nodes: *mut Handle, count: *mut usize) -> Status {
    // SAFETY: as the driver's function.
    unsafe {
        assert_eq!(*count, graph.addr() - 0x50);
        for i in 0..*count {
            *nodes.add(i) = (0x60 + *count - i) as Handle;
        }
    }
    answer("cuGraphGetNodes")
}

unsafe extern "C" fn get_params(node: Handle, params: *mut KernelNodeParams) -> Status {
    // SAFETY: as the driver's function.
    unsafe { (*params).grid = [(node.addr() - 0x60) as c_uint, 1, 1] };
    answer("cuGraphKernelNodeGetParams")
}

unsafe extern "C" fn instantiate(executable: *mut Handle, graph: Handle, flags: u64) -> Status {
    assert_eq!(flags, 0);
    // SAFETY: as the driver's function.
    unsafe { *executable = (graph.addr() + 0x20) as Handle };
    answer("cuGraphInstantiateWithFlags")
}

unsafe extern "C" fn set_params(
    executable: Handle,
    node: Handle,
    params: *const KernelNodeParams,
) -> Status {
    // SAFETY: as the driver's function; the kernel takes a u32.
    unsafe {
        let KernelNodeParams {
            grid,
            block,
            shared_bytes,
            parameters,
            ..
        } = *params;
        let argument = *(*parameters).cast::<u32>();
        note(format!(
            "{executable:?}, {node:?} <<<{grid:?}, {block:?}, {shared_bytes}>>>({argument})"
        ));
    }
    answer("cuGraphExecKernelNodeSetParams")
}

unsafe extern "C" fn graph_launch(executable: Handle, stream: Handle) -> Status {
    note(format!("launch {executable:?} on {stream:?}"));
    answer("cuGraphLaunch")
}

unsafe extern "C" fn graph_destroy(graph: Handle) -> Status {
    note(format!("destroy graph {graph:?}"));
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
        Ok("cuStreamCreate") => stream_create as *mut c_void,
        Ok("cuStreamDestroy") => stream_destroy as *mut c_void,
        Ok("cuStreamBeginCapture") => begin_capture as *mut c_void,
        Ok("cuStreamEndCapture") => end_capture as *mut c_void,
        Ok("cuStreamIsCapturing") => is_capturing as *mut c_void,
        Ok("cuGraphGetNodes") => get_nodes as *mut c_void,
        Ok("cuGraphKernelNodeGetParams") => get_params as *mut c_void,
        Ok("cuGraphInstantiateWithFlags") => instantiate as *mut c_void,
        Ok("cuGraphExecKernelNodeSetParams") => set_params as *mut c_void,
        Ok("cuGraphLaunch") => graph_launch as *mut c_void,
        Ok("cuGraphDestroy" | "cuGraphExecDestroy") => graph_destroy as *mut c_void,
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

/// A backward, and the reduce that may follow it.
fn pair() -> [&'static Kernel; 2] {
    let named = |program: fn(&Program) -> bool| {
        let found = KERNELS.iter().find(|kernel| program(&kernel.program));
        found.expect("a kernel")
    };
    [
        named(|program| matches!(program, Program::BackwardBlock { .. })),
        named(|program| *program == Program::Reduce),
    ]
}

/// Loaded kernels, and the chains of some of them.
fn chained(
    driver: &'static Functions,
    loaded: &[&'static Kernel],
    kernels: &[&'static Kernel],
) -> Result<(Kernels, Chains)> {
    let (table, chains) = (Kernels::new(driver), Chains::default());
    load(&table, loaded)?;
    calls();
    // SAFETY: this driver has no contexts.
    unsafe { chains.make(&table, kernels, &DeviceProperties::H200)? };
    Ok((table, chains))
}

fn launch(
    (kernels, chains): &(Kernels, Chains),
    launches: &[(&'static Kernel, bool)],
) -> (Result<()>, Vec<String>) {
    calls();
    let arguments: Vec<u32> = (7..).take(launches.len()).collect();
    let bound = launches.iter().zip(&arguments);
    let bound: Vec<Bound> = bound
        .map(|(&(kernel, dependent), argument)| Bound {
            launch: Launch {
                kernel,
                grid: 3,
                block: 128,
                shared_bytes: 64,
                dependent,
            },
            params: (&raw const *argument).cast(),
        })
        .collect();
    let queue = Queue {
        kernels,
        properties: &DeviceProperties::H200,
        stream: 0x30 as Handle,
        chains: Some(chains),
    };
    // SAFETY: this driver runs nothing.
    let launched = unsafe { queue.launch(&bound) };
    (launched, calls())
}

const DIRECT: [&str; 2] = [
    "0x20 <<<[3, 1, 1], [128, 1, 1], 64, 0x30>>>(7), 1 attribute: 6 = 1",
    "0x20 <<<[3, 1, 1], [128, 1, 1], 64, 0x30>>>(8), 1 attribute: 6 = 1",
];

#[test]
fn chains_are_launched_with_the_parameters_of_a_call() -> Result<()> {
    let driver = driver(&[])?;
    let [main, reduce] = pair();
    let mut made = chained(driver, &[main, reduce], &[main, reduce])?;
    // Of the main kernel, of both, and of the reduce; the second of two starts early.
    let expected = ["capture: 1 attribute: 6 = 1", "destroy stream 0x40"];
    assert_eq!(calls(), expected);
    // SAFETY: this driver has no contexts.
    unsafe {
        made.1
            .make(&made.0, &[reduce, main], &DeviceProperties::H200)?
    };
    assert!(calls().is_empty(), "they are there");

    let (launched, noted) = launch(&made, &[(main, true)]);
    let one = [
        "0x71, 0x61 <<<[3, 1, 1], [128, 1, 1], 64>>>(7)",
        "launch 0x71 on 0x30",
    ];
    assert_eq!((launched, noted), (Ok(()), one.map(str::to_owned).to_vec()));
    let (launched, noted) = launch(&made, &[(main, true), (reduce, true)]);
    let two = [
        "0x72, 0x61 <<<[3, 1, 1], [128, 1, 1], 64>>>(7)",
        "0x72, 0x62 <<<[3, 1, 1], [128, 1, 1], 64>>>(8)",
        "launch 0x72 on 0x30",
    ];
    assert_eq!((launched, noted), (Ok(()), two.map(str::to_owned).to_vec()));
    // The first has nothing to wait for in its chain.
    let (launched, noted) = launch(&made, &[(reduce, false)]);
    assert_eq!((launched, noted), (Ok(()), one.map(str::to_owned).to_vec()));

    // SAFETY: this driver has no contexts.
    unsafe { made.1.destroy(&made.0) };
    let mut destroyed = calls();
    destroyed.sort();
    let expected = ["0x51", "0x51", "0x52", "0x71", "0x71", "0x72"];
    assert_eq!(
        destroyed,
        expected.map(|graph| format!("destroy graph {graph}"))
    );
    Ok(())
}

#[test]
fn where_a_chain_cannot_be_launched_its_kernels_are() -> Result<()> {
    let [main, reduce] = pair();
    let both = [(main, true), (reduce, true)];
    let new = driver(&[])?;
    let made = chained(new, &[main, reduce], &[main, reduce])?;

    // In a capture they become part of somebody's graph.
    CAPTURING.set(true);
    let (launched, noted) = launch(&made, &both);
    CAPTURING.set(false);
    assert_eq!(
        (launched, noted),
        (Ok(()), DIRECT.map(str::to_owned).to_vec())
    );

    // A kernel that does not wait for the one before it must not start early.
    let (launched, noted) = launch(&made, &[(main, true), (reduce, false)]);
    let plain = "0x20 <<<3, 128, 64, 0x30>>>(8)";
    assert_eq!(launched, Ok(()));
    assert_eq!(noted.last().map(String::as_str), Some(plain));

    // Another thread is at it.
    let (launched, noted) = made.1.while_in_use(|| launch(&made, &both));
    assert_eq!(
        (launched, noted),
        (Ok(()), DIRECT.map(str::to_owned).to_vec())
    );

    // Nothing was made of this kernel, or of so many.
    let unmade = chained(new, &[main, reduce], &[main])?;
    let (launched, noted) = launch(&unmade, &[(reduce, true)]);
    assert_eq!((launched, noted), (Ok(()), vec![DIRECT[0].to_owned()]));
    let (launched, noted) = launch(&made, &[(main, true), (reduce, true), (reduce, true)]);
    assert_eq!((launched, noted.len()), (Ok(()), 3));

    // The driver is older.
    let old = driver(&["cuGraphLaunch"])?;
    let made = chained(old, &[main, reduce], &[main, reduce])?;
    assert!(calls().is_empty());
    let (launched, noted) = launch(&made, &both);
    assert_eq!(
        (launched, noted),
        (Ok(()), DIRECT.map(str::to_owned).to_vec())
    );

    // A kernel that is not loaded: nothing is enqueued.
    let bare = chained(new, &[main], &[])?;
    let (launched, noted) = launch(&bare, &both);
    assert!(matches!(launched, Err(Error::NotPrepared { .. })) && noted.is_empty());
    Ok(())
}

#[test]
fn what_the_driver_says_of_a_chain_is_the_error() -> Result<()> {
    let [main, reduce] = pair();
    let driver = driver(&[])?;
    let name = |result: Result<()>| match result {
        Err(Error::Cuda { call, code, .. }) => (call, code),
        other => panic!("{other:?}"),
    };
    let made = chained(driver, &[main, reduce], &[main, reduce])?;
    for call in ["cuGraphExecKernelNodeSetParams", "cuGraphLaunch"] {
        GRAPHS_REFUSE.set(Some(call));
        let (launched, noted) = launch(&made, &[(main, true)]);
        GRAPHS_REFUSE.set(None);
        assert_eq!(name(launched), (call, 999));
        assert!(noted.iter().all(|call| !DIRECT.contains(&call.as_str())));
    }
    // Nothing stays of a chain that could not be made.
    let of_the_graph = [
        "cuLaunchKernel",
        "cuGraphGetNodes",
        "cuGraphKernelNodeGetParams",
        "cuGraphInstantiateWithFlags",
    ];
    for call in ["cuStreamCreate", "cuStreamEndCapture"]
        .into_iter()
        .chain(of_the_graph)
    {
        GRAPHS_REFUSE.set(Some(call));
        let made = chained(driver, &[main], &[main]);
        GRAPHS_REFUSE.set(None);
        assert_eq!(name(made.map(drop)), (call, 999));
        let noted = calls();
        let has = |what: &str| noted.iter().any(|call| call == what);
        assert_eq!(has("destroy graph 0x51"), of_the_graph.contains(&call));
        assert_eq!(has("destroy stream 0x40"), call != "cuStreamCreate");
    }
    Ok(())
}
