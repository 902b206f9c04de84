//! Routes as data: which program serves which widths. Kernels take no such decision.

use cake_rmsnorm_kernels::contract::Program;

/// A forward program and the widths it serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardRoute {
    /// Widest row.
    pub max_hidden: u32,
    pub program: Program,
    /// Tiles of 256 elements that one warp holds; 0: the block goes over the row in turns.
    pub vectors: u32,
    /// Rows of a block, where a warp has a row.
    pub warp_rows: u32,
    /// Threads that a multiprocessor is given at most.
    pub resident_threads: u32,
}

/// By width, the first that is wide enough.
pub(super) const FORWARD: &[ForwardRoute] = &[
    forward(256, Program::ForwardWarp { vectors: 1 }, 1, 8, 1024),
    forward(512, Program::ForwardWarp { vectors: 2 }, 2, 8, 896),
    forward(1024, Program::ForwardWarp { vectors: 4 }, 4, 8, 512),
    forward(2048, Program::ForwardBlock { vectors: 1 }, 1, 0, 1024),
    forward(8192, Program::ForwardBlock { vectors: 2 }, 2, 0, 768),
    forward(16_384, Program::ForwardBlock { vectors: 4 }, 4, 0, 512),
    forward(65_536, Program::ForwardWide, 0, 0, 1536),
];

const fn forward(
    max_hidden: u32,
    program: Program,
    vectors: u32,
    warp_rows: u32,
    resident_threads: u32,
) -> ForwardRoute {
    ForwardRoute { max_hidden, program, vectors, warp_rows, resident_threads }
}

/// A backward program and the widths it serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackwardRoute {
    /// Widest row.
    pub max_hidden: u32,
    pub program: Program,
    /// Blocks that a multiprocessor is given.
    pub blocks_per_sm: u32,
}

/// Programs that read x and dy once, by width, the first that is wide enough.
pub(super) const BACKWARD: &[BackwardRoute] = &[
    backward(256, Program::BackwardWarp { vectors: 1, stages: 4 }, 1),
    backward(512, Program::BackwardWarp { vectors: 2, stages: 2 }, 1),
    backward(1024, Program::BackwardBlock { vectors: 1, stages: 4 }, 4),
    backward(2048, Program::BackwardBlock { vectors: 1, stages: 4 }, 2),
    backward(6144, Program::BackwardBlock { vectors: 1, stages: 4 }, 1),
    backward(8192, Program::BackwardBlock { vectors: 2, stages: 2 }, 1),
    backward(16_384, Program::BackwardWide, 1),
];

const fn backward(max_hidden: u32, program: Program, blocks_per_sm: u32) -> BackwardRoute {
    BackwardRoute { max_hidden, program, blocks_per_sm }
}

/// Most rows for which the split program is chosen: its second read comes from L2 then.
pub(super) const SPLIT_MAX_ROWS: u64 = 512;

/// Split programs by width, with their threads a block.
pub(super) const SPLIT: &[(u32, Program, u32)] = &[
    (2048, Program::BackwardSplit { vectors: 1 }, 256),
    (4096, Program::BackwardSplit { vectors: 2 }, 256),
    (8192, Program::BackwardSplit { vectors: 2 }, 512),
    (65_536, Program::BackwardSplitWide, 512),
];
