//! GPU kernels of `cake-rmsnorm`, and the SIMT vocabulary they are written in.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(
        abi_ptx,
        stdarch_nvptx,
        asm_experimental_arch,
        link_llvm_intrinsics,
        core_intrinsics,
        core_float_math
    )
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

pub mod contract;
pub mod device;

pub mod arith;
pub mod backward;
pub mod bench;
pub mod entries;
pub mod format;
pub mod forward;
pub mod gated;
pub mod general;
#[cfg(not(target_arch = "nvptx64"))]
pub mod instructions;
pub mod lane_sum;
pub mod leaf;
pub mod params;
pub mod ring;
pub mod row_sum;
pub mod rows;
pub mod tree;

#[cfg(not(target_arch = "nvptx64"))]
pub use entries::KERNELS;

/// No kernel panics (the PTX lint refuses calls); a `cdylib` without `std` must still say how.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
