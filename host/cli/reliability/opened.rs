//! Where the parts run: on as many streams as they want.

#[cfg(feature = "cuda")]
use crate::cli::device::cuda::CudaDevice;
use crate::cli::device::host::HostDevice;
use crate::cli::device::{self, Device, DeviceArg, Planning};
use crate::cli::error::Result;
use crate::cli::progress::Progress;
use clap::ValueEnum;

/// Why a part is not run.
pub const NEEDS_GPU: &str = "it needs a GPU";

/// The device asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Where {
    /// The first NVIDIA GPU.
    Cuda,
    /// The kernels themselves, simulated on the CPU.
    Sim,
    /// The golden implementation.
    Cpu,
}

/// A device that threads share.
pub enum Opened {
    /// A GPU.
    #[cfg(feature = "cuda")]
    Cuda(CudaDevice),
    /// One stream of a GPU for all who ask.
    #[cfg(feature = "cuda")]
    OneStream(CudaDevice),
    /// A simulated GPU for each that asks.
    Sim,
    /// The CPU.
    Cpu,
}

impl Opened {
    /// Opens the device.
    pub fn new(place: Where) -> Result<Self> {
        match place {
            #[cfg(feature = "cuda")]
            Where::Cuda => Ok(Opened::Cuda(CudaDevice::of(0)?)),
            #[cfg(not(feature = "cuda"))]
            Where::Cuda => Err(crate::cli::error::CliError::no_cuda()),
            Where::Sim => Ok(Opened::Sim),
            Where::Cpu => Ok(Opened::Cpu),
        }
    }

    /// A stream of it, with memory.
    pub fn stream(&self) -> Result<Box<dyn Device>> {
        match self {
            #[cfg(feature = "cuda")]
            Opened::Cuda(device) => Ok(Box::new(device.beside()?)),
            #[cfg(feature = "cuda")]
            Opened::OneStream(device) => Ok(Box::new(device.clone())),
            Opened::Sim => {
                let planning = Planning::default();
                Ok(device::open(DeviceArg::Sim, &planning, 0, &Progress::new())?.0)
            }
            Opened::Cpu => Ok(Box::new(HostDevice)),
        }
    }

    /// Whether it is a GPU.
    pub fn is_gpu(&self) -> bool {
        !matches!(self, Opened::Sim | Opened::Cpu)
    }

    /// Its name, and its driver's version.
    pub fn names(&self) -> (String, String) {
        match self {
            #[cfg(feature = "cuda")]
            Opened::Cuda(device) | Opened::OneStream(device) => {
                let name = device.cuda().device().name().to_owned();
                (name, crate::cli::record::driver_version())
            }
            Opened::Sim => ("sim".to_owned(), "-".to_owned()),
            Opened::Cpu => ("cpu".to_owned(), "-".to_owned()),
        }
    }
}
