//! RMSNorm with a SiLU gate: y = norm(x)·w·silu(z), or y = norm(x·silu(z))·w.

mod op;
mod slices;
pub(crate) mod validate;
mod view;

pub use cake_rmsnorm_kernels::contract::GateOrder;
pub use op::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, MAX_WIDTH};
pub use slices::{GatedBackward, GatedForward, backward_slices, forward_slices};
pub use view::HeadsView;
