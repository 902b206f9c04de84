//! Seeded rows of every kind.

use cake_rmsnorm::{Dtype, RmsNorm};
use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;

/// How a row is distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Normal.
    Normal,
    /// Normal, divided by a uniform number: about one element in a thousand beyond 1000.
    HeavyTailed,
    /// Around 1e-38: squares vanish in FP32.
    Tiny,
    /// Around 1e18: sums of squares overflow in FP32.
    Huge,
    /// Around 3e38: the largest BF16 values.
    Largest,
    /// Zeros.
    Zero,
    /// Ones, and one element of 1e30.
    Spike,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Normal,
        Kind::HeavyTailed,
        Kind::Tiny,
        Kind::Huge,
        Kind::Largest,
        Kind::Zero,
        Kind::Spike,
    ];

    fn fill(self, rng: &mut ChaCha8Rng, row: &mut [bf16]) {
        for value in row.iter_mut() {
            let normal: f32 = rng.sample(StandardNormal);
            // No closer to zero than half the scale: rstd of any row stays finite.
            let bounded = rng.random_range(0.5f32..1.0).copysign(normal);
            *value = bf16::from_f32(match self {
                Kind::Normal => normal,
                Kind::HeavyTailed => normal / rng.random_range(1e-5f32..1.0),
                Kind::Tiny => bounded * 2e-38,
                Kind::Huge => bounded * 2e18,
                Kind::Largest => bounded * 3.3e38,
                Kind::Zero => 0.0,
                Kind::Spike => 1.0,
            });
        }
        if self == Kind::Spike && !row.is_empty() {
            let at = rng.random_range(0..row.len());
            row[at] = bf16::from_f32(-1e30);
        }
    }
}

/// Packed rows [T, H], row t of kind `kinds[t % kinds.len()]`.
pub fn rows(rows: usize, hidden: usize, kinds: &[Kind], seed: u64) -> Vec<bf16> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut values = vec![bf16::ZERO; rows * hidden];
    for (row, values) in values.chunks_mut(hidden).enumerate() {
        kinds[row % kinds.len()].fill(&mut rng, values);
    }
    values
}

/// A weight around 1, positive and negative.
pub fn weight(hidden: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let sign = |rng: &mut ChaCha8Rng| if rng.random_ratio(1, 8) { -1.0 } else { 1.0 };
    (0..hidden)
        .map(|_| rng.random_range(0.25f32..2.0) * sign(&mut rng))
        .collect()
}

/// An operator with an FP32 weight.
pub fn operator(hidden: usize, eps: f32) -> RmsNorm {
    RmsNorm::new(hidden as u64, Dtype::F32, eps).expect("a supported shape")
}

/// BF16 values.
pub fn bf16s(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|&value| bf16::from_f32(value)).collect()
}

/// The bits, for exact comparison.
pub fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The bits, for exact comparison.
pub fn bits_f32(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
