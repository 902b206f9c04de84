//! The vocabulary on an NVIDIA GPU.
//!
//! Barriers and shuffles are intrinsics, never inline assembly: only intrinsics carry LLVM's
//! `convergent` attribute, without which the compiler may clone them into divergent branches.
//! Loads, stores and asynchronous copies are inline PTX, because their cache hints and 32-bit
//! shared addresses have no other spelling that both compilers accept.

/// Indices and the block barrier.
pub mod thread {
    use core::arch::nvptx;

    /// The thread's index in its block.
    #[inline(always)]
    pub fn thread_idx_x() -> u32 {
        // SAFETY: reads a special register.
        unsafe { nvptx::_thread_idx_x() as u32 }
    }

    /// Threads in a block.
    #[inline(always)]
    pub fn block_dim_x() -> u32 {
        // SAFETY: reads a special register.
        unsafe { nvptx::_block_dim_x() as u32 }
    }

    /// The block's index in the grid.
    #[inline(always)]
    pub fn block_idx_x() -> u32 {
        // SAFETY: reads a special register.
        unsafe { nvptx::_block_idx_x() as u32 }
    }

    /// Blocks in the grid.
    #[inline(always)]
    pub fn grid_dim_x() -> u32 {
        // SAFETY: reads a special register.
        unsafe { nvptx::_grid_dim_x() as u32 }
    }

    #[allow(improper_ctypes)]
    unsafe extern "C" {
        // The two compilers' LLVMs know the same instruction by different names.
        #[cfg_attr(target_feature = "compute_50", link_name = "llvm.nvvm.barrier")]
        #[cfg_attr(
            not(target_feature = "compute_50"),
            link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"
        )]
        fn barrier_count(barrier: i32, threads: i32);
    }

    /// Waits until `threads` threads of the block have come to barrier `barrier`; orders shared
    /// and global memory among them.
    ///
    /// # Safety
    /// - `barrier` is from 1 to 15 and the same group of whole warps always meets there;
    ///   `threads` is the group's size, a multiple of 32.
    /// - Every thread of the group reaches this call, the same number of times.
    #[inline(always)]
    pub unsafe fn sync_group(barrier: u32, threads: u32) {
        // SAFETY: the caller's obligation is the intrinsic's.
        unsafe { barrier_count(barrier as i32, threads as i32) }
    }

    /// Waits until every thread of the block has come here; orders shared and global memory
    /// among them.
    ///
    /// # Safety
    /// - Every thread of the block reaches this call, the same number of times.
    #[inline(always)]
    pub unsafe fn sync_threads() {
        // SAFETY: the caller's obligation is the intrinsic's.
        unsafe { nvptx::_syncthreads() }
    }
}

/// Exchange between the 32 lanes of a warp.
pub mod warp {
    #[allow(improper_ctypes)]
    unsafe extern "C" {
        #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
        fn shfl_bfly(mask: i32, value: i32, lane_mask: i32, clamp: i32) -> i32;
        #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
        fn shfl_idx(mask: i32, value: i32, lane: i32, clamp: i32) -> i32;
        #[link_name = "llvm.nvvm.vote.any.sync"]
        fn vote_any(mask: i32, flag: bool) -> bool;
    }

    /// Whether some lane passes true.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together.
    #[inline(always)]
    pub unsafe fn any(flag: bool) -> bool {
        // SAFETY: the full member mask is what the caller promises.
        unsafe { vote_any(-1, flag) }
    }

    /// The value that lane `lane ^ lane_mask` passes.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together.
    #[inline(always)]
    pub unsafe fn shuffle_xor(value: f32, lane_mask: u32) -> f32 {
        // SAFETY: the full member mask is what the caller promises.
        let bits = unsafe { shfl_bfly(-1, value.to_bits() as i32, lane_mask as i32, 31) };
        f32::from_bits(bits as u32)
    }

    /// The value that lane `lane` passes.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together.
    #[inline(always)]
    pub unsafe fn shuffle_idx(value: f32, lane: u32) -> f32 {
        // SAFETY: the full member mask is what the caller promises.
        let bits = unsafe { shfl_idx(-1, value.to_bits() as i32, lane as i32, 31) };
        f32::from_bits(bits as u32)
    }

    /// `value`, which all lanes share: the assembler then knows that they do, and works out what
    /// follows from it once for the warp.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together, with the same value.
    #[inline(always)]
    pub unsafe fn uniform(value: u32) -> u32 {
        // SAFETY: the full member mask is what the caller promises.
        unsafe { shfl_idx(-1, value as i32, 0, 31) as u32 }
    }
}

/// Dynamic shared memory: 32-bit addresses in the shared window.
pub mod shared {
    use super::super::Words4;
    use core::arch::{asm, global_asm};

    global_asm!(".extern .shared .align 128 .b8 cake_dynamic_shared[];");

    /// The address of the block's dynamic shared memory (128-byte aligned).
    #[inline(always)]
    pub fn base() -> u32 {
        let address: u32;
        // SAFETY: takes an address; no memory is touched.
        unsafe {
            asm!("mov.u32 {}, cake_dynamic_shared;", out(reg32) address,
                options(pure, nomem, nostack, preserves_flags));
        }
        address
    }

    /// Stores a word.
    ///
    /// # Safety
    /// - `address` is 4-byte aligned and inside the launch's shared memory.
    /// - No other thread accesses it without a barrier in between.
    #[inline(always)]
    pub unsafe fn store_f32(address: u32, value: f32) {
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("st.shared.f32 [{}], {};", in(reg32) address, in(reg32) value,
                options(nostack, preserves_flags));
        }
    }

    /// Loads a word.
    ///
    /// # Safety
    /// - `address` is 4-byte aligned, inside the launch's shared memory, and was written.
    /// - No other thread writes it without a barrier in between.
    #[inline(always)]
    pub unsafe fn load_f32(address: u32) -> f32 {
        let value: f32;
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("ld.shared.f32 {}, [{}];", out(reg32) value, in(reg32) address,
                options(nostack, preserves_flags));
        }
        value
    }

    /// Stores 16 bytes.
    ///
    /// # Safety
    /// - `address` is 16-byte aligned and its 16 bytes are inside the launch's shared memory.
    /// - No other thread accesses them without a barrier in between.
    #[inline(always)]
    pub unsafe fn store_words4(address: u32, value: Words4) {
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("st.shared.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg32) address,
                in(reg32) value.0, in(reg32) value.1, in(reg32) value.2, in(reg32) value.3,
                options(nostack, preserves_flags));
        }
    }

    /// Loads 16 bytes.
    ///
    /// # Safety
    /// - `address` is 16-byte aligned, its 16 bytes are inside the launch's shared memory, and
    ///   were written.
    /// - No other thread writes them without a barrier in between.
    #[inline(always)]
    pub unsafe fn load_words4(address: u32) -> Words4 {
        let (a, b, c, d): (u32, u32, u32, u32);
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];",
                out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
                options(nostack, preserves_flags));
        }
        Words4(a, b, c, d)
    }
}

/// Global memory.
pub mod global {
    use super::super::Words4;
    use core::arch::asm;

    /// Loads 16 bytes that nobody reads again soon. The calling thread alone may write them, later.
    ///
    /// # Safety
    /// - `pointer` is 16-byte aligned and its 16 bytes are readable global memory.
    /// - No other thread writes them during the launch.
    #[inline(always)]
    pub unsafe fn load_once_words4(pointer: *const Words4) -> Words4 {
        let (a, b, c, d): (u32, u32, u32, u32);
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("ld.global.L1::no_allocate.v4.b32 {{{}, {}, {}, {}}}, [{}];",
                out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) pointer,
                options(pure, readonly, nostack, preserves_flags));
        }
        Words4(a, b, c, d)
    }

    /// Loads 16 bytes that nobody writes during the launch and nobody reads again soon.
    ///
    /// # Safety
    /// - `pointer` is 16-byte aligned and its 16 bytes are readable global memory.
    /// - No thread writes them during the launch.
    #[inline(always)]
    pub unsafe fn load_stream_words4(pointer: *const Words4) -> Words4 {
        let (a, b, c, d): (u32, u32, u32, u32);
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("ld.global.nc.L1::no_allocate.v4.b32 {{{}, {}, {}, {}}}, [{}];",
                out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) pointer,
                options(pure, readonly, nostack, preserves_flags));
        }
        Words4(a, b, c, d)
    }

    /// Loads 16 bytes through L1.
    ///
    /// # Safety
    /// - `pointer` is 16-byte aligned and its 16 bytes are readable global memory.
    /// - No other thread writes them without an ordering in between.
    #[inline(always)]
    pub unsafe fn load_words4(pointer: *const Words4) -> Words4 {
        let (a, b, c, d): (u32, u32, u32, u32);
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("ld.global.v4.b32 {{{}, {}, {}, {}}}, [{}];",
                out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) pointer,
                options(nostack, preserves_flags));
        }
        Words4(a, b, c, d)
    }

    /// Loads 16 bytes through L1 where `condition` holds, without a jump; zeros elsewhere.
    ///
    /// # Safety
    /// - Where `condition` holds, as [`load_words4`].
    #[inline(always)]
    pub unsafe fn load_words4_if(condition: bool, pointer: *const Words4) -> Words4 {
        let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
        // SAFETY: the caller's obligations.
        unsafe {
            asm!(
                "{{ .reg .pred condition; setp.ne.u32 condition, {condition}, 0; \
                    @condition ld.global.v4.b32 {{{a}, {b}, {c}, {d}}}, [{pointer}]; }}",
                a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d,
                condition = in(reg32) u32::from(condition), pointer = in(reg64) pointer,
                options(nostack, preserves_flags));
        }
        Words4(a, b, c, d)
    }

    /// What L2 is told of memory that is read.
    #[derive(Clone, Copy, Debug)]
    pub struct CachePolicy(pub(super) u64);

    impl CachePolicy {
        /// Where `keep` is not 0, other lines are evicted first; else none is preferred.
        #[inline(always)]
        #[must_use]
        pub fn new(keep: u32) -> Self {
            let policy: u64;
            // In one block, so that no branch comes of it.
            // SAFETY: makes a value, nothing else.
            unsafe {
                asm!(
                    "{{ .reg .pred keep; .reg .b64 last, normal; setp.ne.u32 keep, {keep}, 0; \
                        createpolicy.fractional.L2::evict_last.b64 last, 1.0; \
                        createpolicy.fractional.L2::evict_normal.b64 normal, 1.0; \
                        selp.b64 {policy}, last, normal, keep; }}",
                    keep = in(reg32) keep, policy = out(reg64) policy,
                    options(pure, nomem, nostack, preserves_flags));
            }
            Self(policy)
        }
    }

    /// Loads 16 bytes through L1, under a policy for L2.
    ///
    /// # Safety
    /// - As [`load_words4`].
    #[inline(always)]
    pub unsafe fn load_words4_by(policy: CachePolicy, pointer: *const Words4) -> Words4 {
        let (a, b, c, d): (u32, u32, u32, u32);
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("ld.global.L2::cache_hint.v4.b32 {{{}, {}, {}, {}}}, [{}], {};",
                out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) pointer,
                in(reg64) policy.0, options(nostack, preserves_flags));
        }
        Words4(a, b, c, d)
    }

    /// Stores 16 bytes that nobody reads again soon.
    ///
    /// # Safety
    /// - `pointer` is 16-byte aligned and its 16 bytes are writable global memory.
    /// - No other thread accesses them without an ordering in between.
    #[inline(always)]
    pub unsafe fn store_stream_words4(pointer: *mut Words4, value: Words4) {
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("st.global.cs.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg64) pointer,
                in(reg32) value.0, in(reg32) value.1, in(reg32) value.2, in(reg32) value.3,
                options(nostack, preserves_flags));
        }
    }

    /// Stores 16 bytes.
    ///
    /// # Safety
    /// - `pointer` is 16-byte aligned and its 16 bytes are writable global memory.
    /// - No other thread accesses them without an ordering in between.
    #[inline(always)]
    pub unsafe fn store_words4(pointer: *mut Words4, value: Words4) {
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("st.global.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg64) pointer,
                in(reg32) value.0, in(reg32) value.1, in(reg32) value.2, in(reg32) value.3,
                options(nostack, preserves_flags));
        }
    }

    /// Loads one 16-bit value.
    ///
    /// # Safety
    /// - `pointer` is 2-byte aligned readable global memory.
    /// - No other thread writes it without an ordering in between.
    #[inline(always)]
    pub unsafe fn load_u16(pointer: *const u16) -> u16 {
        let value: u16;
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("ld.global.u16 {}, [{}];", out(reg16) value, in(reg64) pointer,
                options(nostack, preserves_flags));
        }
        value
    }

    /// Stores one 16-bit value.
    ///
    /// # Safety
    /// - `pointer` is 2-byte aligned writable global memory.
    /// - No other thread accesses it without an ordering in between.
    #[inline(always)]
    pub unsafe fn store_u16(pointer: *mut u16, value: u16) {
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("st.global.u16 [{}], {};", in(reg64) pointer, in(reg16) value,
                options(nostack, preserves_flags));
        }
    }

    /// Loads one FP32 value.
    ///
    /// # Safety
    /// - `pointer` is 4-byte aligned readable global memory.
    /// - No other thread writes it without an ordering in between.
    #[inline(always)]
    pub unsafe fn load_f32(pointer: *const f32) -> f32 {
        let value: f32;
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("ld.global.f32 {}, [{}];", out(reg32) value, in(reg64) pointer,
                options(nostack, preserves_flags));
        }
        value
    }

    /// Stores one FP32 value.
    ///
    /// # Safety
    /// - `pointer` is 4-byte aligned writable global memory.
    /// - No other thread accesses it without an ordering in between.
    #[inline(always)]
    pub unsafe fn store_f32(pointer: *mut f32, value: f32) {
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("st.global.f32 [{}], {};", in(reg64) pointer, in(reg32) value,
                options(nostack, preserves_flags));
        }
    }
}

/// Correctly rounded FP32 operations, and conversion of BF16 and FP16.
pub mod math {
    use core::arch::asm;

    /// a·b + c with one rounding (to nearest even).
    #[inline(always)]
    pub fn fma(a: f32, b: f32, c: f32) -> f32 {
        core::intrinsics::fmaf32(a, b, c)
    }

    /// a·b, exact. One instruction: of a sign extension that moved out of a loop, the compiler
    /// would make a 64-bit product.
    #[inline(always)]
    pub fn wide_product(a: i32, b: i32) -> i64 {
        let product: i64;
        // SAFETY: register arithmetic.
        unsafe {
            asm!("mul.wide.s32 {}, {}, {};", out(reg64) product, in(reg32) a, in(reg32) b,
                options(pure, nomem, nostack, preserves_flags));
        }
        product
    }

    /// Square root, rounded to nearest even.
    #[inline(always)]
    pub fn sqrt(x: f32) -> f32 {
        core::f32::math::sqrt(x)
    }

    /// The smaller of |`x`| and `limit`; not a number where `x` is none.
    #[inline(always)]
    pub fn magnitude_at_most(x: f32, limit: f32) -> f32 {
        let smaller: f32;
        // SAFETY: register arithmetic.
        unsafe {
            asm!("abs.f32 {0}, {1}; min.NaN.f32 {0}, {0}, {2};",
                out(reg32) smaller, in(reg32) x, in(reg32) limit,
                options(pure, nomem, nostack, preserves_flags));
        }
        smaller
    }

    /// The larger of `x` and `limit`; `limit` where `x` is not a number.
    #[inline(always)]
    pub fn at_least(x: f32, limit: f32) -> f32 {
        let larger: f32;
        // SAFETY: register arithmetic.
        unsafe {
            asm!("max.f32 {}, {}, {};", out(reg32) larger, in(reg32) x, in(reg32) limit,
                options(pure, nomem, nostack, preserves_flags));
        }
        larger
    }

    /// Two values rounded to BF16 (nearest even; NaN becomes 0x7fff): `low` in bits 0 to 15.
    #[inline(always)]
    pub fn bf16x2(low: f32, high: f32) -> u32 {
        let packed: u32;
        // SAFETY: register arithmetic.
        unsafe {
            asm!("cvt.rn.bf16x2.f32 {}, {}, {};", out(reg32) packed, in(reg32) high,
                in(reg32) low, options(pure, nomem, nostack, preserves_flags));
        }
        packed
    }

    /// Two values rounded to FP16 (nearest even, overflow to infinity, subnormals kept; NaN
    /// becomes 0x7fff): `low` in bits 0 to 15.
    #[inline(always)]
    pub fn f16x2(low: f32, high: f32) -> u32 {
        let packed: u32;
        // SAFETY: register arithmetic.
        unsafe {
            asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(reg32) packed, in(reg32) high,
                in(reg32) low, options(pure, nomem, nostack, preserves_flags));
        }
        packed
    }

    /// Widens an FP16 value; exact, but for the bits of a NaN.
    #[inline(always)]
    pub fn widen_f16(bits: u16) -> f32 {
        let value: f32;
        // SAFETY: register arithmetic.
        unsafe {
            asm!("cvt.f32.f16 {}, {};", out(reg32) value, in(reg16) bits,
                options(pure, nomem, nostack, preserves_flags));
        }
        value
    }
}

/// Advice to the compiler.
pub mod hint {
    use core::arch::asm;

    /// `word`, as if freshly loaded: what was derived from it before is not kept in registers
    /// for later uses, and a loop whose counter goes through it is not unrolled.
    #[inline(always)]
    pub fn forget(word: u32) -> u32 {
        let mut word = word;
        // SAFETY: no instruction.
        unsafe { asm!("/* {} */", inout(reg32) word, options(nomem, nostack, preserves_flags)) };
        word
    }
}

/// Asynchronous copies of single words from global to shared memory (sm_80 and newer).
pub mod async_copy {
    use super::super::Words4;
    use super::global::CachePolicy;
    use core::arch::asm;

    /// Starts a copy of 16 bytes, past L1 and under a policy for L2, in the thread's current group.
    ///
    /// # Safety
    /// - `destination` and `source` are 16-byte aligned and valid for 16 bytes; nobody writes
    ///   the source until the thread has waited for the group, nor any other thread later.
    /// - Nobody accesses the destination until the thread has waited for the group; other
    ///   threads, until a barrier after that.
    #[inline(always)]
    pub unsafe fn copy_words4(policy: CachePolicy, destination: u32, source: *const Words4) {
        // The mask changes no address of shared memory, of which a block has less than 256 KiB. It
        // keeps the address in a thread's register: where it is a sum with a uniform register, ptxas
        // up to 13.0 and the compilers of drivers of that time encode both that and the policy wrong,
        // and a GPU refuses the instruction.
        // SAFETY: the caller's obligations.
        unsafe {
            asm!(
                "{{ .reg .b32 place; and.b32 place, {destination}, 0x3ffff; \
                    cp.async.cg.shared.global.L2::cache_hint [place], [{source}], 16, {policy}; }}",
                destination = in(reg32) destination, source = in(reg64) source,
                policy = in(reg64) policy.0, options(nostack, preserves_flags));
        }
    }

    /// Starts a copy of 4 bytes in the thread's current group.
    ///
    /// # Safety
    /// - As [`copy_words4`], for 4 bytes.
    #[inline(always)]
    pub unsafe fn copy_f32(destination: u32, source: *const f32) {
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("cp.async.ca.shared.global [{}], [{}], 4;", in(reg32) destination,
                in(reg64) source, options(nostack, preserves_flags));
        }
    }

    /// Closes the thread's current group.
    #[inline(always)]
    pub fn commit_group() {
        // SAFETY: bookkeeping of the thread's own copies.
        unsafe { asm!("cp.async.commit_group;", options(nostack, preserves_flags)) }
    }

    /// Waits until at most `PENDING` of the thread's groups are under way: the others' bytes
    /// are visible to the thread.
    #[inline(always)]
    pub fn wait_group<const PENDING: u32>() {
        // SAFETY: waits for the thread's own copies.
        unsafe {
            asm!("cp.async.wait_group {};", const PENDING, options(nostack, preserves_flags));
        }
    }
}

/// mbarriers in shared memory: completion of bulk asynchronous copies (sm_90 and newer).
pub mod mbarrier {
    use core::arch::asm;

    /// Initialises the mbarrier at shared address `address` for `arrivals` arrivals a phase.
    ///
    /// # Safety
    /// - `address` is 8-byte aligned shared memory that holds no live mbarrier.
    #[inline(always)]
    pub unsafe fn init(address: u32, arrivals: u32) {
        // SAFETY: the caller's obligation.
        unsafe {
            asm!("mbarrier.init.shared.b64 [{}], {};", in(reg32) address, in(reg32) arrivals,
                options(nostack, preserves_flags));
        }
    }

    /// Makes initialisations visible to the asynchronous proxy; before the block barrier that
    /// precedes the first copy.
    #[inline(always)]
    pub fn fence_init() {
        // SAFETY: a fence.
        unsafe {
            asm!(
                "fence.mbarrier_init.release.cluster;",
                options(nostack, preserves_flags)
            );
        }
    }

    /// One arrival that also announces `bytes` more bytes for the current phase.
    ///
    /// # Safety
    /// - `address` holds a live mbarrier.
    #[inline(always)]
    pub unsafe fn arrive_expect_tx(address: u32, bytes: u32) {
        // SAFETY: the caller's obligation.
        unsafe {
            asm!("{{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [{}], {}; }}",
                in(reg32) address, in(reg32) bytes, options(nostack, preserves_flags));
        }
    }

    /// One arrival.
    ///
    /// # Safety
    /// - `address` holds a live mbarrier.
    #[inline(always)]
    pub unsafe fn arrive(address: u32) {
        // SAFETY: the caller's obligation.
        unsafe {
            asm!("{{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [{}]; }}",
                in(reg32) address, options(nostack, preserves_flags));
        }
    }

    /// Waits until the phase of parity `parity` has completed.
    ///
    /// # Safety
    /// - `address` holds a live mbarrier whose phase can complete without this thread.
    #[inline(always)]
    pub unsafe fn wait_parity(address: u32, parity: u32) {
        let mut done: u32 = 0;
        while done == 0 {
            // SAFETY: the caller's obligation.
            unsafe {
                asm!("{{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [{}], {}; \
                      selp.u32 {}, 1, 0, p; }}",
                    in(reg32) address, in(reg32) parity, out(reg32) done,
                    options(nostack, preserves_flags));
            }
        }
    }
}

/// Bulk asynchronous copies between global and shared memory (sm_90 and newer).
pub mod bulk {
    use core::arch::asm;

    /// Starts a copy of `bytes` bytes from global `source` to shared `destination`; its bytes
    /// count towards the current phase of `barrier`.
    ///
    /// # Safety
    /// - Both addresses are 16-byte aligned, `bytes` is a positive multiple of 16, and both
    ///   ranges are valid.
    /// - `barrier` holds a live mbarrier whose phase expects the bytes.
    /// - No thread reads or writes the destination until the phase completes; earlier generic
    ///   reads of it are ordered before by a barrier.
    #[inline(always)]
    pub unsafe fn load(destination: u32, source: *const u8, bytes: u32, barrier: u32) {
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];",
                in(reg32) destination, in(reg64) source, in(reg32) bytes, in(reg32) barrier,
                options(nostack, preserves_flags));
        }
    }

    /// Starts a copy of `bytes` bytes from shared `source` to global `destination`, in the
    /// thread's current bulk group.
    ///
    /// # Safety
    /// - Both addresses are 16-byte aligned, `bytes` is a positive multiple of 16, and both
    ///   ranges are valid.
    /// - The source was made visible to the asynchronous proxy ([`fence_shared`] by each
    ///   writer, then a barrier) and stays unchanged until [`wait_read`].
    #[inline(always)]
    pub unsafe fn store(destination: *mut u8, source: u32, bytes: u32) {
        // SAFETY: the caller's obligations.
        unsafe {
            asm!("cp.async.bulk.global.shared::cta.bulk_group [{}], [{}], {};",
                in(reg64) destination, in(reg32) source, in(reg32) bytes,
                options(nostack, preserves_flags));
        }
    }

    /// Closes the thread's current bulk group.
    #[inline(always)]
    pub fn commit_group() {
        // SAFETY: bookkeeping of the thread's own copies.
        unsafe {
            asm!(
                "cp.async.bulk.commit_group;",
                options(nostack, preserves_flags)
            )
        }
    }

    /// Waits until at most `PENDING` of the thread's bulk groups still read shared memory.
    #[inline(always)]
    pub fn wait_read<const PENDING: u32>() {
        // SAFETY: waits for the thread's own copies.
        unsafe {
            asm!("cp.async.bulk.wait_group.read {};", const PENDING,
                options(nostack, preserves_flags));
        }
    }

    /// Orders the thread's generic accesses of shared memory before later accesses of the
    /// asynchronous proxy.
    #[inline(always)]
    pub fn fence_shared() {
        // SAFETY: a fence.
        unsafe {
            asm!(
                "fence.proxy.async.shared::cta;",
                options(nostack, preserves_flags)
            )
        }
    }
}

/// Dependent launch: a kernel that starts while its predecessor drains (sm_90 and newer).
pub mod dependent {
    #[cfg(not(cake_sm = "80"))]
    use core::arch::asm;

    /// Waits until the preceding kernel of the stream has completed and its writes are visible.
    /// Nothing before sm_90, where kernels of a stream never overlap.
    #[inline(always)]
    pub fn wait() {
        #[cfg(not(cake_sm = "80"))]
        #[cfg(not(cake_sm = "80"))]
        // SAFETY: a wait.
        unsafe {
            asm!("griddepcontrol.wait;", options(nostack, preserves_flags));
        }
    }

    /// Lets the following kernel of the stream start once every block has called this or ended.
    /// Nothing before sm_90.
    #[inline(always)]
    pub fn launch_dependents() {
        #[cfg(not(cake_sm = "80"))]
        #[cfg(not(cake_sm = "80"))]
        // SAFETY: a hint to the scheduler.
        unsafe {
            asm!(
                "griddepcontrol.launch_dependents;",
                options(nostack, preserves_flags)
            );
        }
    }
}
