//! RMSNorm training kernels in Rust: forward and backward, with the same bits on every GPU and on
//! the CPU.
//!
//! - [`RmsNorm`] is the operator; [`ForwardArgs`] and [`BackwardArgs`] say what it works on.
//! - [`plan`] decides which kernels run; it touches no device.
//! - [`backend`] runs them: `cpu` (the golden implementation), `cuda` and `cudarc` (GPUs), `sim` (the
//!   simulator).
//! - [`golden`] is the bit-exact CPU implementation, [`mod@reference`] the FP64 formulas,
//!   [`compare`] the distance of outputs from them, [`cases`] drawn calls that hold backends to both.
//!
//! # Features
//!
//! None is on unless asked for, and nothing of CUDA is needed then.
//!
//! - `cuda`: `backend::cuda`, GPUs by way of `cust`. Building it needs the driver's library or a
//!   stand-in for it (`cargo xtask cuda-stub`).
//! - `cudarc`: `backend::cudarc`, GPUs by way of `cudarc`, on its contexts, streams and slices.
//!   Building it needs nothing of CUDA.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
pub mod cases;
pub mod compare;
mod element;
pub mod error;
pub mod gated;
pub mod golden;
pub mod inputs;
pub mod op;
pub mod plan;
pub mod ptx;
pub mod reference;
pub mod step;
mod validate;
pub mod view;

pub use cake_rmsnorm_kernels as kernels;
pub use element::Element;
pub use error::{Argument, Error, Result};
pub use op::{
    BackwardArgs, ForwardArgs, MAX_HIDDEN, MAX_ROWS, RmsNorm, RmsNormBuilder, Update,
    WeightGradient,
};
pub use step::Step;
pub use view::{Dtype, RowGroups, RowsView, VectorView, Workspace};

/// The examples of the documents, as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    pub struct Readme;

    #[doc = include_str!("../docs/playground.md")]
    pub struct Playground;

    #[cfg(feature = "cudarc")]
    #[doc = include_str!("../docs/embedding.md")]
    pub struct Embedding;
}
