//! Inputs of very many rows, made of few: blocks of rows from a pool, paired anew again and again.
//!
//! Making, moving and summing a million rows one by one would take longer than everything else.
//! Block b of T rows has x from block b mod [`BLOCKS`] of the pool, and dy from that block and
//! some further on, so that [`PAIRS`] pairs of blocks occur, each about equally often.

use super::{Tensor, Weight, amplify, bell_row, heavy_row, power_of_two, stream};
use crate::view::Dtype;
use half::bf16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use std::collections::TryReserveError;

/// Rows of a block.
pub const BLOCK_ROWS: usize = 64;
/// Blocks of a pool.
pub const BLOCKS: usize = 128;
/// Distances at which x and dy are paired.
const SHIFTS: usize = 16;
/// Pairs of blocks that occur.
pub const PAIRS: usize = BLOCKS * SHIFTS;

/// What the terms dy·x of dw are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// x and dy bell-shaped.
    Normal,
    /// x with channels far larger than the rest, dy with heavy tails, of rows of many sizes.
    Heavy,
    /// Each g has a −g half a pool further on, from which one element in 16 differs by a unit in
    /// the last place.
    Cancelling,
    /// All rows are the same.
    Constant,
}

/// A pool of rows, and the weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// H.
    pub hidden: usize,
    /// BF16 [BLOCKS · BLOCK_ROWS, H].
    pub x: Vec<bf16>,
    /// BF16 [BLOCKS · BLOCK_ROWS, H].
    pub dy: Vec<bf16>,
    /// Weight.
    pub w: Weight,
}

impl Pool {
    /// The pool that `seed` names.
    ///
    /// # Errors
    /// - Memory cannot be had.
    pub fn new(
        terms: Terms,
        hidden: usize,
        weight: Dtype,
        seed: u64,
    ) -> Result<Self, TryReserveError> {
        let spec = super::Spec {
            rows: BLOCKS * BLOCK_ROWS,
            hidden,
            weight,
            residual: false,
            seed,
        };
        let outliers = spec.outlier_channels(super::LARGEST_OUTLIER);
        let bell = |rng: &mut ChaCha8Rng, row: &mut [bf16]| bell_row(rng, row, 1.0);
        let (mut x, mut dy) = match terms {
            Terms::Normal | Terms::Cancelling | Terms::Constant => (
                spec.matrix(Tensor::X, bell)?,
                spec.matrix(Tensor::Dy, bell)?,
            ),
            Terms::Heavy => {
                let x = spec.matrix(Tensor::X, |rng, row| {
                    let scale = power_of_two(rng, -4, 4);
                    bell_row(rng, row, scale);
                    amplify(rng, row, &outliers);
                })?;
                (x, spec.matrix(Tensor::Dy, heavy_row)?)
            }
        };
        match terms {
            Terms::Normal | Terms::Heavy => {}
            Terms::Cancelling => {
                let half = x.len() / 2;
                x.copy_within(..half, half);
                let (first, second) = dy.split_at_mut(half);
                negate(first, second, hidden, seed);
            }
            Terms::Constant => {
                for matrix in [&mut x, &mut dy] {
                    let (first, rest) = matrix.split_at_mut(hidden);
                    rest.par_chunks_exact_mut(hidden)
                        .for_each(|row| row.copy_from_slice(first));
                }
            }
        }
        let w = Weight::F32(spec.weight_vector()).to_dtype(weight);
        Ok(Self { hidden, x, dy, w })
    }

    /// The blocks of x for the `count` first blocks of rows.
    #[must_use]
    pub fn x_blocks(count: usize) -> Vec<u32> {
        (0..count).map(|block| pair(block).0 as u32).collect()
    }

    /// The blocks of dy for the same.
    #[must_use]
    pub fn dy_blocks(count: usize) -> Vec<u32> {
        (0..count).map(|block| pair(block).1 as u32).collect()
    }

    /// Rows of block `block`, of x.
    #[must_use]
    pub fn x_rows(&self, block: usize) -> &[bf16] {
        &self.x[block * BLOCK_ROWS * self.hidden..][..BLOCK_ROWS * self.hidden]
    }

    /// Rows of block `block`, of dy.
    #[must_use]
    pub fn dy_rows(&self, block: usize) -> &[bf16] {
        &self.dy[block * BLOCK_ROWS * self.hidden..][..BLOCK_ROWS * self.hidden]
    }

    /// The pairs (block of x, block of dy) among `rows` rows, with the number of blocks of rows
    /// that consist of each; the last, perhaps incomplete block apart.
    #[must_use]
    pub fn pairs(rows: usize) -> (Vec<(usize, usize, u32)>, Option<LastBlock>) {
        let whole = rows / BLOCK_ROWS;
        let mut counts = vec![0u32; PAIRS];
        for block in 0..whole {
            counts[block % PAIRS] += 1;
        }
        let pairs = counts
            .into_iter()
            .enumerate()
            .filter(|(_, count)| *count > 0);
        let pairs = pairs.map(|(block, count)| {
            let (x, dy) = pair(block);
            (x, dy, count)
        });
        let last = (!rows.is_multiple_of(BLOCK_ROWS)).then(|| {
            let (x, dy) = pair(whole);
            LastBlock {
                x,
                dy,
                rows: rows % BLOCK_ROWS,
            }
        });
        (pairs.collect(), last)
    }
}

/// The incomplete block at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastBlock {
    /// Block of x.
    pub x: usize,
    /// Block of dy.
    pub dy: usize,
    /// Rows of it.
    pub rows: usize,
}

/// The blocks of x and dy that a block of rows consists of; the same again after [`PAIRS`].
fn pair(block: usize) -> (usize, usize) {
    let (x, shift) = (block % BLOCKS, block / BLOCKS % SHIFTS);
    (x, (x + shift) % BLOCKS)
}

/// `second` = −`first`, but for a unit in the last place here and there.
fn negate(first: &[bf16], second: &mut [bf16], hidden: usize, seed: u64) {
    let base = ChaCha8Rng::seed_from_u64(seed);
    let rows = second
        .par_chunks_exact_mut(hidden)
        .zip(first.par_chunks_exact(hidden));
    rows.enumerate().for_each(|(t, (negated, row))| {
        let mut rng = stream(&base, Tensor::Differences, t);
        for (negated, value) in negated.iter_mut().zip(row) {
            let changed = u16::from(rng.next_u32().is_multiple_of(16));
            // The magnitude changes by a unit: no value is near infinity.
            *negated = bf16::from_bits((value.to_bits() ^ 0x8000) ^ changed);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_count_the_blocks() {
        for rows in [1usize, 63, 64, 65, 64 * 128, 64 * 2048 + 1, 64 * 5000 + 17] {
            let blocks = rows.div_ceil(BLOCK_ROWS);
            let (xs, dys) = (Pool::x_blocks(blocks), Pool::dy_blocks(blocks));
            let (pairs, last) = Pool::pairs(rows);
            let whole: u32 = pairs.iter().map(|pair| pair.2).sum();
            let rest = last.map_or(0, |last| last.rows);
            assert_eq!(whole as usize * BLOCK_ROWS + rest, rows);
            for (x, dy, count) in pairs {
                let same = (0..rows / BLOCK_ROWS)
                    .filter(|&block| (xs[block] as usize, dys[block] as usize) == (x, dy));
                assert_eq!(same.count(), count as usize, "{rows} rows, {x} {dy}");
            }
        }
    }

    #[test]
    fn terms_are_what_they_are_called() {
        let pool = |terms| Pool::new(terms, 16, Dtype::F32, 5).expect("little memory");
        let constant = pool(Terms::Constant);
        let first = &constant.dy[..16];
        assert!(constant.dy.chunks(16).all(|row| row == first));
        assert!(first.iter().any(|value| value != &first[0]));

        let cancelling = pool(Terms::Cancelling);
        let half = cancelling.dy.len() / 2;
        assert_eq!(cancelling.x[..half], cancelling.x[half..]);
        let pairs = cancelling.dy[..half].iter().zip(&cancelling.dy[half..]);
        let changed = pairs.clone().filter(|(a, b)| a.to_f32() != -b.to_f32());
        let share = changed.count() as f64 / half as f64;
        assert!((0.05..0.08).contains(&share), "{share}");
        let near = |(a, b): (&bf16, &bf16)| {
            (a.to_f32() + b.to_f32()).abs() <= a.to_f32().abs() / 64.0 || a.to_f32().abs() < 1e-4
        };
        assert!(pairs.clone().all(near));

        let largest = |pool: &Pool| {
            let values = pool.dy.iter().map(|value| value.to_f32().abs());
            values.fold(0.0, f32::max)
        };
        let mean = |pool: &Pool| {
            let values = pool.dy.iter().map(|value| value.to_f32().abs());
            values.sum::<f32>() / pool.dy.len() as f32
        };
        let (normal, heavy) = (pool(Terms::Normal), pool(Terms::Heavy));
        assert!(largest(&normal) < 8.0 * mean(&normal));
        assert!(largest(&heavy) > 50.0 * mean(&heavy));
    }
}
