//! Bad arguments are refused with a typed error before anything is launched or written.
//!
//! Every refusal is asked for twice: of a launcher that only counts, and of the CPU backend on
//! real memory, which must hold the same bytes afterwards.

mod fixture;
mod memory;
mod options;
mod shapes;
