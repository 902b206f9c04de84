//! Launch contracts: what a kernel entry needs and what its PTX must look like.

/// The stored type of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// FP32.
    F32,
    /// BF16.
    Bf16,
}

/// What comes first in the gated form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GateOrder {
    /// y = norm(x)·w·silu(z).
    NormFirst,
    /// y = norm(x·silu(z))·w.
    GateFirst,
}

/// A generic kernel with its constants: what a plan chooses. `vectors` are a thread's 16-byte
/// vectors a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// [`crate::forward::warp`].
    ForwardWarp {
        /// Lanes that share a row.
        lanes: u32,
        /// Tiles of a row.
        vectors: u32,
        /// Rows of these lanes.
        rows: u32,
    },
    /// [`crate::forward::block`].
    ForwardBlock {
        /// Tiles of a warp.
        vectors: u32,
        /// Whether rows may come in groups.
        grouped: bool,
    },
    /// [`crate::forward::wide`].
    ForwardWide,
    /// [`crate::backward::warp::warp`].
    BackwardWarp {
        /// Tiles of a warp.
        vectors: u32,
        /// Rows under way.
        stages: u32,
        /// Whether rows may come in groups.
        grouped: bool,
    },
    /// [`crate::backward::block::block`].
    BackwardBlock {
        /// Tiles of a warp.
        vectors: u32,
        /// Rows of a step.
        rows: u32,
        /// Rows under way.
        stages: u32,
    },
    /// [`crate::backward::wide::wide`].
    BackwardWide,
    /// [`crate::backward::split::split`].
    BackwardSplit {
        /// Tiles of a warp.
        vectors: u32,
    },
    /// [`crate::backward::split::split_wide`].
    BackwardSplitWide,
    /// [`crate::backward::reduce::reduce`].
    Reduce,
    /// [`crate::bench::copy`].
    Copy,
    /// [`crate::bench::flush`].
    Flush,
    /// [`crate::bench::compare`].
    Compare,
    /// [`crate::general::forward::forward`].
    GeneralForward,
    /// [`crate::general::backward::backward`].
    GeneralBackward,
    /// [`crate::gated::forward::warp`].
    GatedForwardWarp {
        /// What comes first.
        order: GateOrder,
        /// Lanes that share a row.
        lanes: u32,
        /// Vectors of a lane.
        vectors: u32,
    },
    /// [`crate::gated::forward::pairs`].
    GatedForwardPairs {
        /// What comes first.
        order: GateOrder,
        /// Lanes that share a row.
        lanes: u32,
    },
    /// [`crate::gated::forward::flat`].
    GatedForwardFlat {
        /// What comes first.
        order: GateOrder,
        /// Lanes that share a row.
        lanes: u32,
    },
    /// [`crate::gated::forward::block`].
    GatedForwardBlock {
        /// What comes first.
        order: GateOrder,
        /// Tiles of a warp.
        vectors: u32,
    },
    /// [`crate::gated::backward::warp`].
    GatedBackwardWarp {
        /// What comes first.
        order: GateOrder,
        /// Lanes that share a row.
        lanes: u32,
        /// Vectors of a lane.
        vectors: u32,
    },
    /// [`crate::gated::backward_pairs::pairs`].
    GatedBackwardPairs {
        /// What comes first.
        order: GateOrder,
        /// Lanes that share a row.
        lanes: u32,
    },
    /// [`crate::gated::backward::block`].
    GatedBackwardBlock {
        /// What comes first.
        order: GateOrder,
        /// Tiles of a warp.
        vectors: u32,
    },
}

/// A kernel entry and its contract. One stands beside every entry; the planner, the PTX build
/// (`.maxntid`, `.minnctapersm`), the PTX lint and the simulator read it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The entry's symbol.
    pub name: &'static str,
    /// The generic kernel.
    pub program: Program,
    /// The weight's type; `None` where the kernel serves all.
    pub weight: Option<WeightType>,
    /// Whether it is the residual form; false where the kernel serves both.
    pub residual: bool,
    /// The PTX module that holds it: one a kernel family and weight type, if it has one.
    pub module: &'static str,
    /// Most threads a block may have (`.maxntid`).
    pub max_threads: u32,
    /// Blocks that must fit on one multiprocessor at `max_threads` (`.minnctapersm`).
    pub min_blocks: u32,
    /// Lowest compute capability, ten times (80, 90).
    pub min_sm: u32,
    /// Size of the parameter struct, in bytes.
    pub param_bytes: usize,
    /// Instructions the PTX must hold.
    pub ptx: PtxCounts,
    /// The kernel's body for one simulated thread: reads the parameter struct at the pointer.
    #[cfg(not(target_arch = "nvptx64"))]
    pub run: unsafe fn(*const u8),
}

/// Static instruction counts of a kernel's PTX, declared beside the source. A barrier or a
/// shuffle more than declared is one that the compiler cloned into a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtxCounts {
    /// Block barriers (`bar.sync`, `barrier.sync`).
    pub barriers: u32,
    /// Shuffles (`shfl.sync`).
    pub shuffles: u32,
    /// 16-byte global loads (`ld.global…v4.b32`).
    pub vector_loads: u32,
    /// 16-byte global stores (`st.global…v4.b32`).
    pub vector_stores: u32,
}
