//! What matrices hold.

use super::Draw;
use crate::element::Element;
use crate::inputs::bell;

/// Kinds of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Bells of root mean squares around 1.
    Ordinary,
    /// Ordinary rows with a few elements that are 2¹⁰ times as large.
    Spiked,
    /// Near the type's smallest normal value, many below.
    Subnormal,
    /// Near the type's largest value, some beyond: infinite.
    Huge,
    /// Ordinary rows, one element of every third not a number.
    Nan,
    /// Ordinary rows, one element of every third infinite.
    Infinite,
    /// Ordinary rows, every other of zeros.
    Zero,
    /// Rows of all other kinds.
    Mixed,
}

impl Data {
    pub(super) const ALL: [Data; 8] = [
        Data::Ordinary,
        Data::Spiked,
        Data::Subnormal,
        Data::Huge,
        Data::Nan,
        Data::Infinite,
        Data::Zero,
        Data::Mixed,
    ];

    /// Packed rows.
    pub(super) fn rows<E: Element>(
        self,
        draw: &mut Draw<'_>,
        rows: usize,
        hidden: usize,
    ) -> Vec<E> {
        let mut values = Vec::with_capacity(rows * hidden);
        for row in 0..rows {
            let kind = match self {
                Data::Mixed => draw.one_of(&Data::ALL[..7]),
                other => other,
            };
            kind.row(draw, row, hidden, &mut values);
        }
        values
    }

    fn row<E: Element>(self, draw: &mut Draw<'_>, row: usize, hidden: usize, out: &mut Vec<E>) {
        if self == Data::Zero && row.is_multiple_of(2) {
            out.extend((0..hidden).map(|_| E::zeroed()));
            return;
        }
        let (least, greatest) = E::EXPONENTS;
        let exponent = match self {
            Data::Subnormal => least + draw.below(6) as i32 - 3,
            Data::Huge => greatest - draw.below(4) as i32,
            _ => draw.below(6) as i32 - 3,
        };
        // Two factors: the power may be below what FP32 has.
        let factors = [exponent / 2, exponent - exponent / 2].map(power_of_two);
        let first = out.len();
        out.extend((0..hidden).map(|_| E::from_f32(bell(draw.bits()) * factors[0] * factors[1])));
        let spikes: &[f32] = match self {
            Data::Spiked => &[1024.0, -1500.0],
            Data::Nan if row.is_multiple_of(3) => &[f32::NAN],
            Data::Infinite if row.is_multiple_of(3) => &[f32::NEG_INFINITY],
            _ => &[],
        };
        for &spike in spikes {
            out[first + draw.below(hidden)] = E::from_f32(spike);
        }
    }
}

/// 2^`exponent`, a normal FP32 value.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}
