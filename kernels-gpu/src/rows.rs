//! How threads hold a row: weights, columns and 16-byte access.

use crate::arith::{LANE_ELEMENTS, Lane, TILE, unroll, widen};
use crate::device::global::{self, CachePolicy};
use crate::device::{Words4, hint, thread};
use crate::params::{Groups, Stride};

/// Eight values of a row, as they travel.
pub const NO_WORDS: Words4 = Words4(0, 0, 0, 0);

/// `words`, from which nothing that was worked out before stays in registers.
#[inline(always)]
pub fn forget<const VECTORS: usize>(mut words: [Words4; VECTORS]) -> [Words4; VECTORS] {
    unroll!(VECTORS, |v| {
        let Words4(a, b, c, d) = words[v];
        words[v] = Words4(
            hint::forget(a),
            hint::forget(b),
            hint::forget(c),
            hint::forget(d),
        );
    });
    words
}

/// The stored type of a weight. Loading and widening are apart, so that nothing waits for one vector
/// before the next is asked for.
pub trait Weight: Copy {
    /// Eight consecutive weights as they are stored.
    type Words: Copy;
    /// Eight zeros.
    const ZEROS: Self::Words;
    /// Eight ones.
    const ONES: Self::Words;

    /// Loads eight consecutive weights.
    ///
    /// # Safety
    /// - `w` points to the weight's first element, 16-byte aligned, in global memory.
    /// - `column` is a multiple of 8, and `column + 8` at most the number of elements.
    /// - Nobody writes the weight during the launch.
    unsafe fn load(w: *const u8, column: u32) -> Self::Words;

    /// The same where `condition` holds, without a jump; zeros elsewhere.
    ///
    /// # Safety
    /// - Where `condition` holds, as [`Weight::load`].
    unsafe fn load_if(condition: bool, w: *const u8, column: u32) -> Self::Words;

    /// Their values; exact.
    fn widen(words: Self::Words) -> Lane;
}

/// BF16 weight.
#[derive(Clone, Copy, Debug)]
pub struct Bf16Weight;

/// FP32 weight.
#[derive(Clone, Copy, Debug)]
pub struct F32Weight;

impl Weight for Bf16Weight {
    type Words = Words4;
    const ZEROS: Words4 = NO_WORDS;
    const ONES: Words4 = Words4(0x3f80_3f80, 0x3f80_3f80, 0x3f80_3f80, 0x3f80_3f80);

    #[inline(always)]
    unsafe fn load(w: *const u8, column: u32) -> Words4 {
        // SAFETY: aligned and in range, as the caller promises.
        unsafe { global::load_words4(w.add(2 * column as usize).cast()) }
    }

    #[inline(always)]
    unsafe fn load_if(condition: bool, w: *const u8, column: u32) -> Words4 {
        let w = w.wrapping_add(2 * column as usize).cast();
        // SAFETY: aligned and in range where the condition holds, as the caller promises.
        unsafe { global::load_words4_if(condition, w) }
    }

    #[inline(always)]
    fn widen(words: Words4) -> Lane {
        widen(words)
    }
}

impl Weight for F32Weight {
    type Words = [Words4; 2];
    const ZEROS: [Words4; 2] = [NO_WORDS; 2];
    const ONES: [Words4; 2] = [Words4(ONE, ONE, ONE, ONE); 2];

    #[inline(always)]
    unsafe fn load(w: *const u8, column: u32) -> [Words4; 2] {
        // SAFETY: aligned and in range, as the caller promises.
        unsafe {
            let w: *const Words4 = w.add(4 * column as usize).cast();
            [global::load_words4(w), global::load_words4(w.add(1))]
        }
    }

    #[inline(always)]
    unsafe fn load_if(condition: bool, w: *const u8, column: u32) -> [Words4; 2] {
        let w: *const Words4 = w.wrapping_add(4 * column as usize).cast();
        // SAFETY: aligned and in range where the condition holds, as the caller promises.
        [w, w.wrapping_add(1)].map(|w| unsafe { global::load_words4_if(condition, w) })
    }

    #[inline(always)]
    fn widen([low, high]: [Words4; 2]) -> Lane {
        lane_of_words(low, high)
    }
}

/// The bits of 1.
const ONE: u32 = 0x3f80_0000;

/// The weights as the norm multiplies by them: w ⊕ `offset`, where an offset of −0 changes no bit.
#[inline(always)]
pub fn weights<W: Weight, const VECTORS: usize>(
    words: [W::Words; VECTORS],
    offset: f32,
) -> [Lane; VECTORS] {
    let mut lanes = [[0.0; LANE_ELEMENTS]; VECTORS];
    unroll!(VECTORS, |v| {
        lanes[v] = W::widen(words[v]);
        unroll!(LANE_ELEMENTS, |i| lanes[v][i] += offset);
    });
    lanes
}

/// Eight consecutive weights by themselves, as [`weights`]; ones where there is no weight.
///
/// # Safety
/// - As [`Weight::load`]; `w` may be null.
#[inline(always)]
pub unsafe fn weight_lane<W: Weight>(w: *const u8, offset: f32, column: u32) -> Lane {
    let words = if w.is_null() {
        W::ONES
    } else {
        // SAFETY: the caller's obligations.
        unsafe { W::load(w, column) }
    };
    weights::<W, 1>([words], offset)[0]
}

/// Eight FP32 values from their bits.
#[inline(always)]
pub fn lane_of_words(low: Words4, high: Words4) -> Lane {
    let f = f32::from_bits;
    [
        f(low.0),
        f(low.1),
        f(low.2),
        f(low.3),
        f(high.0),
        f(high.1),
        f(high.2),
        f(high.3),
    ]
}

/// The columns of one thread: vector v holds elements `first + 256·v` … `+ 7`, where they are
/// inside the row.
#[derive(Clone, Copy, Debug)]
pub struct Columns<const VECTORS: usize> {
    /// First element of vector 0.
    pub first: u32,
    /// H.
    pub hidden: u32,
}

impl<const VECTORS: usize> Columns<VECTORS> {
    /// The columns of the calling thread when warp `warp` of the row holds tiles
    /// `warp · VECTORS` and following.
    #[inline(always)]
    pub fn of_warp(warp: u32, hidden: u32) -> Self {
        let lane = thread::thread_idx_x() % 32;
        let tile = warp * VECTORS as u32;
        Self {
            first: tile * TILE + lane * LANE_ELEMENTS as u32,
            hidden,
        }
    }

    /// The same columns, from which nothing that was worked out before stays in registers.
    #[inline(always)]
    pub fn forget(self) -> Self {
        Self {
            first: hint::forget(self.first),
            ..self
        }
    }

    /// The same columns as far as they are below `limit`.
    #[inline(always)]
    pub fn below(self, limit: u32) -> Self {
        Self {
            hidden: limit,
            ..self
        }
    }

    /// First element of vector `v`.
    #[inline(always)]
    pub fn column(self, v: usize) -> u32 {
        self.first + v as u32 * TILE
    }

    /// The thread's first vector of a row.
    #[inline(always)]
    pub fn of_row(self, row: *const u16) -> *const u16 {
        row.wrapping_add(self.first as usize)
    }

    /// Vector `v` of a row whose first of the thread is at `first`.
    #[inline(always)]
    pub fn vector(first: *const u16, v: usize) -> *const u16 {
        first.wrapping_add(v * TILE as usize)
    }

    /// Whether vector `v` is inside the row.
    #[inline(always)]
    pub fn holds(self, v: usize) -> bool {
        self.column(v) < self.hidden
    }

    /// Loads the thread's vectors of a row; zeros outside.
    ///
    /// # Safety
    /// - `row` points to the row's first element, 16-byte aligned, in readable global memory
    ///   that no other thread writes during the launch; H is a multiple of 8.
    #[inline(always)]
    pub unsafe fn load(self, row: *const u16) -> [Words4; VECTORS] {
        let mut words = [NO_WORDS; VECTORS];
        unroll!(VECTORS, |v| {
            if self.holds(v) {
                // SAFETY: inside the row, and aligned since columns are multiples of 8.
                words[v] =
                    unsafe { global::load_once_words4(row.add(self.column(v) as usize).cast()) };
            }
        });
        words
    }

    /// Loads the vectors of a row whose first of the thread is at `first`, through L1 and under a
    /// policy for L2; zeros outside. An H200 reads rows some 4 % faster so than past L1, although
    /// nobody reads them again.
    ///
    /// # Safety
    /// - As [`Columns::load`].
    #[inline(always)]
    pub unsafe fn load_by(self, policy: CachePolicy, first: *const u16) -> [Words4; VECTORS] {
        let mut words = [NO_WORDS; VECTORS];
        unroll!(VECTORS, |v| {
            if self.holds(v) {
                let vector = Self::vector(first, v).cast();
                // SAFETY: inside the row, and aligned since columns are multiples of 8.
                words[v] = unsafe { global::load_words4_by(policy, vector) };
            }
        });
        words
    }

    /// Stores one vector of a row, if it is inside.
    ///
    /// # Safety
    /// - `row` points to the row's first element, 16-byte aligned, in writable global memory
    ///   whose eight elements no other thread accesses; H is a multiple of 8.
    #[inline(always)]
    pub unsafe fn store(self, row: *mut u16, v: usize, words: Words4) {
        if self.holds(v) {
            // SAFETY: inside the row, and aligned since columns are multiples of 8.
            unsafe { global::store_words4(row.add(self.column(v) as usize).cast(), words) }
        }
    }

    /// As [`Columns::store`], to a row whose first vector of the thread is at `first`.
    ///
    /// # Safety
    /// - As [`Columns::store`].
    #[inline(always)]
    pub unsafe fn store_from(self, first: *mut u16, v: usize, words: Words4) {
        if self.holds(v) {
            let place = Self::vector(first, v).cast_mut();
            // SAFETY: inside the row, and aligned since columns are multiples of 8.
            unsafe { global::store_words4(place.cast(), words) }
        }
    }

    /// Stores vector `v` of a row whose first vector of the thread is at `first`, if it is inside,
    /// for nobody to read again soon.
    ///
    /// # Safety
    /// - As [`Columns::store`].
    #[inline(always)]
    pub unsafe fn store_stream(self, first: *mut u16, v: usize, words: Words4) {
        if self.holds(v) {
            let place = Self::vector(first, v).cast_mut();
            // SAFETY: inside the row, and aligned since columns are multiples of 8.
            unsafe { global::store_stream_words4(place.cast(), words) }
        }
    }

    /// Loads the thread's weights, for [`weights`]: ones where there is no weight; zeros outside.
    ///
    /// # Safety
    /// - As [`Weight::load`], for H elements; `w` may be null.
    #[inline(always)]
    pub unsafe fn load_weight<W: Weight>(self, w: *const u8) -> [W::Words; VECTORS] {
        let none = w.is_null();
        let mut words = [if none { W::ONES } else { W::ZEROS }; VECTORS];
        unroll!(VECTORS, |v| {
            if self.holds(v) && !none {
                // SAFETY: inside the weight.
                words[v] = unsafe { W::load(w, self.column(v)) };
            }
        });
        words
    }
}

/// Elements before row `row`; 64-bit arithmetic throughout.
#[inline(always)]
pub fn row_offset<const GROUPED: bool>(row: u32, stride: Stride, groups: Groups) -> isize {
    let mut offset = i64::from(row).wrapping_mul(stride.row);
    if GROUPED {
        let before = i64::from(groups.before(row));
        offset = offset.wrapping_add(before.wrapping_mul(stride.group));
    }
    offset as isize
}

/// The start of row `row`. Without `GROUPED`, all rows are one group.
#[inline(always)]
pub fn row_start<const GROUPED: bool>(
    base: *const u16,
    row: u32,
    stride: Stride,
    groups: Groups,
) -> *const u16 {
    base.wrapping_offset(row_offset::<GROUPED>(row, stride, groups))
}

/// The start of row `row`, to write to.
#[inline(always)]
pub fn row_start_mut<const GROUPED: bool>(
    base: *mut u16,
    row: u32,
    stride: Stride,
    groups: Groups,
) -> *mut u16 {
    base.wrapping_offset(row_offset::<GROUPED>(row, stride, groups))
}
