//! The golden implementation, on host memory.

use super::{Buffer, Device};
use crate::cli::error::{CliError, Result};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cpu::Cpu;
use std::cell::UnsafeCell;

/// The golden implementation on the CPU.
pub struct HostDevice;

impl Device for HostDevice {
    fn kind(&self) -> &'static str {
        "cpu"
    }

    fn name(&self) -> String {
        let threads = rayon::current_num_threads();
        format!("cpu (the golden implementation, {threads} threads)")
    }

    fn alloc(&self, name: &'static str, bytes: usize) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(HostBuffer::new(name, bytes)?))
    }

    fn backend(&self) -> &dyn Backend {
        &Cpu
    }

    fn synchronize(&self) -> Result<()> {
        Ok(()) // calls return when the work is done
    }
}

/// The unit of allocation, for the alignment that GPUs give.
#[derive(Clone, Copy)]
#[repr(align(256))]
struct Line(#[allow(dead_code)] [u8; 256]);

/// Host memory that a backend writes to through its address.
struct HostBuffer {
    memory: Box<[UnsafeCell<Line>]>,
    bytes: usize,
}

impl HostBuffer {
    fn new(purpose: &'static str, bytes: usize) -> Result<Self> {
        let lines = bytes.div_ceil(size_of::<Line>());
        let mut memory = Vec::new();
        let none = |_| CliError::Memory {
            purpose,
            bytes: bytes as u64,
        };
        memory.try_reserve_exact(lines).map_err(none)?;
        memory.resize_with(lines, || UnsafeCell::new(Line([0; 256])));
        Ok(Self {
            memory: memory.into_boxed_slice(),
            bytes,
        })
    }

    fn pointer(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.memory.as_ptr()).cast()
    }
}

impl Buffer for HostBuffer {
    fn address(&self) -> u64 {
        self.pointer().expose_provenance() as u64
    }

    fn write_at(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        let at = at.min(self.bytes);
        let len = bytes.len().min(self.bytes - at);
        // SAFETY: both ranges hold `len` bytes. The buffer is borrowed for writing, and no slice
        // of it is ever given out, so `bytes` lies elsewhere.
        unsafe {
            let to = self.pointer().add(at);
            to.copy_from_nonoverlapping(bytes.as_ptr(), len);
        }
        Ok(())
    }

    fn fill(&mut self, pattern: &[u8]) -> Result<()> {
        if pattern.is_empty() {
            return Ok(());
        }
        for start in (0..self.bytes).step_by(pattern.len()) {
            let len = pattern.len().min(self.bytes - start);
            // SAFETY: inside the buffer, as in `write`.
            unsafe {
                let to = self.pointer().add(start);
                to.copy_from_nonoverlapping(pattern.as_ptr(), len);
            }
        }
        Ok(())
    }

    fn read_at(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        let at = at.min(self.bytes);
        let len = bytes.len().min(self.bytes - at);
        // SAFETY: both ranges hold `len` bytes, and `bytes` lies elsewhere, as above. Backends of
        // host memory are done when their calls return, so nobody writes to the buffer now.
        unsafe {
            let from = self.pointer().add(at);
            from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len);
        }
        Ok(())
    }

    fn poison(&mut self, byte: u8) -> Result<()> {
        // SAFETY: the buffer holds that many bytes and is borrowed for writing.
        unsafe { self.pointer().write_bytes(byte, self.bytes) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_keeps_what_is_written() {
        for bytes in [0, 1, 255, 256, 1000] {
            let mut buffer = HostBuffer::new("test", bytes).expect("little memory");
            assert!(buffer.address() != 0 && buffer.address().is_multiple_of(256));
            buffer.poison(0xff).expect("host memory");
            let data: Vec<u8> = (0..bytes / 2).map(|i| i as u8).collect();
            buffer.write(&data).expect("host memory");
            let mut all = vec![0; bytes + 1];
            buffer.read(&mut all).expect("host memory");
            assert_eq!(all[..bytes / 2], data);
            assert!(all[bytes / 2..bytes].iter().all(|&byte| byte == 0xff));
            assert_eq!(all[bytes], 0, "beyond the buffer");
        }
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        assert!(matches!(
            HostBuffer::new("test", usize::MAX),
            Err(CliError::Memory { .. })
        ));
    }
}
