//! Nanoseconds of a call on the host.

use super::report::Report;
use crate::cli::error::Result;
use crate::cli::output::Output;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::null::Null;
use cake_rmsnorm::plan::DeviceProperties;
use cake_rmsnorm::{BackwardArgs, Dtype, ForwardArgs, RmsNorm, RowsView, VectorView, Workspace};
use serde::Serialize;
use std::time::Instant;

/// A call on the host may take this long, the driver's launch included.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub const TARGET_NS: f64 = 3000.0;

/// Calls in a row: fewer than a stream holds before it makes its caller wait.
const BATCH: u32 = 64;
const BATCHES: usize = 200;

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

/// Times `call`; `wait` lets the device finish, uncounted.
pub fn cost(
    mut call: impl FnMut() -> cake_rmsnorm::Result<()>,
    wait: impl Fn() -> cake_rmsnorm::Result<()>,
) -> Result<Cost> {
    let mut samples = Vec::with_capacity(BATCHES);
    for batch in 0..BATCHES + BATCHES / 10 {
        wait()?;
        let start = Instant::now();
        for _ in 0..BATCH {
            call()?;
        }
        let ns = start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH);
        if batch >= BATCHES / 10 {
            samples.push(ns);
        }
    }
    wait()?;
    samples.sort_by(f64::total_cmp);
    let rounded = |ns: f64| (ns * 10.0).round() / 10.0;
    Ok(Cost {
        ns: rounded(samples[BATCHES / 2]),
        ns_p90: rounded(samples[BATCHES * 9 / 10]),
    })
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
    for residual in [false, true] {
        for (hidden, rows) in SHAPES {
            let call = Call::imaginary(hidden, rows, residual)?;
            // SAFETY: the backend touches no memory.
            let forward = || unsafe { null.forward(&call.op, &call.forward) };
            // SAFETY: as above.
            let backward = || unsafe { null.backward(&call.op, &call.backward) };
            let figures = Figures {
                hidden,
                rows,
                residual,
                forward: cost(forward, || Ok(()))?,
                backward: cost(backward, || Ok(()))?,
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
