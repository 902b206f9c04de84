//! Element types: conversion from and to the FP32 values that all arithmetic is in.

use crate::arith::{LANE_ELEMENTS, Lane, canonical, narrow, unroll, widen};
use crate::device::Words4;
use crate::device::math::{f16x2, widen_f16};

/// The stored type of a matrix or a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Format {
    /// bfloat16.
    Bf16 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// IEEE single precision.
    F32 = 2,
}

impl Format {
    /// Bytes of an element.
    #[must_use]
    #[inline(always)]
    pub const fn bytes(self) -> u32 {
        match self {
            Format::F32 => 4,
            _ => 2,
        }
    }

    /// Eight values rounded to the type, as FP32 values again.
    #[inline(always)]
    pub fn round(self, lane: &Lane) -> Lane {
        match self {
            Format::Bf16 => widen(narrow(lane)),
            Format::F16 => widen_f16_words(narrow_f16(lane)),
            Format::F32 => *lane,
        }
    }

    /// Eight elements of a row that the backward scaled: BF16 values are BF16 values again, others
    /// stay FP32 values, which loses nothing of FP16.
    #[inline(always)]
    pub fn round_scaled(self, lane: &Lane) -> Lane {
        match self {
            Format::Bf16 => self.round(lane),
            _ => *lane,
        }
    }
}

/// Widens eight FP16 values; exact.
#[inline(always)]
pub fn widen_f16_words(words: Words4) -> Lane {
    let low = |word: u32| widen_f16(word as u16);
    let high = |word: u32| widen_f16((word >> 16) as u16);
    [
        low(words.0),
        high(words.0),
        low(words.1),
        high(words.1),
        low(words.2),
        high(words.2),
        low(words.3),
        high(words.3),
    ]
}

/// Rounds eight values to FP16.
#[inline(always)]
pub fn narrow_f16(lane: &Lane) -> Words4 {
    Words4(
        f16x2(lane[0], lane[1]),
        f16x2(lane[2], lane[3]),
        f16x2(lane[4], lane[5]),
        f16x2(lane[6], lane[7]),
    )
}

/// Eight FP32 values with canonical NaN.
#[inline(always)]
pub fn canonical_lane(lane: &Lane) -> Lane {
    let mut out = *lane;
    unroll!(LANE_ELEMENTS, |i| out[i] = canonical(out[i]));
    out
}
