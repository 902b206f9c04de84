//! RMSNorm training kernels.
