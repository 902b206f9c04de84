//! Routes as data: which program serves which widths. Kernels take no such decision.

use cake_rmsnorm_kernels::contract::Program;

/// Forward programs and the widths they serve.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardRoute {
    /// Widest row.
    pub max_hidden: u32,
    /// For at most one row a resident block (or warp).
    pub few: Forward,
    /// For more rows.
    pub many: Forward,
}

/// A forward program and how it is launched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forward {
    pub program: Program,
    /// Rows of a block, where a warp has a row.
    pub warp_rows: u32,
    /// Threads that a multiprocessor is given at most.
    pub resident_threads: u32,
    /// The same in the residual form.
    pub residual_threads: u32,
}

const fn forward(program: Program, warp_rows: u32, resident_threads: u32) -> Forward {
    Forward {
        program,
        warp_rows,
        resident_threads,
        residual_threads: resident_threads,
    }
}

const fn route(max_hidden: u32, few: Forward, many: Forward) -> ForwardRoute {
    ForwardRoute {
        max_hidden,
        few,
        many,
    }
}

/// By width, the first that is wide enough.
pub(super) const FORWARD: &[ForwardRoute] = &[
    route(256, FORWARD_WARP_1, FORWARD_WARP_1),
    route(512, FORWARD_WARP_2, FORWARD_WARP_2),
    route(1024, FORWARD_WARP_4, FORWARD_WARP_4),
    route(
        2048,
        forward(Program::ForwardBlock { vectors: 1 }, 0, 1024),
        FORWARD_RING_2,
    ),
    route(
        8192,
        forward(Program::ForwardBlock { vectors: 2 }, 0, 768),
        FORWARD_RING_2,
    ),
    route(
        16_384,
        forward(Program::ForwardBlock { vectors: 4 }, 0, 512),
        forward(Program::ForwardRing { vectors: 4 }, 0, 512),
    ),
    route(65_536, FORWARD_WIDE, FORWARD_WIDE),
];

pub(super) const FORWARD_WARP_1: Forward = forward(Program::ForwardWarp { vectors: 1 }, 8, 1024);
const FORWARD_WARP_2: Forward = forward(Program::ForwardWarp { vectors: 2 }, 8, 1024);
const FORWARD_WARP_4: Forward = forward(Program::ForwardWarp { vectors: 4 }, 8, 512);
/// The residual form moves twice the bytes for each row under way.
const FORWARD_RING_2: Forward = Forward {
    residual_threads: 512,
    ..forward(Program::ForwardRing { vectors: 2 }, 0, 1024)
};
pub(super) const FORWARD_WIDE: Forward = forward(Program::ForwardWide, 0, 1536);

/// Rows up to this width, in groups or for rstd alone, go to [`FORWARD_WARP_1`], others to
/// [`FORWARD_WIDE`].
pub(super) const ANY_VIEW_WARP_HIDDEN: u32 = 256;

/// Programs of the backward that read x and dy once, by width, the first that is wide enough.
pub(super) const BACKWARD: &[(u32, Program)] = &[
    (
        256,
        Program::BackwardWarp {
            vectors: 1,
            stages: 4,
        },
    ),
    (
        512,
        Program::BackwardWarp {
            vectors: 2,
            stages: 2,
        },
    ),
    (
        4096,
        Program::BackwardBlock {
            vectors: 2,
            rows: 1,
            stages: 3,
        },
    ),
    (
        6144,
        Program::BackwardBlock {
            vectors: 2,
            rows: 1,
            stages: 4,
        },
    ),
    (
        8192,
        Program::BackwardBlock {
            vectors: 2,
            rows: 1,
            stages: 2,
        },
    ),
    (16_384, Program::BackwardWide),
];

/// Threads of a block of [`Program::BackwardBlock`], at most: as many groups as fit.
pub(super) const BACKWARD_BLOCK_THREADS: u32 = 512;

/// Most rows for which the split program is chosen: its second read comes from L2 then.
pub(super) const SPLIT_MAX_ROWS: u64 = 512;

/// Threads of row tasks alone that a multiprocessor is given.
pub(super) const SPLIT_ROW_THREADS: u32 = 1024;

/// Most rows for which blocks of the split program have 256 threads; beyond, 512.
pub(super) const SPLIT_SMALL_BLOCK_MAX_ROWS: u64 = 64;
