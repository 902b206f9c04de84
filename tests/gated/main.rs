//! The gated form.

mod accuracy;
mod case;
#[path = "../common/mod.rs"]
#[allow(dead_code)]
mod common;
mod kernels;
mod mutations;
mod plan;
mod refusals;
