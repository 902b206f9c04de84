//! Everything that needs a GPU.

use super::calls::{self, BATCH, Cost, Quiet, SHAPES, TARGET_NS};
use super::expected::inputs;
use super::report::Report;
use super::{Args, construction, streams};
use crate::cli::check::execute::Execution;
use crate::cli::device::cuda::CudaDevice;
use crate::cli::device::{Device, Planning};
use crate::cli::error::Result;
use crate::cli::output::Output;
use cake_rmsnorm::backend::cuda::Cuda;
use cake_rmsnorm::backend::{Backend, Bound, Launcher};
use cake_rmsnorm::plan::{DeviceProperties, Launch, Views};
use cake_rmsnorm::{Dtype, RmsNorm};
use serde::Serialize;
use std::cell::RefCell;

/// Runs the measurements; whether every target is met.
pub fn run(args: &Args, out: &mut Output) -> Result<bool> {
    if args.construct {
        construction::construct(out)?;
        return Ok(true);
    }
    let device = CudaDevice::on_new_stream(&Planning::default())?;
    let mut report = Report::new(device.name(), args.json);
    if !args.json {
        out.line(device.name())?;
    }
    calls::without_driver(*device.cuda().device().properties(), &mut report, out)?;
    calls(&device, &mut report, out)?;
    streams::graphs(&device, args.replays, &mut report, out)?;
    streams::refused_captures(&device, &mut report, out)?;
    streams::two_at_once(&device, &mut report, out)?;
    construction::measure(&mut report, out)?;
    report.finish(out)
}

/// What a call takes.
#[derive(Serialize)]
struct Figures {
    hidden: u64,
    rows: u64,
    residual: bool,
    pass: &'static str,
    launches: usize,
    /// The whole call, on the CPU that is the least disturbed.
    call: Cost,
    /// What the driver takes of it.
    driver: Cost,
    /// The whole call by way of a graph.
    graph: Cost,
    /// A call on an idle stream until it is done, and the same by way of a graph, in nanoseconds.
    alone: [f64; 2],
    /// The whole call, wherever the system puts the thread.
    anywhere: Cost,
}

impl Figures {
    fn what(&self) -> String {
        let form = if self.residual { "residual" } else { "plain" };
        format!("H={} T={} {form} {}", self.hidden, self.rows, self.pass)
    }

    fn call(&self) -> String {
        let launches = match self.launches {
            1 => "launch",
            _ => "two launches",
        };
        format!(
            "{}: {:.0} ns (p90 {:.0}), of which the driver's {launches} {:.0} ns (target \
             {TARGET_NS} ns); on any CPU {:.0} ns",
            self.what(),
            self.call.ns,
            self.call.ns_p90,
            self.driver.ns,
            self.anywhere.ns,
        )
    }

    fn graph(&self) -> String {
        format!(
            "{}: {:.0} ns (p90 {:.0}) (target {TARGET_NS} ns); done after {:.0} ns on an idle \
             stream, directly {:.0}; one of many {:.0} ns, directly {:.0}",
            self.what(),
            self.graph.ns,
            self.graph.ns_p90,
            self.alone[1],
            self.alone[0],
            self.graph.done_ns,
            self.call.done_ns,
        )
    }
}

/// Calls, and their launches alone.
fn calls(device: &CudaDevice, report: &mut Report, out: &mut Output) -> Result<()> {
    let cuda = device.cuda();
    let wait = || cuda.synchronize();
    let graphs = cuda.clone().with_graph_launches();
    let quiet = Quiet::new()?;
    for residual in [false, true] {
        for (hidden, rows) in SHAPES {
            let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
            let execution = Execution::new(device, op, &inputs(hidden, rows, residual, 0)?)?;
            let (forward, backward) = (execution.forward_args(), execution.backward_args());
            let launched = Recorded::new(*cuda.device().properties());
            // SAFETY: nothing runs.
            unsafe { launched.forward(&op, &forward)? };
            let forward_launches = launched.take();
            // SAFETY: as above.
            unsafe { launched.backward(&op, &backward)? };
            let backward_launches = launched.take();

            graphs.prepare(&op, residual, Views::Ordinary)?;
            // SAFETY: the arguments are those of live buffers of this device, which nobody else
            // uses; `costs` waits for the work.
            let forward = |by: &Cuda| unsafe { by.forward(&op, &forward) };
            // SAFETY: as above.
            let backward = |by: &Cuda| unsafe { by.backward(&op, &backward) };
            type Call<'a> = &'a dyn Fn(&Cuda) -> cake_rmsnorm::Result<()>;
            let passes: [(_, Call, _); 2] = [
                ("forward", &forward, forward_launches),
                ("backward", &backward, backward_launches),
            ];
            for (pass, call, launches) in passes {
                let graph = || call(&graphs);
                let call = || call(cuda);
                let bound: Vec<Bound> = launches.iter().map(Parameters::bound).collect();
                // SAFETY: the same launches with the same parameters as above.
                let driver = || unsafe { cuda.launch(&bound) };
                let [anywhere] = calls::costs([&call], BATCH, wait, || quiet.leave())?;
                let calls: [&dyn Fn() -> _; 3] = [&call, &driver, &graph];
                let [call, driver, graph] = calls::costs(calls, BATCH, wait, || quiet.find())?;
                let alone = calls::costs([calls[0], calls[2]], 1, wait, || quiet.find())?;
                let alone = alone.map(|cost| cost.done_ns);
                let figures = Figures {
                    hidden,
                    rows,
                    residual,
                    pass,
                    launches: bound.len(),
                    call,
                    driver,
                    graph,
                    alone,
                    anywhere,
                };
                report.target(out, "calls", call.ns < TARGET_NS, figures.call(), &figures)?;
                let ok = graph.ns < TARGET_NS;
                report.target(out, "calls by graphs", ok, figures.graph(), figures)?;
            }
        }
    }
    Ok(())
}

/// A launch with a copy of its parameters.
struct Parameters {
    launch: Launch,
    bytes: Vec<u64>,
}

impl Parameters {
    fn bound(&self) -> Bound {
        Bound {
            launch: self.launch,
            params: self.bytes.as_ptr().cast(),
        }
    }
}

/// Keeps what it is asked to launch.
struct Recorded {
    properties: DeviceProperties,
    launches: RefCell<Vec<Parameters>>,
}

impl Recorded {
    fn new(properties: DeviceProperties) -> Self {
        Self {
            properties,
            launches: RefCell::default(),
        }
    }

    fn take(&self) -> Vec<Parameters> {
        self.launches.take()
    }
}

impl Launcher for Recorded {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    unsafe fn launch(&self, launches: &[Bound]) -> cake_rmsnorm::Result<()> {
        let copies = launches.iter().map(|bound| {
            let len = bound.launch.kernel.param_bytes;
            let mut bytes = vec![0u64; len.div_ceil(8)];
            // SAFETY: the kernel's parameter struct has that many bytes, and the copy room.
            unsafe {
                let to = bytes.as_mut_ptr().cast::<u8>();
                to.copy_from_nonoverlapping(bound.params, len);
            }
            Parameters {
                launch: bound.launch,
                bytes,
            }
        });
        self.launches.borrow_mut().extend(copies);
        Ok(())
    }
}
