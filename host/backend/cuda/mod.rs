//! NVIDIA GPUs, through `cust` and the driver API.
//!
//! [`Cuda`] launches on any raw stream, so it fits beside whatever else uses the GPU;
//! [`DeviceBuffer`] is there for programs that have no allocator of their own, [`Graph`] captures
//! calls, and [`Event`] times them.

mod buffer;
mod device;
mod driver;
mod graph;
mod stream;

pub use super::driver::KernelAttributes;
pub use buffer::DeviceBuffer;
pub use device::Device;
pub use graph::{Event, Graph};

use super::driver::{Context, Graphs, Queue};
use super::launcher::{Bound, Launcher};
use crate::error::Result;
use crate::plan::{DeviceProperties, Routes};
use cake_rmsnorm_kernels::contract::Kernel;
use cust::sys;
use driver::check;
use std::sync::Arc;
use stream::OwnedStream;

/// A stream of a GPU: the backend that launches operators there.
#[derive(Clone, Debug)]
pub struct Cuda {
    device: Device,
    stream: sys::CUstream,
    /// Keeps `stream` where it was made here.
    _owned: Option<Arc<OwnedStream>>,
    properties: DeviceProperties,
    routes: Option<Arc<Routes>>,
    graphs: Option<Arc<Graphs<Device>>>,
}

// SAFETY: streams may be used from any thread; every call makes the context current.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Launches on the default stream of `device`.
    #[must_use]
    pub fn new(device: Device) -> Self {
        let properties = *device.properties();
        Self {
            device,
            stream: std::ptr::null_mut(),
            _owned: None,
            properties,
            routes: None,
            graphs: None,
        }
    }

    /// Launches on a new stream of `device`, which does not wait for the default stream, and
    /// which this object and its clones own.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    pub fn on_new_stream(device: Device) -> Result<Self> {
        let owned = OwnedStream::new(&device)?;
        Ok(Self {
            stream: owned.raw(),
            _owned: Some(Arc::new(owned)),
            ..Self::new(device)
        })
    }

    /// Launches on `stream`, a `CUstream` (or `cudaStream_t`) of `device`.
    ///
    /// # Safety
    /// - `stream` belongs to the device's primary context and outlives this object.
    #[must_use]
    pub unsafe fn with_stream(device: Device, stream: sys::CUstream) -> Self {
        Self {
            stream,
            ..Self::new(device)
        }
    }

    /// Plans as for a device with `sm_count` multiprocessors. Changes no bit of any output.
    #[must_use]
    pub fn with_sm_count(self, sm_count: u32) -> Self {
        Self {
            properties: self.properties.with_sm_count(sm_count),
            ..self
        }
    }

    /// Plans by these routes. Changes no bit of any output, but perhaps the workspace's size.
    #[must_use]
    pub fn with_routes(self, routes: Arc<Routes>) -> Self {
        Self {
            routes: Some(routes),
            ..self
        }
    }

    /// Launches calls by way of CUDA graphs, which this object and its clones keep: less work for
    /// the host, above all for a call of two kernels, and the kernel of a call on an idle stream
    /// starts earlier. On a stream that is busy, a kernel no longer starts while the last one of
    /// the call before it drains. `docs/architecture.md` has figures.
    ///
    /// From the first [`Backend::prepare`](super::Backend::prepare) of this object or a clone on;
    /// in a capture, or while another thread launches by the same graphs, calls launch their
    /// kernels themselves, as they do with drivers before CUDA 12.
    #[must_use]
    pub fn with_graph_launches(self) -> Self {
        let graphs = Graphs::new(self.device.clone());
        Self {
            graphs: Some(Arc::new(graphs)),
            ..self
        }
    }

    /// Whether calls are launched by way of graphs.
    #[must_use]
    pub fn graph_launches(&self) -> bool {
        self.graphs.is_some()
    }

    /// The GPU.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Enqueues the driver's copy of `bytes` bytes of device memory.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    ///
    /// # Safety
    /// - Both ranges are valid device memory and do not overlap; until the copy has completed
    ///   nobody writes the source or accesses the destination.
    pub unsafe fn copy(&self, destination: u64, source: u64, bytes: usize) -> Result<()> {
        self.device.with_context(|| {
            // SAFETY: the caller's obligations.
            check("cuMemcpyDtoDAsync", unsafe {
                sys::cuMemcpyDtoDAsync_v2(destination, source, bytes, self.stream)
            })
        })
    }

    /// Waits until everything enqueued on the stream has completed.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`], also for what an earlier launch did wrong.
    pub fn synchronize(&self) -> Result<()> {
        self.device.with_context(|| {
            // SAFETY: the stream is live.
            check("cuStreamSynchronize", unsafe {
                sys::cuStreamSynchronize(self.stream)
            })
        })
    }
}

impl Launcher for Cuda {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn routes(&self) -> &Routes {
        self.routes.as_deref().unwrap_or(Routes::built_in())
    }

    fn load(&self, kernels: &[&'static Kernel]) -> Result<()> {
        self.device.load(kernels)?;
        match &self.graphs {
            Some(graphs) => graphs.make(kernels, &self.properties),
            None => Ok(()),
        }
    }

    unsafe fn launch(&self, launches: &[Bound]) -> Result<()> {
        let queue = Queue {
            kernels: self.device.kernels(),
            properties: &self.properties,
            stream: self.stream.cast(),
            chains: self.graphs.as_deref().map(Graphs::chains),
        };
        // SAFETY: the caller's obligations; the device's context is current.
        self.device.run(|| unsafe { queue.launch(launches) })
    }
}
