//! The vocabulary on the CPU simulator: the same signatures, each a call into
//! `cake-rmsnorm-simt`. Outside a simulated launch every function except those of [`math`]
//! panics.
//!
//! The obligations of the unsafe functions are those of `nvptx`; the simulator checks them.

/// Indices and the block barrier.
pub mod thread {
    use cake_rmsnorm_simt::device::thread;

    /// The thread's index in its block.
    #[inline]
    pub fn thread_idx_x() -> u32 {
        thread::thread_idx_x()
    }

    /// Threads in a block.
    #[inline]
    pub fn block_dim_x() -> u32 {
        thread::block_dim_x()
    }

    /// The block's index in the grid.
    #[inline]
    pub fn block_idx_x() -> u32 {
        thread::block_idx_x()
    }

    /// Blocks in the grid.
    #[inline]
    pub fn grid_dim_x() -> u32 {
        thread::grid_dim_x()
    }

    /// Waits until `threads` threads of the block have come to barrier `barrier`; orders shared
    /// and global memory among them.
    ///
    /// # Safety
    /// - `barrier` is from 1 to 15 and the same group of whole warps always meets there;
    ///   `threads` is the group's size, a multiple of 32.
    /// - Every thread of the group reaches this call, the same number of times.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn sync_group(barrier: u32, threads: u32) {
        thread::sync_named(barrier, threads);
    }

    /// Waits until every thread of the block has come here; orders shared and global memory
    /// among them.
    ///
    /// # Safety
    /// - Every thread of the block reaches this call, the same number of times.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn sync_threads() {
        thread::sync_threads();
    }
}

/// Exchange between the 32 lanes of a warp.
pub mod warp {
    use cake_rmsnorm_simt::device::warp;

    /// The value that lane `lane ^ lane_mask` passes.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn shuffle_xor(value: f32, lane_mask: u32) -> f32 {
        f32::from_bits(warp::shuffle_xor(value.to_bits(), lane_mask))
    }

    /// The value that lane `lane` passes.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn shuffle_idx(value: f32, lane: u32) -> f32 {
        f32::from_bits(warp::shuffle_idx(value.to_bits(), lane))
    }

    /// `value`, which all lanes share.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together, with the same value.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn uniform(value: u32) -> u32 {
        warp::shuffle_idx(value, 0)
    }

    /// Whether some lane passes true.
    ///
    /// # Safety
    /// - All 32 lanes of the warp reach this call together.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn any(flag: bool) -> bool {
        warp::any(flag)
    }
}

/// Dynamic shared memory: 32-bit addresses in the shared window.
pub mod shared {
    use super::super::Words4;
    use cake_rmsnorm_simt::device::shared;

    /// The address of the block's dynamic shared memory (128-byte aligned).
    #[inline]
    pub fn base() -> u32 {
        shared::base()
    }

    /// Stores a word.
    ///
    /// # Safety
    /// - `address` is 4-byte aligned and inside the launch's shared memory.
    /// - No other thread accesses it without a barrier in between.
    #[inline]
    #[track_caller]
    pub unsafe fn store_f32(address: u32, value: f32) {
        // SAFETY: the caller's obligations.
        unsafe { shared::store(address, value) }
    }

    /// Loads a word.
    ///
    /// # Safety
    /// - `address` is 4-byte aligned, inside the launch's shared memory, and was written.
    /// - No other thread writes it without a barrier in between.
    #[inline]
    #[track_caller]
    pub unsafe fn load_f32(address: u32) -> f32 {
        // SAFETY: the caller's obligations.
        unsafe { shared::load(address) }
    }

    /// Stores 16 bytes.
    ///
    /// # Safety
    /// - `address` is 16-byte aligned and its 16 bytes are inside the launch's shared memory.
    /// - No other thread accesses them without a barrier in between.
    #[inline]
    #[track_caller]
    pub unsafe fn store_words4(address: u32, value: Words4) {
        // SAFETY: the caller's obligations.
        unsafe { shared::store(address, [value.0, value.1, value.2, value.3]) }
    }

    /// Loads 16 bytes.
    ///
    /// # Safety
    /// - `address` is 16-byte aligned, its 16 bytes are inside the launch's shared memory, and
    ///   were written.
    /// - No other thread writes them without a barrier in between.
    #[inline]
    #[track_caller]
    pub unsafe fn load_words4(address: u32) -> Words4 {
        // SAFETY: the caller's obligations.
        let [a, b, c, d] = unsafe { shared::load(address) };
        Words4(a, b, c, d)
    }
}

/// Global memory.
pub mod global {
    use super::super::Words4;
    use cake_rmsnorm_simt::device::global;

    /// Loads 16 bytes that nobody writes during the launch and nobody reads again soon.
    ///
    /// # Safety
    /// - `pointer` is 16-byte aligned and its 16 bytes are readable global memory.
    /// - No thread writes them during the launch.
    #[inline]
    #[track_caller]
    pub unsafe fn load_stream_words4(pointer: *const Words4) -> Words4 {
        // SAFETY: the caller's obligations.
        let [a, b, c, d] = unsafe { global::load_constant(pointer.cast::<[u32; 4]>()) };
        Words4(a, b, c, d)
    }

    /// Loads 16 bytes that nobody reads again soon. The calling thread alone may write them, later.
    ///
    /// # Safety
    /// - `pointer` is 16-byte aligned and its 16 bytes are readable global memory.
    /// - No other thread writes them during the launch.
    #[inline]
    #[track_caller]
    pub unsafe fn load_once_words4(pointer: *const Words4) -> Words4 {
        // SAFETY: the caller's obligations.
        unsafe { load_words4(pointer) }
    }

    /// Loads 16 bytes through L1.
    ///
    /// # Safety
    /// - `pointer` is 16-byte aligned and its 16 bytes are readable global memory.
    /// - No other thread writes them without an ordering in between.
    #[inline]
    #[track_caller]
    pub unsafe fn load_words4(pointer: *const Words4) -> Words4 {
        // SAFETY: the caller's obligations.
        let [a, b, c, d] = unsafe { global::load(pointer.cast::<[u32; 4]>()) };
        Words4(a, b, c, d)
    }

    /// Loads 16 bytes through L1 where `condition` holds; zeros elsewhere.
    ///
    /// # Safety
    /// - Where `condition` holds, as [`load_words4`].
    #[inline]
    #[track_caller]
    pub unsafe fn load_words4_if(condition: bool, pointer: *const Words4) -> Words4 {
        if condition {
            // SAFETY: the caller's obligations.
            unsafe { load_words4(pointer) }
        } else {
            Words4(0, 0, 0, 0)
        }
    }

    /// What L2 is told of memory that is read: here nothing.
    #[derive(Clone, Copy, Debug)]
    pub struct CachePolicy;

    impl CachePolicy {
        /// Where `keep` is not 0, other lines are evicted first; else none is preferred.
        #[inline]
        #[must_use]
        pub fn new(_keep: u32) -> Self {
            Self
        }
    }

    /// Loads 16 bytes through L1, under a policy for L2.
    ///
    /// # Safety
    /// - As [`load_words4`].
    #[inline]
    #[track_caller]
    pub unsafe fn load_words4_by(_policy: CachePolicy, pointer: *const Words4) -> Words4 {
        // SAFETY: the caller's obligations.
        unsafe { load_words4(pointer) }
    }

    /// Stores 16 bytes that nobody reads again soon.
    ///
    /// # Safety
    /// - `pointer` is 16-byte aligned and its 16 bytes are writable global memory.
    /// - No other thread accesses them without an ordering in between.
    #[inline]
    #[track_caller]
    pub unsafe fn store_stream_words4(pointer: *mut Words4, value: Words4) {
        // SAFETY: the caller's obligations.
        unsafe { store_words4(pointer, value) }
    }

    /// Stores 16 bytes.
    ///
    /// # Safety
    /// - `pointer` is 16-byte aligned and its 16 bytes are writable global memory.
    /// - No other thread accesses them without an ordering in between.
    #[inline]
    #[track_caller]
    pub unsafe fn store_words4(pointer: *mut Words4, value: Words4) {
        let words = [value.0, value.1, value.2, value.3];
        // SAFETY: the caller's obligations.
        unsafe { global::store(pointer.cast::<[u32; 4]>(), words) }
    }

    /// Loads one 16-bit value.
    ///
    /// # Safety
    /// - `pointer` is 2-byte aligned readable global memory.
    /// - No other thread writes it without an ordering in between.
    #[inline]
    #[track_caller]
    pub unsafe fn load_u16(pointer: *const u16) -> u16 {
        // SAFETY: the caller's obligations.
        unsafe { global::load(pointer) }
    }

    /// Stores one 16-bit value.
    ///
    /// # Safety
    /// - `pointer` is 2-byte aligned writable global memory.
    /// - No other thread accesses it without an ordering in between.
    #[inline]
    #[track_caller]
    pub unsafe fn store_u16(pointer: *mut u16, value: u16) {
        // SAFETY: the caller's obligations.
        unsafe { global::store(pointer, value) }
    }

    /// Loads one FP32 value.
    ///
    /// # Safety
    /// - `pointer` is 4-byte aligned readable global memory.
    /// - No other thread writes it without an ordering in between.
    #[inline]
    #[track_caller]
    pub unsafe fn load_f32(pointer: *const f32) -> f32 {
        // SAFETY: the caller's obligations.
        unsafe { global::load(pointer) }
    }

    /// Stores one FP32 value.
    ///
    /// # Safety
    /// - `pointer` is 4-byte aligned writable global memory.
    /// - No other thread accesses it without an ordering in between.
    #[inline]
    #[track_caller]
    pub unsafe fn store_f32(pointer: *mut f32, value: f32) {
        // SAFETY: the caller's obligations.
        unsafe { global::store(pointer, value) }
    }
}

/// Correctly rounded FP32 operations, and conversion of BF16 and FP16.
pub mod math {
    /// a·b + c with one rounding (to nearest even).
    #[inline(always)]
    pub fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    /// a·b, exact.
    #[inline(always)]
    pub fn wide_product(a: i32, b: i32) -> i64 {
        i64::from(a) * i64::from(b)
    }

    /// Square root, rounded to nearest even.
    #[inline(always)]
    pub fn sqrt(x: f32) -> f32 {
        x.sqrt()
    }

    /// The smaller of |`x`| and `limit`; not a number where `x` is none.
    #[inline(always)]
    pub fn magnitude_at_most(x: f32, limit: f32) -> f32 {
        if limit < x.abs() { limit } else { x.abs() }
    }

    /// The larger of `x` and `limit`; `limit` where `x` is not a number.
    #[inline(always)]
    pub fn at_least(x: f32, limit: f32) -> f32 {
        if x > limit { x } else { limit }
    }

    /// Two values rounded to BF16 (nearest even; NaN becomes 0x7fff): `low` in bits 0 to 15.
    #[inline(always)]
    pub fn bf16x2(low: f32, high: f32) -> u32 {
        bf16(low) | bf16(high) << 16
    }

    #[inline(always)]
    fn bf16(x: f32) -> u32 {
        if x.is_nan() {
            return 0x7fff;
        }
        // Half a unit in the last place, less one when the kept part is even: ties go to even.
        // A carry past the largest finite value gives infinity; infinity itself stays.
        let bits = x.to_bits();
        (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    }

    /// Two values rounded to FP16 (nearest even, overflow to infinity, subnormals kept; NaN
    /// becomes 0x7fff): `low` in bits 0 to 15.
    #[inline(always)]
    pub fn f16x2(low: f32, high: f32) -> u32 {
        f16(low) | f16(high) << 16
    }

    /// 2¹⁶, and 2⁻¹⁴: the smallest normal FP16 value.
    const TWO_16: u32 = (127 + 16) << 23;
    const TWO_MINUS_14: u32 = (127 - 14) << 23;

    #[inline(always)]
    fn f16(x: f32) -> u32 {
        let magnitude = x.abs().to_bits();
        let sign = (x.to_bits() ^ magnitude) >> 16;
        let rounded = if x.is_nan() {
            return 0x7fff;
        } else if magnitude >= TWO_16 {
            0x7c00
        } else if magnitude < TWO_MINUS_14 {
            // The unit in the last place of ½ is FP16's smallest value: the addition rounds.
            (x.abs() + 0.5).to_bits() - 0.5f32.to_bits()
        } else {
            // As in `bf16`; the exponent changes its bias. 65,520 and more carry to infinity.
            (magnitude + 0xfff + (magnitude >> 13 & 1) - ((127 - 15) << 23)) >> 13
        };
        rounded | sign
    }

    /// Widens an FP16 value; exact, but for the bits of a NaN.
    #[inline(always)]
    pub fn widen_f16(bits: u16) -> f32 {
        let sign = u32::from(bits & 0x8000) << 16;
        let magnitude = u32::from(bits & 0x7fff) << 13;
        // Read as FP32, the bits are 2⁻¹¹² times the value, subnormals included.
        let value = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
        let special = if bits & 0x7c00 == 0x7c00 {
            0x7f80_0000
        } else {
            0
        };
        f32::from_bits(value.to_bits() | special | sign)
    }
}

/// Advice to the compiler.
pub mod hint {
    /// `word`.
    #[inline(always)]
    pub fn forget(word: u32) -> u32 {
        word
    }
}

/// Asynchronous copies of single words from global to shared memory (sm_80 and newer).
pub mod async_copy {
    use super::super::Words4;
    use super::global::CachePolicy;
    use cake_rmsnorm_simt::device::small_copy;

    /// Starts a copy of 16 bytes, past L1 and under a policy for L2, in the thread's current group.
    ///
    /// # Safety
    /// - `destination` and `source` are 16-byte aligned and valid for 16 bytes; nobody writes
    ///   the source until the thread has waited for the group, nor any other thread later.
    /// - Nobody accesses the destination until the thread has waited for the group; other
    ///   threads, until a barrier after that.
    #[inline]
    #[track_caller]
    pub unsafe fn copy_words4(_policy: CachePolicy, destination: u32, source: *const Words4) {
        // SAFETY: the caller's obligations.
        unsafe { small_copy::copy(destination, source.cast::<[u32; 4]>()) }
    }

    /// Starts a copy of 4 bytes in the thread's current group.
    ///
    /// # Safety
    /// - As [`copy_words4`], for 4 bytes.
    #[inline]
    #[track_caller]
    pub unsafe fn copy_f32(destination: u32, source: *const f32) {
        // SAFETY: the caller's obligations.
        unsafe { small_copy::copy_constant(destination, source) }
    }

    /// Closes the thread's current group.
    #[inline]
    #[track_caller]
    pub fn commit_group() {
        small_copy::commit_group();
    }

    /// Waits until at most `PENDING` of the thread's groups are under way: the others' bytes
    /// are visible to the thread.
    #[inline]
    #[track_caller]
    pub fn wait_group<const PENDING: u32>() {
        small_copy::wait::<PENDING>();
    }
}

/// mbarriers in shared memory: completion of bulk asynchronous copies (sm_90 and newer).
pub mod mbarrier {
    use cake_rmsnorm_simt::device::mbarrier;

    /// Initialises the mbarrier at shared address `address` for `arrivals` arrivals a phase.
    ///
    /// # Safety
    /// - `address` is 8-byte aligned shared memory that holds no live mbarrier.
    #[inline]
    #[track_caller]
    pub unsafe fn init(address: u32, arrivals: u32) {
        mbarrier::init(address, arrivals);
    }

    /// Makes initialisations visible to the asynchronous proxy; before the block barrier that
    /// precedes the first copy.
    #[inline]
    #[track_caller]
    pub fn fence_init() {
        mbarrier::fence_init();
    }

    /// One arrival that also announces `bytes` more bytes for the current phase.
    ///
    /// # Safety
    /// - `address` holds a live mbarrier.
    #[inline]
    #[track_caller]
    pub unsafe fn arrive_expect_tx(address: u32, bytes: u32) {
        mbarrier::arrive_expect_tx(address, bytes);
    }

    /// One arrival.
    ///
    /// # Safety
    /// - `address` holds a live mbarrier.
    #[inline]
    #[track_caller]
    pub unsafe fn arrive(address: u32) {
        mbarrier::arrive(address);
    }

    /// Waits until the phase of parity `parity` has completed.
    ///
    /// # Safety
    /// - `address` holds a live mbarrier whose phase can complete without this thread.
    #[inline]
    #[track_caller]
    pub unsafe fn wait_parity(address: u32, parity: u32) {
        mbarrier::wait_parity(address, parity);
    }
}

/// Bulk asynchronous copies between global and shared memory (sm_90 and newer).
pub mod bulk {
    use cake_rmsnorm_simt::device::bulk;

    /// Starts a copy of `bytes` bytes from global `source` to shared `destination`; its bytes
    /// count towards the current phase of `barrier`.
    ///
    /// # Safety
    /// - Both addresses are 16-byte aligned, `bytes` is a positive multiple of 16, and both
    ///   ranges are valid.
    /// - `barrier` holds a live mbarrier whose phase expects the bytes.
    /// - No thread reads or writes the destination until the phase completes; earlier generic
    ///   reads of it are ordered before by a barrier.
    #[inline]
    #[track_caller]
    pub unsafe fn load(destination: u32, source: *const u8, bytes: u32, barrier: u32) {
        // SAFETY: the caller's obligations.
        unsafe { bulk::load(destination, source, bytes, barrier) }
    }

    /// Starts a copy of `bytes` bytes from shared `source` to global `destination`, in the
    /// thread's current bulk group.
    ///
    /// # Safety
    /// - Both addresses are 16-byte aligned, `bytes` is a positive multiple of 16, and both
    ///   ranges are valid.
    /// - The source was made visible to the asynchronous proxy ([`fence_shared`] by each
    ///   writer, then a barrier) and stays unchanged until [`wait_read`].
    #[inline]
    #[track_caller]
    pub unsafe fn store(destination: *mut u8, source: u32, bytes: u32) {
        // SAFETY: the caller's obligations.
        unsafe { bulk::store(destination, source, bytes) }
    }

    /// Closes the thread's current bulk group.
    #[inline]
    #[track_caller]
    pub fn commit_group() {
        bulk::commit_group();
    }

    /// Waits until at most `PENDING` of the thread's bulk groups still read shared memory.
    #[inline]
    #[track_caller]
    pub fn wait_read<const PENDING: u32>() {
        bulk::wait_read::<PENDING>();
    }

    /// Orders the thread's generic accesses of shared memory before later accesses of the
    /// asynchronous proxy.
    #[inline]
    #[track_caller]
    pub fn fence_shared() {
        bulk::fence_shared();
    }
}

/// Dependent launch: a kernel that starts while its predecessor drains (sm_90 and newer).
pub mod dependent {
    use cake_rmsnorm_simt::device::dependent;

    /// Waits until the preceding kernel of the stream has completed and its writes are visible.
    #[inline]
    #[track_caller]
    pub fn wait() {
        dependent::wait();
    }

    /// Lets the following kernel of the stream start once every block has called this or ended.
    #[inline]
    #[track_caller]
    pub fn launch_dependents() {
        dependent::launch_dependents();
    }
}

#[cfg(test)]
mod tests {
    use super::math::{bf16x2, f16x2, widen_f16};

    #[test]
    fn bf16_rounds_to_nearest_even() {
        let low = |x: f32| bf16x2(x, 0.0);
        let bits = f32::from_bits;
        assert_eq!(low(1.0), 0x3f80);
        assert_eq!(
            low(bits(0x3f80_8000)),
            0x3f80,
            "a tie goes to the even neighbour below"
        );
        assert_eq!(
            low(bits(0x3f81_8000)),
            0x3f82,
            "a tie goes to the even neighbour above"
        );
        assert_eq!(low(bits(0x3f80_8001)), 0x3f81);
        assert_eq!(low(bits(0x3f80_7fff)), 0x3f80);
        assert_eq!(low(f32::MAX), 0x7f80, "overflow gives infinity");
        assert_eq!(low(f32::NEG_INFINITY), 0xff80);
        assert_eq!(low(bits(0x0001_8000)), 0x0002, "subnormals are kept");
        assert_eq!(low(-0.0), 0x8000);
        assert_eq!(low(bits(0xffff_ffff)), 0x7fff, "NaN is canonical");
        assert_eq!(low(bits(0x7f80_0001)), 0x7fff);
        assert_eq!(bf16x2(1.0, -2.0), 0xc000_3f80);
    }

    /// Each FP16 value from its parts, and what is half a unit above it, and just beside that.
    #[test]
    fn fp16_rounds_to_nearest_even() {
        let narrow = |x: f64| {
            // Values with at most 24 bits: nothing is rounded here.
            assert_eq!(f64::from(x as f32), x);
            f16x2(x as f32, 0.0)
        };
        for bits in 0..0x7c00u16 {
            let (exponent, fraction) = (i32::from(bits >> 10), f64::from(bits & 0x3ff));
            let unit = 2f64.powi(exponent.max(1) - 25);
            let value = (if exponent == 0 { 0.0 } else { 1024.0 } + fraction) * unit;
            assert_eq!(f64::from(widen_f16(bits)), value);
            assert_eq!(f64::from(widen_f16(bits | 0x8000)), -value);
            assert_eq!(narrow(value), u32::from(bits));
            let (next, half) = (u32::from(bits) + 1, value + unit / 2.0);
            let even = u32::from(bits) + u32::from(bits & 1);
            assert_eq!(narrow(half), even, "half a unit above {bits:#x}");
            let beside = |by: i32| f32::from_bits((half as f32).to_bits().wrapping_add_signed(by));
            assert_eq!(f16x2(beside(-1), 0.0), u32::from(bits));
            assert_eq!(f16x2(beside(1), 0.0), next);
            assert_eq!(f16x2(-beside(1), 0.0), next | 0x8000);
        }
        assert_eq!(f16x2(65_519.996, 65_520.0), 0x7c00_7bff, "beyond 65,504");
        assert_eq!(f16x2(f32::MAX, f32::NEG_INFINITY), 0xfc00_7c00);
        assert_eq!(f16x2(-0.0, f32::from_bits(1)), 0x0000_8000);
        assert_eq!(f16x2(f32::NAN, -f32::NAN), 0x7fff_7fff, "NaN is canonical");
        assert_eq!(widen_f16(0x7c00), f32::INFINITY);
        assert_eq!(widen_f16(0xfc00), f32::NEG_INFINITY);
        assert!(widen_f16(0x7c01).is_nan() && widen_f16(0xfe00).is_nan());
    }
}
