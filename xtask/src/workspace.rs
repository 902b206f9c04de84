//! Where things lie in the checkout.

use std::path::{Path, PathBuf};

/// The checkout's root.
pub fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The device crate.
pub fn kernels() -> PathBuf {
    root().join("kernels-gpu")
}

/// The committed PTX.
pub fn ptx() -> PathBuf {
    root().join("ptx")
}

/// The build folder: `CARGO_TARGET_DIR`, or `target` in the checkout.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}
