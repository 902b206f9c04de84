//! C interface.
//!
//! For now the plug-in interface by which a benchmark times RMSNorm libraries beside each other:
//! device pointers to packed row-major tensors, a `cudaStream_t`, and a return code.

mod bench;
mod gated;
