//! Rows of any type and alignment.

use crate::arith::{LANE_ELEMENTS, Lane, narrow, unroll, widen, widen_low};
use crate::device::math::widen_f16;
use crate::device::{Words4, global};
use crate::format::{Format, canonical_lane, narrow_f16, widen_f16_words};
use crate::general::params::Tensor;
use crate::params::Groups;
use crate::rows::{lane_of_words, row_offset};

/// One row of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Row {
    base: *mut u8,
    format: Format,
    aligned: bool,
    hidden: u32,
}

impl Row {
    /// Row `row` of `tensor`, of `hidden` elements.
    #[inline(always)]
    pub fn new(tensor: &Tensor, row: u32, groups: Groups, hidden: u32) -> Self {
        let bytes = tensor.format.bytes() as isize;
        let offset = row_offset::<true>(row, tensor.stride, groups).wrapping_mul(bytes);
        Self {
            base: tensor.base.wrapping_offset(offset),
            format: tensor.format,
            aligned: tensor.aligned != 0,
            hidden,
        }
    }

    /// A vector of `hidden` elements.
    #[inline(always)]
    pub fn vector(tensor: &Tensor, hidden: u32) -> Self {
        Self::new(tensor, 0, Groups::ONE, hidden)
    }

    /// Whether there is such an argument.
    #[inline(always)]
    pub fn is_given(self) -> bool {
        !self.base.is_null()
    }

    /// Eight weights as the norm multiplies by them, as [`crate::rows::weight_lane`].
    ///
    /// # Safety
    /// - As [`Row::load`]; the weight may be absent.
    #[inline(always)]
    pub unsafe fn load_weight(self, offset: f32, column: u32) -> Lane {
        if !self.is_given() {
            return [1.0; LANE_ELEMENTS];
        }
        // SAFETY: the caller's obligations.
        let mut lane = unsafe { self.load(column) };
        unroll!(LANE_ELEMENTS, |i| lane[i] += offset);
        lane
    }

    #[inline(always)]
    fn at(self, column: u32) -> *mut u8 {
        self.base
            .wrapping_add((column * self.format.bytes()) as usize)
    }

    /// Whether the eight elements from `column` on travel as vectors.
    #[inline(always)]
    fn whole(self, column: u32) -> bool {
        self.aligned && column + LANE_ELEMENTS as u32 <= self.hidden
    }

    /// Loads eight elements, widened (exact); +0 beyond the row.
    ///
    /// # Safety
    /// - The row is readable global memory as its [`Tensor`] says, and no other thread writes the
    ///   elements.
    #[inline(always)]
    pub unsafe fn load(self, column: u32) -> Lane {
        let mut lane = [0.0; LANE_ELEMENTS];
        if self.whole(column) {
            let words: *const Words4 = self.at(column).cast();
            // SAFETY: inside the row; rows start at multiples of 16 bytes, columns are multiples
            // of 8.
            let first = unsafe { global::load_words4(words) };
            lane = match self.format {
                Format::Bf16 => widen(first),
                Format::F16 => widen_f16_words(first),
                // SAFETY: as above.
                Format::F32 => lane_of_words(first, unsafe { global::load_words4(words.add(1)) }),
            };
        } else if self.format == Format::F32 {
            unroll!(LANE_ELEMENTS, |i| {
                if column + (i as u32) < self.hidden {
                    // SAFETY: inside the row, aligned to the type.
                    lane[i] = unsafe { global::load_f32(self.at(column + i as u32).cast()) };
                }
            });
        } else {
            unroll!(LANE_ELEMENTS, |i| {
                if column + (i as u32) < self.hidden {
                    // SAFETY: inside the row, aligned to the type.
                    let bits = unsafe { global::load_u16(self.at(column + i as u32).cast()) };
                    lane[i] = match self.format {
                        Format::F16 => widen_f16(bits),
                        _ => widen_low(u32::from(bits)),
                    };
                }
            });
        }
        lane
    }

    /// Stores eight values, rounded to the row's type; nothing beyond the row.
    ///
    /// # Safety
    /// - The row is writable global memory as its [`Tensor`] says, and no other thread accesses the
    ///   elements.
    #[inline(always)]
    pub unsafe fn store(self, column: u32, lane: &Lane) {
        if self.format == Format::F32 {
            // SAFETY: the caller's obligations.
            unsafe { self.store_f32(column, &canonical_lane(lane)) }
        } else {
            let words = match self.format {
                Format::F16 => narrow_f16(lane),
                _ => narrow(lane),
            };
            // SAFETY: the caller's obligations.
            unsafe { self.store_16_bits(column, words) }
        }
    }

    /// # Safety
    /// - As [`Row::store`].
    #[inline(always)]
    unsafe fn store_f32(self, column: u32, lane: &Lane) {
        if self.whole(column) {
            let bits = |i: usize| lane[i].to_bits();
            let words: *mut Words4 = self.at(column).cast();
            // SAFETY: as in `load`.
            unsafe {
                global::store_stream_words4(words, Words4(bits(0), bits(1), bits(2), bits(3)));
                let high = Words4(bits(4), bits(5), bits(6), bits(7));
                global::store_stream_words4(words.add(1), high);
            }
        } else {
            unroll!(LANE_ELEMENTS, |i| {
                if column + (i as u32) < self.hidden {
                    // SAFETY: inside the row, aligned to the type.
                    unsafe { global::store_f32(self.at(column + i as u32).cast(), lane[i]) }
                }
            });
        }
    }

    /// # Safety
    /// - As [`Row::store`].
    #[inline(always)]
    unsafe fn store_16_bits(self, column: u32, words: Words4) {
        if self.whole(column) {
            // SAFETY: as in `load`.
            unsafe { global::store_stream_words4(self.at(column).cast(), words) }
        } else {
            let words = [words.0, words.1, words.2, words.3];
            unroll!(LANE_ELEMENTS, |i| {
                if column + (i as u32) < self.hidden {
                    let bits = words[i / 2] >> (16 * (i as u32 % 2));
                    // SAFETY: inside the row, aligned to the type.
                    unsafe { global::store_u16(self.at(column + i as u32).cast(), bits as u16) }
                }
            });
        }
    }
}
