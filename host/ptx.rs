//! The kernels' PTX, embedded when the library was built.

include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
