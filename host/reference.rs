//! FP64 reference.
