//! Kernel entries of the gated form, and their launch contracts.

#![cfg_attr(target_arch = "nvptx64", allow(unused_imports))] // one module is compiled at a time

use crate::contract::{GateOrder, Kernel, Program, PtxCounts, WeightType};
use crate::device::dependent;
use crate::gated::params::{GatedBackwardParams, GatedForwardParams};
use crate::gated::{backward, backward_pairs, forward};
#[cfg(not(target_arch = "nvptx64"))]
use crate::instructions::Instructions;
use crate::rows::{Bf16Weight, F32Weight};

/// One entry for the device. Before anything else it waits for the kernel before it, as the plain
/// form's do.
macro_rules! entry {
    ($module:literal, $name:ident, $params:ty, $body:expr, $weight:ty, $gate_first:literal) => {
        /// See the program's documentation.
        ///
        /// # Safety
        /// - As the program's.
        #[cfg(all(target_arch = "nvptx64", any(cake_module = $module, not(cake_module))))]
        #[cfg_attr(target_feature = "compute_50", nvvm_internal::kernel)]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(params: $params) {
            type W = $weight;
            const GATE_FIRST: bool = $gate_first;
            dependent::wait();
            // SAFETY: the caller's obligations.
            unsafe { ($body)(&params) }
        }
    };
}

/// The same entry's row in the host's table.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! contract {
    ($module:literal, $name:ident, $params:ty, $body:expr, $weight:ty, $gate_first:literal,
     $program:expr, $weight_type:expr, $threads:literal, $blocks:literal,
     [$barriers:literal, $shuffles:literal, $loads:literal, $stores:literal]) => {
        Kernel {
            name: stringify!($name),
            program: {
                const ORDER: GateOrder = if $gate_first {
                    GateOrder::GateFirst
                } else {
                    GateOrder::NormFirst
                };
                $program
            },
            weight: Some($weight_type),
            residual: false,
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
                type W = $weight;
                const GATE_FIRST: bool = $gate_first;
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
/// FP32 weight norm first and gate first, BF16 weight norm first and gate first; behind each name
/// the counts of barriers, shuffles, 16-byte global loads and 16-byte global stores in its PTX.
macro_rules! entries {
    ($table:ident, $f32_module:literal, $bf16_module:literal, $params:ty, $(
        $program:expr => $body:expr,
        threads $threads:literal, blocks $blocks:literal, {
            $f32:ident $f32_counts:tt;
            $f32_gate:ident $f32_gate_counts:tt;
            $bf16:ident $bf16_counts:tt;
            $bf16_gate:ident $bf16_gate_counts:tt;
        }
    )*) => {
        $(
            entry!($f32_module, $f32, $params, $body, F32Weight, false);
            entry!($f32_module, $f32_gate, $params, $body, F32Weight, true);
            entry!($bf16_module, $bf16, $params, $body, Bf16Weight, false);
            entry!($bf16_module, $bf16_gate, $params, $body, Bf16Weight, true);
        )*

        #[cfg(not(target_arch = "nvptx64"))]
        const $table: &[Kernel] = &[$(
            contract!($f32_module, $f32, $params, $body, F32Weight, false,
                $program, WeightType::F32,
                $threads, $blocks, $f32_counts),
            contract!($f32_module, $f32_gate, $params, $body, F32Weight, true,
                $program, WeightType::F32,
                $threads, $blocks, $f32_gate_counts),
            contract!($bf16_module, $bf16, $params, $body, Bf16Weight, false,
                $program, WeightType::Bf16,
                $threads, $blocks, $bf16_counts),
            contract!($bf16_module, $bf16_gate, $params, $body, Bf16Weight, true,
                $program, WeightType::Bf16,
                $threads, $blocks, $bf16_gate_counts),
        )*];
    };
}

entries! { FORWARD, "gated_forward_f32", "gated_forward_bf16", GatedForwardParams,
    Program::GatedForwardWarp { order: ORDER, lanes: 8, vectors: 1 } => forward::warp::<W, GATE_FIRST, 8, 1>, threads 256, blocks 3, {
        gated_forward_f32_l8v1 [0, 8, 6, 1];
        gated_forward_f32_l8v1_gate_first [0, 8, 6, 1];
        gated_forward_bf16_l8v1 [0, 8, 5, 1];
        gated_forward_bf16_l8v1_gate_first [0, 8, 5, 1];
    }
    Program::GatedForwardWarp { order: ORDER, lanes: 16, vectors: 1 } => forward::warp::<W, GATE_FIRST, 16, 1>, threads 256, blocks 3, {
        gated_forward_f32_l16v1 [0, 9, 6, 1];
        gated_forward_f32_l16v1_gate_first [0, 9, 6, 1];
        gated_forward_bf16_l16v1 [0, 9, 5, 1];
        gated_forward_bf16_l16v1_gate_first [0, 9, 5, 1];
    }
    Program::GatedForwardWarp { order: ORDER, lanes: 32, vectors: 1 } => forward::warp::<W, GATE_FIRST, 32, 1>, threads 256, blocks 3, {
        gated_forward_f32_l32v1 [0, 10, 6, 1];
        gated_forward_f32_l32v1_gate_first [0, 10, 6, 1];
        gated_forward_bf16_l32v1 [0, 10, 5, 1];
        gated_forward_bf16_l32v1_gate_first [0, 10, 5, 1];
    }
    Program::GatedForwardWarp { order: ORDER, lanes: 32, vectors: 2 } => forward::warp::<W, GATE_FIRST, 32, 2>, threads 256, blocks 2, {
        gated_forward_f32_l32v2 [0, 12, 12, 2];
        gated_forward_f32_l32v2_gate_first [0, 12, 12, 2];
        gated_forward_bf16_l32v2 [0, 12, 10, 2];
        gated_forward_bf16_l32v2_gate_first [0, 12, 10, 2];
    }
    Program::GatedForwardPairs { order: ORDER, lanes: 8 } => forward::pairs::<W, GATE_FIRST, 8>, threads 320, blocks 2, {
        gated_forward_f32_l8p [1, 9, 10, 2];
        gated_forward_f32_l8p_gate_first [1, 9, 10, 2];
        gated_forward_bf16_l8p [1, 9, 9, 2];
        gated_forward_bf16_l8p_gate_first [1, 9, 9, 2];
    }
    Program::GatedForwardPairs { order: ORDER, lanes: 16 } => forward::pairs::<W, GATE_FIRST, 16>, threads 320, blocks 2, {
        gated_forward_f32_l16p [1, 11, 10, 2];
        gated_forward_f32_l16p_gate_first [1, 11, 10, 2];
        gated_forward_bf16_l16p [1, 11, 9, 2];
        gated_forward_bf16_l16p_gate_first [1, 11, 9, 2];
    }
    Program::GatedForwardPairs { order: ORDER, lanes: 32 } => forward::pairs::<W, GATE_FIRST, 32>, threads 320, blocks 2, {
        gated_forward_f32_l32p [1, 13, 10, 2];
        gated_forward_f32_l32p_gate_first [1, 13, 10, 2];
        gated_forward_bf16_l32p [1, 13, 9, 2];
        gated_forward_bf16_l32p_gate_first [1, 13, 9, 2];
    }
    Program::GatedForwardFlat { order: ORDER, lanes: 8 } => forward::flat::<W, GATE_FIRST, 8>, threads 256, blocks 4, {
        gated_forward_f32_l8f [1, 9, 10, 2];
        gated_forward_f32_l8f_gate_first [1, 9, 10, 2];
        gated_forward_bf16_l8f [1, 9, 9, 2];
        gated_forward_bf16_l8f_gate_first [1, 9, 9, 2];
    }
    Program::GatedForwardFlat { order: ORDER, lanes: 16 } => forward::flat::<W, GATE_FIRST, 16>, threads 256, blocks 4, {
        gated_forward_f32_l16f [1, 11, 10, 2];
        gated_forward_f32_l16f_gate_first [1, 11, 10, 2];
        gated_forward_bf16_l16f [1, 11, 9, 2];
        gated_forward_bf16_l16f_gate_first [1, 11, 9, 2];
    }
    Program::GatedForwardFlat { order: ORDER, lanes: 32 } => forward::flat::<W, GATE_FIRST, 32>, threads 256, blocks 4, {
        gated_forward_f32_l32f [1, 13, 10, 2];
        gated_forward_f32_l32f_gate_first [1, 13, 10, 2];
        gated_forward_bf16_l32f [1, 13, 9, 2];
        gated_forward_bf16_l32f_gate_first [1, 13, 9, 2];
    }
    Program::GatedForwardBlock { order: ORDER, vectors: 1 } => forward::block::<W, GATE_FIRST, 1>, threads 512, blocks 1, {
        gated_forward_f32_b1 [2, 20, 6, 1];
        gated_forward_f32_b1_gate_first [2, 20, 6, 1];
        gated_forward_bf16_b1 [2, 20, 5, 1];
        gated_forward_bf16_b1_gate_first [2, 20, 5, 1];
    }
    Program::GatedForwardBlock { order: ORDER, vectors: 2 } => forward::block::<W, GATE_FIRST, 2>, threads 512, blocks 1, {
        gated_forward_f32_b2 [2, 20, 12, 2];
        gated_forward_f32_b2_gate_first [2, 20, 12, 2];
        gated_forward_bf16_b2 [2, 20, 10, 2];
        gated_forward_bf16_b2_gate_first [2, 20, 10, 2];
    }
}

entries! { BACKWARD, "gated_backward_f32", "gated_backward_bf16", GatedBackwardParams,
    Program::GatedBackwardWarp { order: ORDER, lanes: 8, vectors: 1 } => backward::warp::<W, GATE_FIRST, 8, 1>, threads 256, blocks 2, {
        gated_backward_f32_l8v1 [2, 15, 2, 6];
        gated_backward_f32_l8v1_gate_first [2, 15, 2, 6];
        gated_backward_bf16_l8v1 [2, 15, 1, 6];
        gated_backward_bf16_l8v1_gate_first [2, 15, 1, 6];
    }
    Program::GatedBackwardWarp { order: ORDER, lanes: 16, vectors: 1 } => backward::warp::<W, GATE_FIRST, 16, 1>, threads 256, blocks 2, {
        gated_backward_f32_l16v1 [2, 18, 2, 6];
        gated_backward_f32_l16v1_gate_first [2, 18, 2, 6];
        gated_backward_bf16_l16v1 [2, 18, 1, 6];
        gated_backward_bf16_l16v1_gate_first [2, 18, 1, 6];
    }
    Program::GatedBackwardWarp { order: ORDER, lanes: 32, vectors: 1 } => backward::warp::<W, GATE_FIRST, 32, 1>, threads 256, blocks 2, {
        gated_backward_f32_l32v1 [2, 21, 2, 6];
        gated_backward_f32_l32v1_gate_first [2, 21, 2, 6];
        gated_backward_bf16_l32v1 [2, 21, 1, 6];
        gated_backward_bf16_l32v1_gate_first [2, 21, 1, 6];
    }
    Program::GatedBackwardPairs { order: ORDER, lanes: 8 } => backward_pairs::pairs::<W, GATE_FIRST, 8>, threads 512, blocks 1, {
        gated_backward_f32_l8p [3, 24, 2, 10];
        gated_backward_f32_l8p_gate_first [3, 24, 2, 10];
        gated_backward_bf16_l8p [3, 24, 1, 10];
        gated_backward_bf16_l8p_gate_first [3, 24, 1, 10];
    }
    Program::GatedBackwardPairs { order: ORDER, lanes: 16 } => backward_pairs::pairs::<W, GATE_FIRST, 16>, threads 512, blocks 1, {
        gated_backward_f32_l16p [3, 29, 2, 10];
        gated_backward_f32_l16p_gate_first [3, 29, 2, 10];
        gated_backward_bf16_l16p [3, 29, 1, 10];
        gated_backward_bf16_l16p_gate_first [3, 29, 1, 10];
    }
    Program::GatedBackwardPairs { order: ORDER, lanes: 32 } => backward_pairs::pairs::<W, GATE_FIRST, 32>, threads 512, blocks 1, {
        gated_backward_f32_l32p [3, 34, 2, 10];
        gated_backward_f32_l32p_gate_first [3, 34, 2, 10];
        gated_backward_bf16_l32p [3, 34, 1, 10];
        gated_backward_bf16_l32p_gate_first [3, 34, 1, 10];
    }
    Program::GatedBackwardBlock { order: ORDER, vectors: 1 } => backward::block::<W, GATE_FIRST, 1>, threads 512, blocks 1, {
        gated_backward_f32_b1 [4, 42, 2, 6];
        gated_backward_f32_b1_gate_first [4, 42, 2, 6];
        gated_backward_bf16_b1 [4, 42, 1, 6];
        gated_backward_bf16_b1_gate_first [4, 42, 1, 6];
    }
    Program::GatedBackwardBlock { order: ORDER, vectors: 2 } => backward::block::<W, GATE_FIRST, 2>, threads 512, blocks 1, {
        gated_backward_f32_b2 [4, 43, 12, 12];
        gated_backward_f32_b2_gate_first [4, 43, 12, 12];
        gated_backward_bf16_b2 [4, 43, 6, 12];
        gated_backward_bf16_b2_gate_first [4, 43, 6, 12];
    }
}

#[cfg(not(target_arch = "nvptx64"))]
const COUNT: usize = FORWARD.len() + BACKWARD.len();

#[cfg(not(target_arch = "nvptx64"))]
const ALL: [Kernel; COUNT] = {
    let mut all = [FORWARD[0]; COUNT];
    let mut count = 0;
    while count < COUNT {
        all[count] = if count < FORWARD.len() {
            FORWARD[count]
        } else {
            BACKWARD[count - FORWARD.len()]
        };
        count += 1;
    }
    all
};

/// The entries of the gated form.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) const GATED: &[Kernel] = &ALL;
