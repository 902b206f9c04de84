//! Kernel entries: every instance that is compiled, and its launch contract.

#![cfg_attr(target_arch = "nvptx64", allow(unused_imports))] // one module is compiled at a time

use crate::backward::{block::block, reduce::reduce, split::split, split::split_wide, warp::warp};
use crate::forward;
use crate::params::{BackwardParams, ForwardParams, ReduceParams};
use crate::rows::{Bf16Weight, F32Weight};

/// Defines entries and, on a host, their table.
///
/// `module { name: params, body, threads max (blocks min), [barriers, shuffles, loads, stores]; … }`
macro_rules! entries {
    ($($module:literal { $(
        $name:ident: $params:ty, $body:expr, threads $threads:literal, blocks $blocks:literal,
        [$barriers:literal, $shuffles:literal, $loads:literal, $stores:literal];
    )* })*) => {
        $($(
            /// See the body's documentation.
            ///
            /// # Safety
            /// - As the body's.
            #[cfg(all(target_arch = "nvptx64", cake_module = $module))]
            #[cfg_attr(target_feature = "compute_50", nvvm_internal::kernel)]
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(params: $params) {
                // SAFETY: the caller's obligations.
                unsafe { ($body)(&params) }
            }
        )*)*

        /// Every kernel entry.
        #[cfg(not(target_arch = "nvptx64"))]
        pub static KERNELS: &[crate::contract::Kernel] = &[$($(
            crate::contract::Kernel {
                name: stringify!($name),
                module: $module,
                max_threads: $threads,
                min_blocks: $blocks,
                min_sm: 80,
                param_bytes: size_of::<$params>(),
                ptx: crate::contract::PtxCounts {
                    barriers: $barriers,
                    shuffles: $shuffles,
                    vector_loads: $loads,
                    vector_stores: $stores,
                },
                // SAFETY: the simulator passes the kernel's parameter struct and keeps the
                // body's contract, or reports that it was not kept.
                run: |params| unsafe { ($body)(&*params.cast::<$params>()) },
            },
        )*)*];
    };
}

entries! {
    "forward_f32" {
        forward_warp_f32_v1: ForwardParams, forward::warp::<F32Weight, 1, false>, threads 1024, blocks 0, [0, 0, 0, 0];
        forward_warp_f32_v2: ForwardParams, forward::warp::<F32Weight, 2, false>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_warp_f32_v4: ForwardParams, forward::warp::<F32Weight, 4, false>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_block_f32_v1: ForwardParams, forward::block::<F32Weight, 1, false>, threads 1024, blocks 0, [0, 0, 0, 0];
        forward_block_f32_v2: ForwardParams, forward::block::<F32Weight, 2, false>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_block_f32_v4: ForwardParams, forward::block::<F32Weight, 4, false>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_wide_f32: ForwardParams, forward::wide::<F32Weight, false>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_warp_f32_v1_residual: ForwardParams, forward::warp::<F32Weight, 1, true>, threads 1024, blocks 0, [0, 0, 0, 0];
        forward_warp_f32_v2_residual: ForwardParams, forward::warp::<F32Weight, 2, true>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_warp_f32_v4_residual: ForwardParams, forward::warp::<F32Weight, 4, true>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_block_f32_v1_residual: ForwardParams, forward::block::<F32Weight, 1, true>, threads 1024, blocks 0, [0, 0, 0, 0];
        forward_block_f32_v2_residual: ForwardParams, forward::block::<F32Weight, 2, true>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_block_f32_v4_residual: ForwardParams, forward::block::<F32Weight, 4, true>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_wide_f32_residual: ForwardParams, forward::wide::<F32Weight, true>, threads 512, blocks 0, [0, 0, 0, 0];
    }
    "forward_bf16" {
        forward_warp_bf16_v1: ForwardParams, forward::warp::<Bf16Weight, 1, false>, threads 1024, blocks 0, [0, 0, 0, 0];
        forward_warp_bf16_v2: ForwardParams, forward::warp::<Bf16Weight, 2, false>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_warp_bf16_v4: ForwardParams, forward::warp::<Bf16Weight, 4, false>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_block_bf16_v1: ForwardParams, forward::block::<Bf16Weight, 1, false>, threads 1024, blocks 0, [0, 0, 0, 0];
        forward_block_bf16_v2: ForwardParams, forward::block::<Bf16Weight, 2, false>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_block_bf16_v4: ForwardParams, forward::block::<Bf16Weight, 4, false>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_wide_bf16: ForwardParams, forward::wide::<Bf16Weight, false>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_warp_bf16_v1_residual: ForwardParams, forward::warp::<Bf16Weight, 1, true>, threads 1024, blocks 0, [0, 0, 0, 0];
        forward_warp_bf16_v2_residual: ForwardParams, forward::warp::<Bf16Weight, 2, true>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_warp_bf16_v4_residual: ForwardParams, forward::warp::<Bf16Weight, 4, true>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_block_bf16_v1_residual: ForwardParams, forward::block::<Bf16Weight, 1, true>, threads 1024, blocks 0, [0, 0, 0, 0];
        forward_block_bf16_v2_residual: ForwardParams, forward::block::<Bf16Weight, 2, true>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_block_bf16_v4_residual: ForwardParams, forward::block::<Bf16Weight, 4, true>, threads 512, blocks 0, [0, 0, 0, 0];
        forward_wide_bf16_residual: ForwardParams, forward::wide::<Bf16Weight, true>, threads 512, blocks 0, [0, 0, 0, 0];
    }
    "backward_f32" {
        backward_warp_f32_v1: BackwardParams, warp::<F32Weight, 1, 4, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_warp_f32_v2: BackwardParams, warp::<F32Weight, 2, 2, false>, threads 256, blocks 0, [0, 0, 0, 0];
        backward_block_f32_v1: BackwardParams, block::<F32Weight, 1, 4, false>, threads 768, blocks 0, [0, 0, 0, 0];
        backward_block_f32_v2: BackwardParams, block::<F32Weight, 2, 2, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_block_f32_v4: BackwardParams, block::<F32Weight, 4, 2, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_f32_v1: BackwardParams, split::<F32Weight, 1, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_f32_v2: BackwardParams, split::<F32Weight, 2, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_f32_wide: BackwardParams, split_wide::<F32Weight, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_warp_f32_v1_residual: BackwardParams, warp::<F32Weight, 1, 4, true>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_warp_f32_v2_residual: BackwardParams, warp::<F32Weight, 2, 2, true>, threads 256, blocks 0, [0, 0, 0, 0];
        backward_block_f32_v1_residual: BackwardParams, block::<F32Weight, 1, 4, true>, threads 768, blocks 0, [0, 0, 0, 0];
        backward_block_f32_v2_residual: BackwardParams, block::<F32Weight, 2, 2, true>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_block_f32_v4_residual: BackwardParams, block::<F32Weight, 4, 1, true>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_f32_v1_residual: BackwardParams, split::<F32Weight, 1, true>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_f32_v2_residual: BackwardParams, split::<F32Weight, 2, true>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_f32_wide_residual: BackwardParams, split_wide::<F32Weight, true>, threads 512, blocks 0, [0, 0, 0, 0];
    }
    "backward_bf16" {
        backward_warp_bf16_v1: BackwardParams, warp::<Bf16Weight, 1, 4, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_warp_bf16_v2: BackwardParams, warp::<Bf16Weight, 2, 2, false>, threads 256, blocks 0, [0, 0, 0, 0];
        backward_block_bf16_v1: BackwardParams, block::<Bf16Weight, 1, 4, false>, threads 768, blocks 0, [0, 0, 0, 0];
        backward_block_bf16_v2: BackwardParams, block::<Bf16Weight, 2, 2, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_block_bf16_v4: BackwardParams, block::<Bf16Weight, 4, 2, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_bf16_v1: BackwardParams, split::<Bf16Weight, 1, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_bf16_v2: BackwardParams, split::<Bf16Weight, 2, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_bf16_wide: BackwardParams, split_wide::<Bf16Weight, false>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_warp_bf16_v1_residual: BackwardParams, warp::<Bf16Weight, 1, 4, true>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_warp_bf16_v2_residual: BackwardParams, warp::<Bf16Weight, 2, 2, true>, threads 256, blocks 0, [0, 0, 0, 0];
        backward_block_bf16_v1_residual: BackwardParams, block::<Bf16Weight, 1, 4, true>, threads 768, blocks 0, [0, 0, 0, 0];
        backward_block_bf16_v2_residual: BackwardParams, block::<Bf16Weight, 2, 2, true>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_block_bf16_v4_residual: BackwardParams, block::<Bf16Weight, 4, 1, true>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_bf16_v1_residual: BackwardParams, split::<Bf16Weight, 1, true>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_bf16_v2_residual: BackwardParams, split::<Bf16Weight, 2, true>, threads 512, blocks 0, [0, 0, 0, 0];
        backward_split_bf16_wide_residual: BackwardParams, split_wide::<Bf16Weight, true>, threads 512, blocks 0, [0, 0, 0, 0];
    }
    "reduce" {
        backward_reduce: ReduceParams, reduce, threads 256, blocks 0, [0, 0, 0, 0];
    }
}
