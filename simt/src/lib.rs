//! A CPU simulator for SIMT kernels.
