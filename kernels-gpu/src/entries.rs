//! Kernel entries: every instance that is compiled, and its launch contract.

#![cfg_attr(target_arch = "nvptx64", allow(unused_imports))] // one module is compiled at a time

use crate::backward::{
    block::block, reduce::reduce, split::split, split::split_wide, warp::warp, wide::wide,
};
use crate::bench::{compare, copy, flush};
use crate::contract::{Kernel, Program, PtxCounts, WeightType};
use crate::device::dependent;
#[cfg(not(target_arch = "nvptx64"))]
use crate::gated::entries::GATED;
use crate::general::params::{GeneralBackwardParams, GeneralForwardParams};
#[cfg(not(target_arch = "nvptx64"))]
use crate::instructions::Instructions;
use crate::params::{
    BackwardParams, CompareParams, CopyParams, FlushParams, ForwardParams, ReduceParams,
};
use crate::rows::{Bf16Weight, F32Weight};
use crate::{forward, general};

/// One entry for the device. Before anything else it waits for the kernel before it, so that every
/// launch may be a dependent one, which costs its host less.
macro_rules! entry {
    ($module:literal, $name:ident, $params:ty, $body:expr, $weight:ty, $residual:literal) => {
        /// See the program's documentation.
        ///
        /// # Safety
        /// - As the program's.
        // Without a choice of module (rust-cuda's CudaBuilder): every entry.
        #[cfg(all(target_arch = "nvptx64", any(cake_module = $module, not(cake_module))))]
        #[cfg_attr(target_feature = "compute_50", nvvm_internal::kernel)]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: $params) {
            #[allow(dead_code)]
            type W = $weight;
            #[allow(dead_code)]
            const RESIDUAL: bool = $residual;
            #[allow(dead_code)]
            const TENSORS: usize = if RESIDUAL { 3 } else { 2 };
            dependent::wait();
            // SAFETY: the caller's obligations.
            unsafe { ($body)(&params) }
        }
    };
}

/// The same entry's row in the host's table.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! contract {
    ($module:literal, $name:ident, $params:ty, $body:expr, $weight:ty, $residual:literal,
     $program:expr, $weight_type:expr, $threads:literal, $blocks:literal,
     [$barriers:literal, $shuffles:literal, $loads:literal, $stores:literal]) => {
        Kernel {
            name: stringify!($name),
            program: $program,
            weight: $weight_type,
            residual: $residual,
            module: $module,
            max_threads: $threads,
            min_blocks: $blocks,
            min_sm: 80,
            param_bytes: size_of::<$params>(),
            ptx: PtxCounts {
                barriers: $barriers,
                shuffles: $shuffles,
                vector_loads: $loads,
                vector_stores: $stores,
            },
            run: |params| {
                #[allow(dead_code)]
                type W = $weight;
                #[allow(dead_code)]
                const RESIDUAL: bool = $residual;
                #[allow(dead_code)]
                const TENSORS: usize = if RESIDUAL { 3 } else { 2 };
                dependent::wait();
                Instructions::detect().run(
                    #[inline(always)]
                    // SAFETY: the simulator passes the kernel's parameter struct and keeps the
                    // body's contract, or reports that it was not kept.
                    || unsafe { ($body)(&*params.cast::<$params>()) },
                )
            },
        }
    };
}

/// Defines the entries of an operation, and on a host their table `$table`. Each program has four:
/// FP32 weight plain and residual, BF16 weight plain and residual; behind each name the counts of
/// barriers, shuffles, 16-byte global loads and 16-byte global stores in its PTX.
macro_rules! entries {
    ($table:ident, $f32_module:literal, $bf16_module:literal, $(
        $program:expr => $params:ty, $body:expr, threads $threads:literal, blocks $blocks:literal, {
            $f32:ident $f32_counts:tt;
            $f32_residual:ident $f32_residual_counts:tt;
            $bf16:ident $bf16_counts:tt;
            $bf16_residual:ident $bf16_residual_counts:tt;
        }
    )*) => {
        $(
            entry!($f32_module, $f32, $params, $body, F32Weight, false);
            entry!($f32_module, $f32_residual, $params, $body, F32Weight, true);
            entry!($bf16_module, $bf16, $params, $body, Bf16Weight, false);
            entry!($bf16_module, $bf16_residual, $params, $body, Bf16Weight, true);
        )*

        #[cfg(not(target_arch = "nvptx64"))]
        const $table: &[Kernel] = &[$(
            contract!($f32_module, $f32, $params, $body, F32Weight, false, $program,
                Some(WeightType::F32), $threads, $blocks, $f32_counts),
            contract!($f32_module, $f32_residual, $params, $body, F32Weight, true, $program,
                Some(WeightType::F32), $threads, $blocks, $f32_residual_counts),
            contract!($bf16_module, $bf16, $params, $body, Bf16Weight, false, $program,
                Some(WeightType::Bf16), $threads, $blocks, $bf16_counts),
            contract!($bf16_module, $bf16_residual, $params, $body, Bf16Weight, true, $program,
                Some(WeightType::Bf16), $threads, $blocks, $bf16_residual_counts),
        )*];
    };
}

entries! { FORWARD, "forward_f32", "forward_bf16",
    Program::ForwardWarp { lanes: 16, vectors: 1, rows: 4 } => ForwardParams, forward::warp::<W, 16, 1, 4, RESIDUAL>, threads 256, blocks 5, {
        forward_warp_f32_l16v1r4 [0, 18, 6, 4];
        forward_warp_f32_l16v1r4_residual [0, 18, 10, 8];
        forward_warp_bf16_l16v1r4 [0, 18, 5, 4];
        forward_warp_bf16_l16v1r4_residual [0, 18, 9, 8];
    }
    Program::ForwardWarp { lanes: 32, vectors: 1, rows: 1 } => ForwardParams, forward::warp::<W, 32, 1, 1, RESIDUAL>, threads 256, blocks 0, {
        forward_warp_f32_v1r1 [0, 10, 3, 1];
        forward_warp_f32_v1r1_residual [0, 10, 4, 2];
        forward_warp_bf16_v1r1 [0, 10, 2, 1];
        forward_warp_bf16_v1r1_residual [0, 10, 3, 2];
    }
    Program::ForwardWarp { lanes: 32, vectors: 1, rows: 4 } => ForwardParams, forward::warp::<W, 32, 1, 4, RESIDUAL>, threads 256, blocks 5, {
        forward_warp_f32_v1r4 [0, 20, 6, 4];
        forward_warp_f32_v1r4_residual [0, 20, 10, 8];
        forward_warp_bf16_v1r4 [0, 20, 5, 4];
        forward_warp_bf16_v1r4_residual [0, 20, 9, 8];
    }
    Program::ForwardWarp { lanes: 32, vectors: 2, rows: 1 } => ForwardParams, forward::warp::<W, 32, 2, 1, RESIDUAL>, threads 256, blocks 0, {
        forward_warp_f32_v2r1 [0, 12, 6, 2];
        forward_warp_f32_v2r1_residual [0, 12, 8, 4];
        forward_warp_bf16_v2r1 [0, 12, 4, 2];
        forward_warp_bf16_v2r1_residual [0, 12, 6, 4];
    }
    Program::ForwardWarp { lanes: 32, vectors: 2, rows: 2 } => ForwardParams, forward::warp::<W, 32, 2, 2, RESIDUAL>, threads 256, blocks 0, {
        forward_warp_f32_v2r2 [0, 18, 8, 4];
        forward_warp_f32_v2r2_residual [0, 18, 12, 8];
        forward_warp_bf16_v2r2 [0, 18, 6, 4];
        forward_warp_bf16_v2r2_residual [0, 18, 10, 8];
    }
    Program::ForwardBlock { vectors: 2, grouped: false } => ForwardParams, forward::block::<W, 2, false, RESIDUAL>, threads 1024, blocks 1, {
        forward_block_f32_v2 [2, 20, 6, 2];
        forward_block_f32_v2_residual [2, 20, 8, 4];
        forward_block_bf16_v2 [2, 20, 4, 2];
        forward_block_bf16_v2_residual [2, 20, 6, 4];
    }
    Program::ForwardBlock { vectors: 4, grouped: false } => ForwardParams, forward::block::<W, 4, false, RESIDUAL>, threads 512, blocks 2, {
        forward_block_f32_v4 [2, 22, 12, 4];
        forward_block_f32_v4_residual [2, 22, 16, 8];
        forward_block_bf16_v4 [2, 22, 8, 4];
        forward_block_bf16_v4_residual [2, 22, 12, 8];
    }
    Program::ForwardBlock { vectors: 4, grouped: true } => ForwardParams, forward::block::<W, 4, true, RESIDUAL>, threads 512, blocks 2, {
        forward_grouped_f32_v4 [2, 22, 12, 4];
        forward_grouped_f32_v4_residual [2, 22, 16, 8];
        forward_grouped_bf16_v4 [2, 22, 8, 4];
        forward_grouped_bf16_v4_residual [2, 22, 12, 8];
    }
    Program::ForwardWide => ForwardParams, forward::wide::<W, RESIDUAL>, threads 512, blocks 0, {
        forward_wide_f32 [4, 20, 5, 1];
        forward_wide_f32_residual [4, 20, 8, 2];
        forward_wide_bf16 [4, 20, 4, 1];
        forward_wide_bf16_residual [4, 20, 7, 2];
    }
}

entries! { BACKWARD, "backward_f32", "backward_bf16",
    Program::BackwardWarp { vectors: 1, stages: 4, grouped: false } => BackwardParams, warp::<W, 1, 4, TENSORS, false>, threads 256, blocks 3, {
        backward_warp_f32_v1 [2, 6, 2, 6];
        backward_warp_f32_v1_residual [2, 6, 2, 6];
        backward_warp_bf16_v1 [2, 6, 1, 6];
        backward_warp_bf16_v1_residual [2, 6, 1, 6];
    }
    Program::BackwardWarp { vectors: 1, stages: 4, grouped: true } => BackwardParams, warp::<W, 1, 4, TENSORS, true>, threads 256, blocks 3, {
        backward_warp_grouped_f32_v1 [2, 6, 2, 6];
        backward_warp_grouped_f32_v1_residual [2, 6, 2, 6];
        backward_warp_grouped_bf16_v1 [2, 6, 1, 6];
        backward_warp_grouped_bf16_v1_residual [2, 6, 1, 6];
    }
    Program::BackwardWarp { vectors: 2, stages: 2, grouped: false } => BackwardParams, warp::<W, 2, 2, TENSORS, false>, threads 128, blocks 2, {
        backward_warp_f32_v2 [2, 7, 4, 12];
        backward_warp_f32_v2_residual [2, 7, 4, 12];
        backward_warp_bf16_v2 [2, 7, 2, 12];
        backward_warp_bf16_v2_residual [2, 7, 2, 12];
    }
    Program::BackwardWarp { vectors: 2, stages: 2, grouped: true } => BackwardParams, warp::<W, 2, 2, TENSORS, true>, threads 128, blocks 2, {
        backward_warp_grouped_f32_v2 [2, 7, 4, 12];
        backward_warp_grouped_f32_v2_residual [2, 7, 4, 12];
        backward_warp_grouped_bf16_v2 [2, 7, 2, 12];
        backward_warp_grouped_bf16_v2_residual [2, 7, 2, 12];
    }
    Program::BackwardBlock { vectors: 2, rows: 1, stages: 2 } => BackwardParams, block::<W, 2, 1, 2, TENSORS>, threads 512, blocks 0, {
        backward_block_f32_v2r1 [3, 11, 4, 12];
        backward_block_f32_v2r1_residual [3, 11, 4, 12];
        backward_block_bf16_v2r1 [3, 11, 2, 12];
        backward_block_bf16_v2r1_residual [3, 11, 2, 12];
    }
    Program::BackwardBlock { vectors: 2, rows: 2, stages: 2 } => BackwardParams, block::<W, 2, 2, 2, TENSORS>, threads 384, blocks 0, {
        backward_block_f32_v2r2 [3, 14, 4, 16];
        backward_block_f32_v2r2_residual [3, 14, 4, 16];
        backward_block_bf16_v2r2 [3, 14, 2, 16];
        backward_block_bf16_v2r2_residual [3, 14, 2, 16];
    }
    Program::BackwardWide => BackwardParams, wide::<W, RESIDUAL>, threads 1024, blocks 0, {
        backward_wide_f32 [1, 10, 12, 12];
        backward_wide_f32_residual [1, 10, 14, 12];
        backward_wide_bf16 [1, 10, 6, 12];
        backward_wide_bf16_residual [1, 10, 8, 12];
    }
    Program::BackwardSplit { vectors: 1 } => BackwardParams, split::<W, 1, RESIDUAL>, threads 512, blocks 0, {
        backward_split_f32_v1 [2, 24, 8, 2];
        backward_split_f32_v1_residual [2, 24, 9, 2];
        backward_split_bf16_v1 [2, 24, 7, 2];
        backward_split_bf16_v1_residual [2, 24, 8, 2];
    }
    Program::BackwardSplit { vectors: 2 } => BackwardParams, split::<W, 2, RESIDUAL>, threads 512, blocks 0, {
        backward_split_f32_v2 [2, 24, 12, 4];
        backward_split_f32_v2_residual [2, 24, 14, 4];
        backward_split_bf16_v2 [2, 24, 10, 4];
        backward_split_bf16_v2_residual [2, 24, 12, 4];
    }
    Program::BackwardSplitWide => BackwardParams, split_wide::<W, RESIDUAL>, threads 512, blocks 0, {
        backward_split_wide_f32 [3, 24, 12, 2];
        backward_split_wide_f32_residual [3, 24, 13, 2];
        backward_split_wide_bf16 [3, 24, 10, 2];
        backward_split_wide_bf16_residual [3, 24, 11, 2];
    }
}

entry!(
    "reduce",
    backward_reduce,
    ReduceParams,
    reduce,
    F32Weight,
    false
);

#[cfg(not(target_arch = "nvptx64"))]
const REDUCE: &[Kernel] = &[contract!(
    "reduce",
    backward_reduce,
    ReduceParams,
    reduce,
    F32Weight,
    false,
    Program::Reduce,
    None,
    512,
    0,
    [1, 14, 16, 0]
)];

entry!("bench", bench_copy, CopyParams, copy, F32Weight, false);
entry!("bench", bench_flush, FlushParams, flush, F32Weight, false);
entry!(
    "bench",
    bench_compare,
    CompareParams,
    compare,
    F32Weight,
    false
);

#[cfg(not(target_arch = "nvptx64"))]
const BENCH: &[Kernel] = &[
    contract!(
        "bench",
        bench_copy,
        CopyParams,
        copy,
        F32Weight,
        false,
        Program::Copy,
        None,
        256,
        0,
        [0, 0, 4, 4]
    ),
    contract!(
        "bench",
        bench_flush,
        FlushParams,
        flush,
        F32Weight,
        false,
        Program::Flush,
        None,
        256,
        0,
        [0, 0, 4, 0]
    ),
    contract!(
        "bench",
        bench_compare,
        CompareParams,
        compare,
        F32Weight,
        false,
        Program::Compare,
        None,
        256,
        0,
        [0, 0, 2, 0]
    ),
];

entry!(
    "general",
    general_forward,
    GeneralForwardParams,
    general::forward::forward,
    F32Weight,
    false
);
entry!(
    "general",
    general_backward,
    GeneralBackwardParams,
    general::backward::backward,
    F32Weight,
    false
);

#[cfg(not(target_arch = "nvptx64"))]
const GENERAL: &[Kernel] = &[
    contract!(
        "general",
        general_forward,
        GeneralForwardParams,
        general::forward::forward,
        F32Weight,
        false,
        Program::GeneralForward,
        None,
        512,
        2,
        [2, 20, 14, 6]
    ),
    contract!(
        "general",
        general_backward,
        GeneralBackwardParams,
        general::backward::backward,
        F32Weight,
        false,
        Program::GeneralBackward,
        None,
        256,
        3,
        [1, 10, 18, 7]
    ),
];

#[cfg(not(target_arch = "nvptx64"))]
const COUNT: usize =
    FORWARD.len() + BACKWARD.len() + REDUCE.len() + GENERAL.len() + BENCH.len() + GATED.len();

#[cfg(not(target_arch = "nvptx64"))]
static ALL: [Kernel; COUNT] = {
    let tables = [FORWARD, BACKWARD, REDUCE, GENERAL, BENCH, GATED];
    let mut all = [REDUCE[0]; COUNT];
    let (mut table, mut count) = (0, 0);
    while table < tables.len() {
        let mut entry = 0;
        while entry < tables[table].len() {
            all[count] = tables[table][entry];
            count += 1;
            entry += 1;
        }
        table += 1;
    }
    all
};

/// Every kernel entry.
#[cfg(not(target_arch = "nvptx64"))]
pub static KERNELS: &[Kernel] = &ALL;
