//! NVIDIA GPUs, through `cudarc`: on the contexts, streams and slices of a program that uses it.
//!
//! [`Cudarc`] is a stream. As a [`Backend`](super::Backend) it takes addresses; its own functions
//! ([`Cudarc::forward_slices`] and the like) take `cudarc`'s slices and views, and are safe.

mod device;
mod gated;
mod rows;
mod tensor;

pub use super::driver::KernelAttributes;
pub use device::Device;
pub use gated::{GatedBackward, GatedForward};
pub use rows::{Backward, Forward};
pub use tensor::{Tensor, Weight};

use super::driver::{self, Context, Graphs, Queue};
use super::launcher::{Bound, Launcher};
use crate::error::Result;
use crate::plan::{DeviceProperties, Routes};
use ::cudarc::driver::{CudaStream, DriverError, sys};
use cake_rmsnorm_kernels::contract::Kernel;
use std::sync::Arc;

/// A stream of a GPU: the backend that launches operators there.
///
/// ```no_run
/// use cake_rmsnorm::backend::Backend;
/// use cake_rmsnorm::backend::cudarc::{Cudarc, Forward, Tensor, Weight};
/// use cake_rmsnorm::plan::Views;
/// use cake_rmsnorm::{Dtype, RmsNorm};
/// use cudarc::driver::CudaContext;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(0)?.default_stream();
/// let gpu = Cudarc::new(&stream)?;
/// let op = RmsNorm::builder(4096).input(Dtype::F32).weight(Dtype::F32).build()?;
/// gpu.prepare(&op, false, Views::Ordinary)?; // loads the kernels: no call does
///
/// let x = stream.clone_htod(&vec![1.0f32; 2 * 4096])?;
/// let w = stream.clone_htod(&vec![0.5f32; 4096])?;
/// let mut y = stream.alloc_zeros::<f32>(2 * 4096)?;
/// gpu.forward_slices(&op, Forward {
///     x: Tensor::rows(x.as_view(), 2, 4096),
///     residual: None,
///     w: Weight::F32(w.as_view()),
///     h: None,
///     y: Tensor::rows(y.as_view_mut(), 2, 4096),
///     rstd: None,
/// })?;
/// assert_eq!(stream.clone_dtoh(&y)?[0], 0.49999976); // eps
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cudarc {
    device: Device,
    stream: Arc<CudaStream>,
    properties: DeviceProperties,
    routes: Option<Arc<Routes>>,
    graphs: Option<Arc<Graphs<Device>>>,
}

impl Cudarc {
    /// Launches on `stream`.
    ///
    /// # Errors
    /// - As [`Device::of`].
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let device = Device::of(stream.context())?;
        Ok(Self {
            properties: *device.properties(),
            device,
            stream: stream.clone(),
            routes: None,
            graphs: None,
        })
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
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl Launcher for Cudarc {
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
            stream: self.stream.cu_stream().cast(),
            chains: self.graphs.as_deref().map(Graphs::chains),
        };
        // SAFETY: the caller's obligations; the device's context is current.
        self.device.run(|| unsafe { queue.launch(launches) })
    }
}

/// What a call of `cudarc` gave, with this library's error.
fn check<T>(call: &'static str, result: std::result::Result<T, DriverError>) -> Result<T> {
    result.map_err(|DriverError(error)| {
        // SAFETY: the driver writes a pointer to a static string, or null.
        let error_name = |name| unsafe { sys::cuGetErrorName(error, name) as u32 };
        driver::failure(call, error as u32, error_name, String::new())
    })
}
