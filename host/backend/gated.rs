//! The gated form on what launches kernels.

use super::launcher::{Bound, Launcher};
use crate::error::Result;
use crate::gated::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, HeadsView, validate};
use crate::op::Update;
use crate::plan::Spacing;
use cake_rmsnorm_kernels::gated::params::{GatedBackwardParams, GatedForwardParams, Strides};
use cake_rmsnorm_kernels::params::{ReduceParams, WeightGradientOut, keep};

/// # Safety
/// - As [`super::Backend::gated_forward`].
pub(super) unsafe fn forward(
    launcher: &impl Launcher,
    op: &GatedRmsNorm,
    args: &GatedForwardArgs,
) -> Result<()> {
    let rows = validate::forward(op, args)?;
    let spacing = Spacing::of(args);
    let plan = op.forward_plan(u64::from(rows), spacing, launcher.properties())?;
    let Some(launch) = plan.launch else {
        return Ok(());
    };
    let [x, z, y] = match [args.x, args.z, args.y].map(HeadsView::as_tokens) {
        [Some(x), Some(z), Some(y)] => [x, z, y],
        _ => [args.x, args.z, args.y],
    };
    let params = GatedForwardParams {
        x: args.x.address as usize as *const u16,
        z: args.z.address as usize as *const u16,
        w: args.w.address as usize as *const u8,
        y: args.y.address as usize as *mut u16,
        rstd: args.rstd.map_or(0, |view| view.address) as usize as *mut f32,
        x_strides: strides(&x),
        z_strides: strides(&z),
        y_strides: strides(&y),
        rows,
        heads: x.heads as u32,
        groups: op.groups() as u32,
        width: op.width() as u32,
        eps: op.eps(),
        keep: keep(2, rows.into(), op.hidden()),
    };
    // SAFETY: the arguments were checked, and the plan keeps the kernel's contract for them; the
    // caller vouches for the memory.
    unsafe {
        launcher.launch(&[Bound {
            launch,
            params: (&raw const params).cast(),
        }])
    }
}

/// # Safety
/// - As [`super::Backend::gated_backward`].
pub(super) unsafe fn backward(
    launcher: &impl Launcher,
    op: &GatedRmsNorm,
    args: &GatedBackwardArgs,
) -> Result<()> {
    let rows = validate::backward(op, args)?;
    let dw = args.dw.is_some();
    let plan = op.backward_plan(u64::from(rows), dw, launcher.properties())?;
    crate::validate::workspace(args.workspace, plan.workspace_bytes)?;
    let nodes = if dw { args.workspace.address } else { 0 };
    let params = GatedBackwardParams {
        dy: args.dy.address as usize as *const u16,
        x: args.x.address as usize as *const u16,
        z: args.z.address as usize as *const u16,
        w: args.w.address as usize as *const u8,
        rstd: args.rstd.map_or(0, |view| view.address) as usize as *const f32,
        dx: args.dx.address as usize as *mut u16,
        dz: args.dz.address as usize as *mut u16,
        nodes: nodes as usize as *mut f32,
        dy_strides: strides(&args.dy),
        x_strides: strides(&args.x),
        z_strides: strides(&args.z),
        dx_strides: strides(&args.dx),
        dz_strides: strides(&args.dz),
        rows,
        heads: args.dy.heads as u32,
        groups: op.groups() as u32,
        width: op.width() as u32,
        eps: op.eps(),
        keep: keep(3, rows.into(), op.hidden()),
        leaf_log2: plan.leaf.leaf_log2,
        run_log2: plan.leaf.run_log2,
    };
    // Without rows there is nothing to add to what dw holds.
    let reduce = plan.reduce.zip(args.dw);
    let reduce = reduce.filter(|(_, (_, update))| rows > 0 || *update == Update::Overwrite);
    let reduce = reduce.map(|(launch, (view, update))| {
        let params = ReduceParams {
            nodes: nodes as usize as *const f32,
            dw: WeightGradientOut {
                dw: view.address as usize as *mut f32,
                dw_bf16: std::ptr::null_mut(),
                accumulate: u32::from(update == Update::Accumulate),
            },
            hidden: op.hidden() as u32,
            node_count: if rows > 0 { plan.leaf.runs() } else { 0 },
            chunk_log2: plan.chunk_log2,
        };
        (launch, params)
    });
    let mut launches = Vec::with_capacity(2);
    launches.extend(plan.main.map(|launch| Bound {
        launch,
        params: (&raw const params).cast(),
    }));
    launches.extend(reduce.as_ref().map(|(launch, params)| Bound {
        launch: *launch,
        params: std::ptr::from_ref(params).cast(),
    }));
    // SAFETY: as in `forward`; the nodes that the second launch reads are what the first stores.
    unsafe { launcher.launch(&launches) }
}

/// The strides in 16-byte vectors; validation has seen that they fit.
fn strides(view: &HeadsView) -> Strides {
    let (token, head) = view.strides();
    Strides {
        token: (token / 8) as i32,
        head: (head / 8) as i32,
    }
}
