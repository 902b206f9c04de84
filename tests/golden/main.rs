//! The golden implementation, as a user calls it: its accuracy against FP64, and what has gone
//! wrong in other libraries.

mod accuracy;
mod data;
mod field_cases;
