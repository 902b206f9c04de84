//! RMSNorm with a SiLU gate: with g = z·sigmoid(z),
//!
//! ```text
//! norm before gate    y = norm(x)·w·g        (Qwen3-Next, GatedDeltaNet)
//! gate before norm    y = norm(x·g)·w        (Mamba-2)
//! ```
//!
//! and their gradients. (Dao and Gu, "Transformers are SSMs", 2024; Yang, Kautz and Hatamizadeh,
//! "Gated Delta Networks", 2024.) docs/numerics.md gives every operation and its order.
//!
//! - [`gate`]: sigmoid and SiLU. [`arith`]: single elements, shared with the CPU.
//! - [`row`]: one row, for the threads that share it, [`pair`]: two; [`sums`] are theirs, [`turn`] says
//!   which rows they take.
//! - [`forward`], [`backward`], [`backward_pairs`]: the programs; [`entries`]: what is compiled of them.

pub mod arith;
pub mod backward;
pub mod backward_pairs;
pub mod entries;
pub mod forward;
pub mod gate;
pub mod pair;
pub mod params;
pub mod place;
pub mod ring;
pub mod row;
pub mod sums;
pub mod turn;
