//! Calls as launches of graphs that stay: for the host, to give a graph's nodes their grids and
//! parameters and to launch it is less work than to launch the kernels.

use super::{Configuration, Handle, Kernels, Queue, Status, starts_dependents, typed};
use crate::backend::launcher::Bound;
use crate::error::Result;
use crate::plan::DeviceProperties;
use cake_rmsnorm_kernels::contract::{Kernel, Program};
use rustc_hash::FxHashMap;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// Kernels of the longest chain. The calls that have more are few: backwards without rstd.
const LONGEST: usize = 2;

/// `CUDA_KERNEL_NODE_PARAMS` of CUDA 12.
#[repr(C)]
pub(super) struct KernelNodeParams {
    function: Handle,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: Handle,
    context: Handle,
}

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL: c_uint = 1;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NOT_CAPTURING: c_uint = 0;

type StreamCreate = unsafe extern "C" fn(*mut Handle, c_uint) -> Status;
type StreamDestroy = unsafe extern "C" fn(Handle) -> Status;
type StreamBeginCapture = unsafe extern "C" fn(Handle, c_uint) -> Status;
type StreamEndCapture = unsafe extern "C" fn(Handle, *mut Handle) -> Status;
type StreamIsCapturing = unsafe extern "C" fn(Handle, *mut c_uint) -> Status;
type GraphGetNodes = unsafe extern "C" fn(Handle, *mut Handle, *mut usize) -> Status;
type GraphKernelNodeGetParams = unsafe extern "C" fn(Handle, *mut KernelNodeParams) -> Status;
type GraphInstantiate = unsafe extern "C" fn(*mut Handle, Handle, u64) -> Status;
type GraphExecKernelNodeSetParams =
    unsafe extern "C" fn(Handle, Handle, *const KernelNodeParams) -> Status;
type GraphLaunch = unsafe extern "C" fn(Handle, Handle) -> Status;
type GraphDestroy = unsafe extern "C" fn(Handle) -> Status;

/// The driver's functions for graphs, of CUDA 12.0 and newer.
#[derive(Debug)]
pub(super) struct GraphFunctions {
    stream_create: StreamCreate,
    stream_destroy: StreamDestroy,
    begin_capture: StreamBeginCapture,
    end_capture: StreamEndCapture,
    is_capturing: StreamIsCapturing,
    get_nodes: GraphGetNodes,
    get_params: GraphKernelNodeGetParams,
    instantiate: GraphInstantiate,
    set_params: GraphExecKernelNodeSetParams,
    launch: GraphLaunch,
    destroy: GraphDestroy,
    destroy_executable: GraphDestroy,
}

impl GraphFunctions {
    /// As [`super::Functions::new`]; `None` where one is missing.
    ///
    /// # Safety
    /// - What `find` answers is the driver's function of that name, or null.
    pub unsafe fn new(find: impl Fn(&'static CStr, c_int) -> *mut c_void) -> Option<Self> {
        let find = |name| Some(find(name, 12_000)).filter(|found| !found.is_null());
        Some(Self {
            stream_create: typed!(find(c"cuStreamCreate")?, StreamCreate),
            stream_destroy: typed!(find(c"cuStreamDestroy")?, StreamDestroy),
            begin_capture: typed!(find(c"cuStreamBeginCapture")?, StreamBeginCapture),
            end_capture: typed!(find(c"cuStreamEndCapture")?, StreamEndCapture),
            is_capturing: typed!(find(c"cuStreamIsCapturing")?, StreamIsCapturing),
            get_nodes: typed!(find(c"cuGraphGetNodes")?, GraphGetNodes),
            get_params: typed!(
                find(c"cuGraphKernelNodeGetParams")?,
                GraphKernelNodeGetParams
            ),
            instantiate: typed!(find(c"cuGraphInstantiateWithFlags")?, GraphInstantiate),
            set_params: typed!(
                find(c"cuGraphExecKernelNodeSetParams")?,
                GraphExecKernelNodeSetParams
            ),
            launch: typed!(find(c"cuGraphLaunch")?, GraphLaunch),
            destroy: typed!(find(c"cuGraphDestroy")?, GraphDestroy),
            destroy_executable: typed!(find(c"cuGraphExecDestroy")?, GraphDestroy),
        })
    }
}

/// A graph of kernels, one after the other.
#[derive(Debug)]
struct Chain {
    /// While it is there, the executable graph's nodes can be given parameters.
    graph: Handle,
    executable: Handle,
    /// In the order in which they run.
    nodes: Vec<Handle>,
}

/// Two kernels of a call, or one and null: what tells chains apart.
type Key = [*const Kernel; LONGEST];

/// The chains of a stream, by their kernels: to give a node another kernel would cost as much as
/// launching that kernel does. A chain's launches follow one another, so streams do not share them.
#[derive(Debug, Default)]
pub(in crate::backend) struct Chains(Mutex<FxHashMap<Key, Chain>>);

// SAFETY: the handles may be used from any thread that makes their context current, one at a time;
// the kernels are static.
unsafe impl Send for Chains {}
// SAFETY: as above; the mutex lets one at a time.
unsafe impl Sync for Chains {}

impl Chains {
    /// Makes the chains of loaded kernels that are not there yet; none if the driver cannot.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    ///
    /// # Safety
    /// - The context that the kernels are loaded in is current.
    pub unsafe fn make(
        &self,
        loaded: &Kernels,
        kernels: &[&'static Kernel],
        properties: &DeviceProperties,
    ) -> Result<()> {
        let Some(graphs) = &loaded.functions.graphs else {
            return Ok(());
        };
        let mut chains = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing = Vec::new();
        for kernel in kernels {
            let alone = std::iter::once(vec![*kernel]);
            let reduces = kernels.iter().filter(|reduce| may_follow(reduce, kernel));
            missing.extend(alone.chain(reduces.map(|reduce| vec![*kernel, *reduce])));
        }
        missing.retain(|links| !chains.contains_key(&key(links.iter().copied())));
        if missing.is_empty() {
            return Ok(());
        }
        let maker = Maker::new(graphs, loaded, starts_dependents(properties))?;
        for links in missing {
            // SAFETY: the caller's obligation.
            let chain = unsafe { maker.chain(&links)? };
            chains.insert(key(links.into_iter()), chain);
        }
        Ok(())
    }

    /// Launches a call's kernels as one graph, if that can be: not in a capture, nor while another
    /// thread is at it, nor more kernels than chains have. `None`: nothing was enqueued.
    ///
    /// # Safety
    /// - As [`Queue::launch`]; the kernels are loaded.
    pub unsafe fn launch(&self, queue: &Queue, launches: &[Bound]) -> Option<Result<()>> {
        let driver = queue.kernels.functions;
        let graphs = driver.graphs.as_ref()?;
        if launches.len() > LONGEST {
            return None;
        }
        let chains = self.0.try_lock().ok()?;
        let chain = chains.get(&key(launches.iter().map(|bound| bound.launch.kernel)))?;
        if !graphs.is_not_capturing(queue.stream) {
            return None;
        }
        for (i, (bound, node)) in launches.iter().zip(&chain.nodes).enumerate() {
            let configuration = queue.configuration(bound);
            // The chain would not have its kernel wait for the one before it.
            if i > 0 && starts_dependents(queue.properties) && !configuration.dependent {
                return None;
            }
            let mut arguments = [bound.params.cast_mut().cast::<c_void>()];
            let params = KernelNodeParams {
                function: queue.kernels.function(bound.launch.kernel).ok()?,
                grid: [configuration.grid, 1, 1],
                block: [configuration.block, 1, 1],
                shared_bytes: configuration.shared_bytes,
                parameters: arguments.as_mut_ptr(),
                extra: ptr::null_mut(),
                kernel: ptr::null_mut(),
                context: ptr::null_mut(),
            };
            // SAFETY: a node of that graph, with this kernel; the driver copies the parameters, and
            // launches that still run keep theirs.
            let set = unsafe { (graphs.set_params)(chain.executable, *node, &raw const params) };
            if let Err(error) = driver.check("cuGraphExecKernelNodeSetParams", set) {
                return Some(Err(error));
            }
        }
        // SAFETY: every node has its parameters; the caller's obligations.
        let launched = unsafe { (graphs.launch)(chain.executable, queue.stream) };
        Some(driver.check("cuGraphLaunch", launched))
    }

    /// `body` while another launch is under way.
    #[cfg(test)]
    pub(super) fn while_in_use<T>(&self, body: impl FnOnce() -> T) -> T {
        let _in_use = self.0.lock();
        body()
    }

    /// Destroys the chains.
    ///
    /// # Safety
    /// - Their context is current.
    pub unsafe fn destroy(&mut self, loaded: &Kernels) {
        let Some(graphs) = &loaded.functions.graphs else {
            return;
        };
        let chains = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, chain) in chains.drain() {
            // SAFETY: nobody launches it any more; the driver keeps what still runs. An error
            // leaves nothing to do.
            unsafe {
                let _ = (graphs.destroy_executable)(chain.executable);
                let _ = (graphs.destroy)(chain.graph);
            }
        }
    }
}

/// A device of a backend: its kernels, and their context.
pub(in crate::backend) trait Context {
    /// The kernels that are loaded.
    fn kernels(&self) -> &Kernels;

    /// Runs `body` with the kernels' context current.
    fn run<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T>;
}

/// The chains of a stream of `device`, which go when nobody has them any more.
#[derive(Debug)]
pub(in crate::backend) struct Graphs<D: Context> {
    device: D,
    chains: Chains,
}

impl<D: Context> Graphs<D> {
    pub fn new(device: D) -> Self {
        Self {
            device,
            chains: Chains::default(),
        }
    }

    pub fn chains(&self) -> &Chains {
        &self.chains
    }

    /// As [`Chains::make`].
    pub fn make(&self, kernels: &[&'static Kernel], properties: &DeviceProperties) -> Result<()> {
        let loaded = self.device.kernels();
        // SAFETY: the kernels' context is current.
        let make = || unsafe { self.chains.make(loaded, kernels, properties) };
        self.device.run(make)
    }
}

impl<D: Context> Drop for Graphs<D> {
    fn drop(&mut self) {
        let Self { device, chains } = self;
        // A context that cannot be made current leaves nothing to do.
        let _ = device.run(|| {
            // SAFETY: made in this context, which is current.
            unsafe { chains.destroy(device.kernels()) };
            Ok(())
        });
    }
}

/// Whether calls have the one kernel after the other.
fn may_follow(reduce: &Kernel, kernel: &Kernel) -> bool {
    let leaves_nodes = matches!(
        kernel.program,
        Program::BackwardWarp { .. }
            | Program::BackwardBlock { .. }
            | Program::BackwardWide
            | Program::GeneralBackward
            | Program::GatedBackwardWarp { .. }
            | Program::GatedBackwardPairs { .. }
            | Program::GatedBackwardBlock { .. }
    );
    reduce.program == Program::Reduce && leaves_nodes
}

fn key(kernels: impl Iterator<Item = &'static Kernel>) -> Key {
    let mut key = [ptr::null(); LONGEST];
    for (place, kernel) in key.iter_mut().zip(kernels) {
        *place = kernel;
    }
    key
}

impl GraphFunctions {
    fn is_not_capturing(&self, stream: Handle) -> bool {
        let mut status = NOT_CAPTURING;
        // SAFETY: the stream is live; the out pointer is too. Where the driver refuses to say
        // (another stream's capture), a launch says why.
        let asked = unsafe { (self.is_capturing)(stream, &raw mut status) };
        asked == super::SUCCESS && status == NOT_CAPTURING
    }
}

/// What chains are made with.
struct Maker<'a> {
    graphs: &'a GraphFunctions,
    loaded: &'a Kernels,
    /// Whether a kernel starts while the one before it drains.
    dependents: bool,
    /// Nobody else's; nothing ever runs on it.
    stream: Handle,
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        // SAFETY: created by this object. An error leaves nothing to do.
        let _ = unsafe { (self.graphs.stream_destroy)(self.stream) };
    }
}

impl<'a> Maker<'a> {
    fn new(graphs: &'a GraphFunctions, loaded: &'a Kernels, dependents: bool) -> Result<Self> {
        let mut stream = ptr::null_mut();
        // SAFETY: the out pointer is live.
        let created = unsafe { (graphs.stream_create)(&raw mut stream, NON_BLOCKING) };
        loaded.functions.check("cuStreamCreate", created)?;
        Ok(Self {
            graphs,
            loaded,
            dependents,
            stream,
        })
    }

    /// A chain of these kernels, as a stream would run them.
    ///
    /// # Safety
    /// - The context that the kernels are loaded in is current.
    unsafe fn chain(&self, kernels: &[&'static Kernel]) -> Result<Chain> {
        // SAFETY: the caller's obligation.
        let graph = unsafe { self.capture(kernels)? };
        // SAFETY: captured above, with as many nodes.
        let chain = unsafe { self.instantiate(graph, kernels.len()) };
        if chain.is_err() {
            // SAFETY: captured above; nothing uses it. A second error adds nothing.
            let _ = unsafe { (self.graphs.destroy)(graph) };
        }
        chain
    }

    /// # Safety
    /// - As [`Maker::chain`].
    unsafe fn capture(&self, kernels: &[&'static Kernel]) -> Result<Handle> {
        let Self { graphs, stream, .. } = *self;
        let driver = self.loaded.functions;
        // SAFETY: the stream is live.
        let begun = unsafe { (graphs.begin_capture)(stream, THREAD_LOCAL) };
        driver.check("cuStreamBeginCapture", begun)?;
        let mut launched = Ok(());
        for (i, kernel) in kernels.iter().enumerate() {
            let configuration = Configuration {
                // What tells the nodes apart afterwards.
                grid: 1 + i as u32,
                block: 32,
                shared_bytes: 0,
                stream,
                dependent: self.dependents && i > 0,
            };
            let nothing = vec![0u64; kernel.param_bytes.div_ceil(8)];
            launched = launched.and_then(|()| {
                let function = self.loaded.function(kernel)?;
                // SAFETY: the parameters have the kernel's size. It never runs with them: a chain
                // is launched after each of its nodes was given others.
                unsafe { driver.launch(function, &configuration, nothing.as_ptr().cast()) }
            });
        }
        let mut graph = ptr::null_mut();
        // SAFETY: ends what was begun above; the out pointer is live.
        let ended = unsafe { (graphs.end_capture)(stream, &raw mut graph) };
        let captured = launched.and(driver.check("cuStreamEndCapture", ended));
        if captured.is_err() && !graph.is_null() {
            // SAFETY: of the capture above; nothing uses it. A second error adds nothing.
            let _ = unsafe { (graphs.destroy)(graph) };
        }
        captured.map(|()| graph)
    }

    /// # Safety
    /// - A graph of [`Maker::capture`], with `len` nodes.
    unsafe fn instantiate(&self, graph: Handle, len: usize) -> Result<Chain> {
        let (driver, graphs) = (self.loaded.functions, self.graphs);
        let mut nodes = vec![ptr::null_mut(); len];
        let mut found = len;
        // SAFETY: the out pointers are live, with room for `found` nodes.
        let got = unsafe { (graphs.get_nodes)(graph, nodes.as_mut_ptr(), &raw mut found) };
        driver.check("cuGraphGetNodes", got)?;
        let mut placed = Vec::with_capacity(len);
        for node in nodes {
            let mut params = MaybeUninit::uninit();
            // SAFETY: a kernel node of the graph; the out pointer is live.
            let got = unsafe { (graphs.get_params)(node, params.as_mut_ptr()) };
            driver.check("cuGraphKernelNodeGetParams", got)?;
            // SAFETY: the driver filled it.
            let params: KernelNodeParams = unsafe { params.assume_init() };
            placed.push((params.grid[0], node));
        }
        placed.sort_unstable_by_key(|&(grid, _)| grid);
        let mut executable = ptr::null_mut();
        // SAFETY: the graph is live; the out pointer is too.
        let instantiated = unsafe { (graphs.instantiate)(&raw mut executable, graph, 0) };
        driver.check("cuGraphInstantiateWithFlags", instantiated)?;
        Ok(Chain {
            graph,
            executable,
            nodes: placed.into_iter().map(|(_, node)| node).collect(),
        })
    }
}
