//! CUDA graphs of operator calls, and events that time them.

use super::Cuda;
use super::device::Device;
use super::driver::check;
use crate::error::Result;
use crate::op::RmsNorm;
use crate::step::Step;
use cust::sys;

/// Operator calls as one CUDA graph: enqueued again with one driver call, whatever they launch.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    executable: sys::CUgraphExec,
}

// SAFETY: a graph may be used from any thread that makes its context current, which every use does.
unsafe impl Send for Graph {}

impl Graph {
    /// The calls that `body` enqueues on the stream of `cuda`, which must not be the default
    /// stream ([`Cuda::on_new_stream`]). Nothing runs yet. Kernels must be loaded before
    /// ([`Device::load`]).
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`] when the stream or a call cannot be captured; what `body` reports.
    pub fn capture(cuda: &Cuda, body: impl FnOnce() -> Result<()>) -> Result<Self> {
        let device = cuda.device().clone();
        let executable = device.with_context(|| {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            // SAFETY: the stream is live, and its context current.
            check("cuStreamBeginCapture", unsafe {
                sys::cuStreamBeginCapture_v2(cuda.stream(), mode)
            })?;
            let enqueued = body();
            let mut graph = std::ptr::null_mut();
            // SAFETY: ends what was begun above, whatever `body` did; the out pointer is live.
            let ended = check("cuStreamEndCapture", unsafe {
                sys::cuStreamEndCapture(cuda.stream(), &raw mut graph)
            });
            let instantiated = enqueued.and(ended).and_then(|()| instantiate(graph));
            if !graph.is_null() {
                // SAFETY: of the capture above; the executable graph does not need it.
                let destroyed = unsafe { sys::cuGraphDestroy(graph) };
                check("cuGraphDestroy", destroyed)?;
            }
            instantiated
        })?;
        Ok(Self { device, executable })
    }

    /// The calls of a checkpointed step, with everything loaded that they need.
    ///
    /// # Errors
    /// - As [`Graph::capture`], [`Step::prepare`] and [`Step::enqueue`].
    pub fn of_step(cuda: &Cuda, op: &RmsNorm, step: &Step) -> Result<Self> {
        step.prepare(op, cuda)?;
        // SAFETY: nothing runs now; whoever launches the graph vouches for the memory.
        Self::capture(cuda, || unsafe { step.enqueue(op, cuda) })
    }

    /// Enqueues the captured calls on the stream of `cuda`.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    ///
    /// # Safety
    /// - What the captured calls asked for (memory that is valid, and not used otherwise) holds
    ///   until the work has completed.
    /// - No earlier launch of this graph runs on another stream.
    pub unsafe fn launch(&self, cuda: &Cuda) -> Result<()> {
        self.device.with_context(|| {
            // SAFETY: graph and stream are live; the caller's obligations.
            check("cuGraphLaunch", unsafe {
                sys::cuGraphLaunch(self.executable, cuda.stream())
            })
        })
    }
}

fn instantiate(graph: sys::CUgraph) -> Result<sys::CUgraphExec> {
    let mut executable = std::ptr::null_mut();
    // SAFETY: the graph was captured; the out pointer is live.
    check("cuGraphInstantiateWithFlags", unsafe {
        sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0)
    })?;
    Ok(executable)
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.device.with_context(|| {
            // SAFETY: instantiated above; a graph that still runs is kept by the driver until it
            // is done. An error leaves nothing to do.
            check("cuGraphExecDestroy", unsafe {
                sys::cuGraphExecDestroy(self.executable)
            })
        });
    }
}

/// A point in a stream's work whose time is kept.
#[derive(Debug)]
pub struct Event {
    device: Device,
    event: sys::CUevent,
}

impl Event {
    /// An event of `device` that was not recorded yet.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    pub fn new(device: &Device) -> Result<Self> {
        let mut event = std::ptr::null_mut();
        device.with_context(|| {
            let flags = sys::CUevent_flags::CU_EVENT_DEFAULT as u32;
            // SAFETY: the out pointer is live.
            check("cuEventCreate", unsafe {
                sys::cuEventCreate(&raw mut event, flags)
            })
        })?;
        Ok(Self {
            device: device.clone(),
            event,
        })
    }

    /// Records the event behind everything enqueued on the stream of `cuda`. In a capture it
    /// becomes part of the graph: each launch records it anew.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    pub fn record(&self, cuda: &Cuda) -> Result<()> {
        use sys::CUevent_record_flags::{CU_EVENT_RECORD_DEFAULT, CU_EVENT_RECORD_EXTERNAL};
        use sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        self.device.with_context(|| {
            let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
            // SAFETY: the stream is live; the out pointer is too.
            check("cuStreamIsCapturing", unsafe {
                sys::cuStreamIsCapturing(cuda.stream(), &raw mut status)
            })?;
            let flags = if status == CU_STREAM_CAPTURE_STATUS_NONE {
                CU_EVENT_RECORD_DEFAULT
            } else {
                // Without it, an event in a capture is an edge of the graph and has no time.
                CU_EVENT_RECORD_EXTERNAL
            };
            // SAFETY: event and stream are live, of the same context.
            check("cuEventRecordWithFlags", unsafe {
                sys::cuEventRecordWithFlags(self.event, cuda.stream(), flags as u32)
            })
        })
    }

    /// Microseconds from `start` to this event. Both were recorded, and the work before them has
    /// completed.
    ///
    /// # Errors
    /// - [`crate::Error::Cuda`].
    pub fn microseconds_since(&self, start: &Event) -> Result<f64> {
        let mut milliseconds = 0.0;
        self.device.with_context(|| {
            // SAFETY: both events are live; the out pointer is too.
            check("cuEventElapsedTime", unsafe {
                sys::cuEventElapsedTime(&raw mut milliseconds, start.event, self.event)
            })
        })?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.device.with_context(|| {
            // SAFETY: created above; the driver keeps an event that is still to be recorded. An
            // error leaves nothing to do.
            check("cuEventDestroy", unsafe {
                sys::cuEventDestroy_v2(self.event)
            })
        });
    }
}
