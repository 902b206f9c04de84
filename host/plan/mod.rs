//! Plans: which programs run, with which grid. Pure functions of shapes and device properties;
//! no device is touched. A plan never changes a bit of any output, only who computes it.

mod backward;
mod candidates;
mod choice;
mod file;
mod form;
mod forward;
mod gated;
mod general;
mod kernels;
mod routes;

pub use backward::{BackwardPlan, LeafTable, backward, backward_by};
pub use choice::Choice;
pub use form::{BackwardForm, ForwardForm, Gradients, Rstd, Spacing};
pub use forward::{ForwardPlan, forward, forward_by};
pub use gated::{GatedBackwardPlan, GatedForwardPlan, gated_backward, gated_forward};
pub use kernels::{Views, gated_kernels, kernels, kernels_by};
pub use routes::{MaxRows, Origin, Route, Routes, Window};

use crate::error::{Error, Result};
use crate::view::{RowsView, VectorView};
use cake_rmsnorm_kernels::KERNELS;
use cake_rmsnorm_kernels::contract::{Kernel, Program, WeightType};
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// What a plan needs to know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Multiprocessors.
    pub sm_count: u32,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Shared memory that one block may have after opting in, in bytes.
    pub shared_bytes_per_block: u32,
}

impl DeviceProperties {
    /// An NVIDIA H200 (and H100 SXM): 132 multiprocessors, compute capability 9.0.
    pub const H200: DeviceProperties = DeviceProperties {
        sm_count: 132,
        compute_capability: (9, 0),
        shared_bytes_per_block: 232_448,
    };

    /// The same device with another number of multiprocessors.
    #[must_use]
    pub const fn with_sm_count(self, sm_count: u32) -> Self {
        Self { sm_count, ..self }
    }

    /// Multiprocessors to plan for: at least one, and no more than grids can be multiplied by.
    fn multiprocessors(&self) -> u32 {
        self.sm_count.clamp(1, 1 << 16)
    }

    fn check(&self) -> Result<()> {
        let (major, minor) = self.compute_capability;
        if major < 8 {
            return Err(Error::UnsupportedDevice { major, minor });
        }
        Ok(())
    }
}

/// How a call's matrices and weight lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// Every row starts at a multiple of 16 bytes: what the fast kernels need.
    #[default]
    Vector,
    /// Some start elsewhere.
    Element,
}

impl Alignment {
    const EVERY: [Alignment; 2] = [Alignment::Vector, Alignment::Element];

    /// Of the matrices and the weight of a call.
    pub(crate) fn of(matrices: [Option<&RowsView>; 4], w: Option<&VectorView>) -> Self {
        let mut matrices = matrices.into_iter().flatten();
        if matrices.all(RowsView::is_aligned) && w.is_none_or(|w| w.address.is_multiple_of(16)) {
            Alignment::Vector
        } else {
            Alignment::Element
        }
    }
}

/// One kernel launch, but for its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// The entry.
    pub kernel: &'static Kernel,
    /// Blocks.
    pub grid: u32,
    /// Threads a block.
    pub block: u32,
    /// Dynamic shared memory a block, in bytes.
    pub shared_bytes: u32,
    /// Whether it may start while the launch before it drains: its kernel waits for that one's
    /// results itself. On a GPU of compute capability 9.0 such a launch costs the host half a
    /// microsecond less.
    pub dependent: bool,
}

/// The entry of a program. Asked once a launch, so the table is not searched.
fn entry(program: Program, weight: Option<WeightType>, residual: bool) -> Result<&'static Kernel> {
    type Entries = FxHashMap<(Program, Option<WeightType>, bool), &'static Kernel>;
    static ENTRIES: LazyLock<Entries> = LazyLock::new(|| {
        let key = |kernel: &Kernel| (kernel.program, kernel.weight, kernel.residual);
        KERNELS.iter().map(|kernel| (key(kernel), kernel)).collect()
    });
    let found = ENTRIES.get(&(program, weight, residual));
    found.copied().ok_or(Error::Route {
        program,
        reason: "it is not compiled for this weight and form",
    })
}

/// What every launch keeps.
fn check_launch(program: Program, launch: &Launch, device: &DeviceProperties) -> Result<()> {
    let Launch {
        kernel,
        block,
        shared_bytes: needed,
        ..
    } = *launch;
    let fits = (32..=kernel.max_threads).contains(&block);
    if !fits {
        return Err(Error::Route {
            program,
            reason: "a block has no threads, or too many",
        });
    }
    let (major, minor) = device.compute_capability;
    if kernel.min_sm > 10 * major + minor {
        return Err(Error::UnsupportedDevice { major, minor });
    }
    let found = device.shared_bytes_per_block;
    if needed > found {
        return Err(Error::SharedMemory { needed, found });
    }
    Ok(())
}

/// A condition of a program's contract.
fn keeps(choice: &Choice, condition: bool, reason: &'static str) -> Result<()> {
    if condition {
        Ok(())
    } else {
        Err(not_kept(choice, reason))
    }
}

fn not_kept(choice: &Choice, reason: &'static str) -> Error {
    Error::Route {
        program: choice.program,
        reason,
    }
}

fn check_rows(rows: u64) -> Result<()> {
    if rows > crate::op::MAX_ROWS {
        return Err(Error::TooManyRows { rows });
    }
    Ok(())
}
