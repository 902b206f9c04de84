//! The vocabulary on the CPU simulator.
