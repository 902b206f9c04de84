//! No device at all: what a call costs on the host, and nothing else.

use super::launcher::{Bound, Launcher};
use crate::error::Result;
use crate::plan::DeviceProperties;
use std::sync::atomic::{AtomicU64, Ordering};

/// Validates, plans and fills kernel parameters as for a GPU, then launches nothing. Touches no
/// memory of the arguments.
#[derive(Debug)]
pub struct Null {
    properties: DeviceProperties,
    launches: AtomicU64,
}

impl Null {
    /// Plans as for `properties`.
    #[must_use]
    pub const fn new(properties: DeviceProperties) -> Self {
        Self {
            properties,
            launches: AtomicU64::new(0),
        }
    }

    /// Kernels and memsets that calls asked for so far.
    #[must_use]
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    fn count(&self, launches: usize) {
        self.launches.fetch_add(launches as u64, Ordering::Relaxed);
    }
}

impl Launcher for Null {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    unsafe fn launch(&self, launches: &[Bound]) -> Result<()> {
        // What a driver would read must have been computed.
        self.count(std::hint::black_box(launches).len());
        Ok(())
    }
}
