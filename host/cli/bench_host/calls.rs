//! Nanoseconds of a call on the host.

use super::cpu::{self, Affinity};
use super::report::Report;
use crate::cli::error::Result;
use crate::cli::output::Output;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::null::Null;
use cake_rmsnorm::plan::DeviceProperties;
use cake_rmsnorm::{BackwardArgs, Dtype, ForwardArgs, RmsNorm, RowsView, VectorView, Workspace};
use serde::Serialize;
use std::time::{Duration, Instant};

/// A call on the host may take this long, the driver's launch included.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub const TARGET_NS: f64 = 3000.0;

/// Calls in a row: fewer than a stream holds before it makes its caller wait.
pub const BATCH: u32 = 64;
const BATCHES: usize = 200;
const WARM_UP: usize = 20;
/// Batches of each call before another place is looked for: some milliseconds.
const BATCHES_A_PLACE: usize = 10;

/// Shapes whose calls are timed: short rows and few of them, so that the GPU keeps up; the last
/// two backwards have a second launch.
pub const SHAPES: [(u64, u64); 5] = [(256, 1), (4096, 1), (16_384, 1), (256, 1024), (4096, 1024)];

/// An operator and its arguments.
pub struct Call {
    pub op: RmsNorm,
    pub forward: ForwardArgs,
    pub backward: BackwardArgs,
}

/// The time of a call on the host.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Median over the batches of the mean of a batch, in nanoseconds.
    pub ns: f64,
    /// A tenth of the batches is above.
    pub ns_p90: f64,
    /// Median of the same until the device is done.
    pub done_ns: f64,
}

/// Median, and nine tenths.
fn quantiles(mut samples: Vec<f64>) -> [f64; 2] {
    samples.sort_by(f64::total_cmp);
    [samples.len() / 2, samples.len() * 9 / 10].map(|at| (samples[at] * 10.0).round() / 10.0)
}

impl Call {
    /// A call at addresses where nothing is.
    pub fn imaginary(hidden: u64, rows: u64, residual: bool) -> Result<Self> {
        let op = RmsNorm::new(hidden, Dtype::F32, 1e-6)?;
        let plan = op.backward_plan(rows, residual, &DeviceProperties::H200)?;
        let at = |slot: u64| slot << 48;
        let matrix = |slot| RowsView::packed(at(slot), rows, hidden);
        let w = VectorView::f32(at(1), hidden);
        let rstd = VectorView::f32(at(2), rows);
        let forward = ForwardArgs {
            x: matrix(3),
            residual: residual.then(|| matrix(4)),
            w: Some(w),
            h: residual.then(|| matrix(5)),
            y: matrix(6),
            rstd: Some(rstd),
        };
        let backward = BackwardArgs {
            dy: matrix(7),
            x: matrix(3),
            dh: residual.then(|| matrix(8)),
            w: Some(w),
            rstd: Some(rstd),
            dx: Some(matrix(9)),
            dw: Some(VectorView::f32(at(10), hidden).into()),
            workspace: Workspace {
                address: at(11),
                bytes: plan.workspace_bytes,
            },
        };
        Ok(Self {
            op,
            forward,
            backward,
        })
    }
}

/// Where calls are timed: on the CPU that is the least disturbed, which it finds again and again.
pub struct Quiet {
    /// Every CPU that this thread may run on.
    cpus: Affinity,
    null: Null,
    probe: Call,
}

impl Quiet {
    /// CPUs are compared by what a call takes them without a driver.
    pub fn new() -> Result<Self> {
        Ok(Self {
            cpus: Affinity::of_this_thread(),
            null: Null::new(DeviceProperties::H200),
            probe: Call::imaginary(4096, 1, false)?,
        })
    }

    /// Moves this thread to the CPU that is the least disturbed now.
    pub fn find(&self) {
        let calls = || {
            for _ in 0..BATCH {
                // SAFETY: the backend touches no memory.
                let done = unsafe { self.null.backward(&self.probe.op, &self.probe.backward) };
                debug_assert!(done.is_ok());
            }
        };
        cpu::move_to_quietest(&self.cpus, calls);
    }

    /// Leaves it to the system again where this thread runs.
    pub fn leave(&self) {
        self.cpus.set();
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Times calls by turns, `batch` of one after as many of another; `wait` lets the device finish, and
/// `place` finds where to run from time to time.
pub fn costs<const N: usize>(
    calls: [&dyn Fn() -> cake_rmsnorm::Result<()>; N],
    batch: u32,
    wait: impl Fn() -> cake_rmsnorm::Result<()>,
    place: impl Fn(),
) -> Result<[Cost; N]> {
    let mut samples = calls.map(|_| (Vec::new(), Vec::new()));
    for round in 0..BATCHES + WARM_UP {
        if round % BATCHES_A_PLACE == 0 {
            place();
        }
        for (call, (enqueued, done)) in calls.iter().zip(&mut samples) {
            let start = Instant::now();
            for _ in 0..batch {
                call()?;
            }
            let calls_took = start.elapsed();
            wait()?;
            let all_took = start.elapsed();
            if round >= WARM_UP {
                let ns = |took: Duration| took.as_secs_f64() * 1e9 / f64::from(batch);
                enqueued.push(ns(calls_took));
                done.push(ns(all_took));
            }
        }
    }
    Ok(samples.map(|(enqueued, done)| {
        let ([ns, ns_p90], [done_ns, _]) = (quantiles(enqueued), quantiles(done));
        Cost {
            ns,
            ns_p90,
            done_ns,
        }
    }))
}

/// What is ours of a call: everything but the driver.
pub fn without_driver(
    properties: DeviceProperties,
    report: &mut Report,
    out: &mut Output,
) -> Result<()> {
    #[derive(Serialize)]
    struct Figures {
        hidden: u64,
        rows: u64,
        residual: bool,
        forward: Cost,
        backward: Cost,
    }
    let null = Null::new(properties);
    let quiet = Quiet::new()?;
    for residual in [false, true] {
        for (hidden, rows) in SHAPES {
            let call = Call::imaginary(hidden, rows, residual)?;
            // SAFETY: the backend touches no memory.
            let forward = || unsafe { null.forward(&call.op, &call.forward) };
            // SAFETY: as above.
            let backward = || unsafe { null.backward(&call.op, &call.backward) };
            let [forward, backward] =
                costs([&forward, &backward], BATCH, || Ok(()), || quiet.find())?;
            let figures = Figures {
                hidden,
                rows,
                residual,
                forward,
                backward,
            };
            let text = format!(
                "H={hidden} T={rows} {}, without the driver: forward {:.0} ns, backward {:.0} ns",
                if residual { "residual" } else { "plain" },
                figures.forward.ns,
                figures.backward.ns,
            );
            report.note(out, "calls", text, figures)?;
        }
    }
    Ok(())
}
