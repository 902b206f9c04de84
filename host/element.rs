//! Element types of matrices in host memory.

use crate::view::Dtype;
use bytemuck::Pod;
use cake_rmsnorm_kernels::arith::{canonical, widen_high, widen_low};
use cake_rmsnorm_kernels::device::math::{bf16x2, f16x2, widen_f16};
use half::{bf16, f16};

/// Elements of matrices: [`bf16`], [`struct@f16`] and [`f32`].
pub trait Element: Pod + Send + Sync + private::Sealed {
    /// The type, as views name it.
    const DTYPE: Dtype;
    /// Bits of the significand, the leading one included.
    const PRECISION: i32;
    /// Exponents of the smallest and of the largest normal values.
    const EXPONENTS: (i32, i32);

    /// The value; exact.
    fn to_f32(self) -> f32;

    /// `value`, rounded once to nearest even; overflow gives infinity, NaN is canonical.
    fn from_f32(value: f32) -> Self;

    /// The value; exact.
    fn to_f64(self) -> f64 {
        f64::from(self.to_f32())
    }

    /// The values of two neighbours.
    #[inline(always)]
    fn pair_to_f32(pair: [Self; 2]) -> [f32; 2] {
        pair.map(Self::to_f32)
    }
}

mod private {
    /// The element types are known to the kernels: there are no others.
    pub trait Sealed {}
    impl Sealed for super::bf16 {}
    impl Sealed for super::f16 {}
    impl Sealed for f32 {}
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
    const PRECISION: i32 = 8;
    const EXPONENTS: (i32, i32) = (-126, 127);

    #[inline(always)]
    fn to_f32(self) -> f32 {
        widen_low(u32::from(self.to_bits()))
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        bf16::from_bits(bf16x2(value, 0.0) as u16)
    }

    #[inline(always)]
    fn pair_to_f32([low, high]: [Self; 2]) -> [f32; 2] {
        // A word is what SIMD shuffles handle best.
        let word = u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16;
        [widen_low(word), widen_high(word)]
    }
}

impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;
    const PRECISION: i32 = 11;
    const EXPONENTS: (i32, i32) = (-14, 15);

    #[inline(always)]
    fn to_f32(self) -> f32 {
        widen_f16(self.to_bits())
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f16::from_bits(f16x2(value, 0.0) as u16)
    }
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
    const PRECISION: i32 = 24;
    const EXPONENTS: (i32, i32) = (-126, 127);

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        canonical(value)
    }
}
