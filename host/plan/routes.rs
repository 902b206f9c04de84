//! Routes as data: which program serves which widths. Kernels take no such decision.

use cake_rmsnorm_kernels::contract::Program;

/// Forward programs and the widths they serve.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardRoute {
    /// Widest row.
    pub max_hidden: u32,
    /// Programs with the most rows a multiprocessor for which they are chosen, in rising order.
    pub plain: &'static [(u64, Forward)],
    /// The same in the residual form.
    pub residual: &'static [(u64, Forward)],
}

/// A forward program and how it is launched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forward {
    pub program: Program,
    /// Warps of a block, where the program does not say.
    pub warps: u32,
    /// Threads that stay on a multiprocessor, where blocks stay.
    pub resident_threads: u32,
}

const fn warp(vectors: u32, rows: u32, warps: u32) -> Forward {
    Forward {
        program: Program::ForwardWarp { vectors, rows },
        warps,
        resident_threads: 0,
    }
}

const fn block(reread: bool) -> Forward {
    Forward {
        program: Program::ForwardBlock { vectors: 4, reread },
        warps: 0,
        resident_threads: 0,
    }
}

const WIDE: Forward = Forward {
    program: Program::ForwardWide,
    warps: 16,
    resident_threads: 1536,
};

const ANY: u64 = u64::MAX;

const fn route(
    max_hidden: u32,
    plain: &'static [(u64, Forward)],
    residual: &'static [(u64, Forward)],
) -> ForwardRoute {
    ForwardRoute {
        max_hidden,
        plain,
        residual,
    }
}

/// By width, the first that is wide enough. Rows in groups go to the first program of a list, which
/// takes them.
pub(super) const FORWARD: &[ForwardRoute] = &[
    route(
        256,
        &[(64, warp(1, 1, 4)), (ANY, warp(1, 4, 2))],
        &[(64, warp(1, 1, 4)), (ANY, warp(1, 4, 2))],
    ),
    route(
        512,
        &[(64, warp(2, 1, 4)), (ANY, warp(2, 2, 2))],
        &[(64, warp(2, 1, 4)), (ANY, warp(2, 2, 2))],
    ),
    route(
        2048,
        &[(128, block(false)), (ANY, block(true))],
        &[(2, block(false)), (ANY, block(true))],
    ),
    route(
        16_384,
        &[(64, block(false)), (ANY, block(true))],
        &[(2, block(false)), (ANY, block(true))],
    ),
    route(65_536, &[(ANY, WIDE)], &[(ANY, WIDE)]),
];

/// Programs of the backward that read x and dy once, by width, the first that is wide enough.
pub(super) const BACKWARD: &[(u32, Program)] = &[
    (
        256,
        Program::BackwardWarp {
            vectors: 1,
            stages: 4,
            grouped: false,
        },
    ),
    (
        512,
        Program::BackwardWarp {
            vectors: 2,
            stages: 2,
            grouped: false,
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

/// Warps of a block of [`Program::BackwardWarp`], and blocks a multiprocessor.
pub(super) const fn backward_warps(vectors: u32) -> (u32, u32) {
    match vectors {
        1 => (8, 3),
        _ => (4, 2),
    }
}

/// Most rows for which blocks of the split program have 256 threads; beyond, 512.
pub(super) const SPLIT_SMALL_BLOCK_MAX_ROWS: u64 = 64;
