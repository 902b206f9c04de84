//! The global memory that kernels may touch.

mod registered;

pub(crate) use registered::{GlobalAccess, Registered};

use crate::check::MAX_UID;
use bytemuck::Pod;
use std::alloc::{Layout, alloc, handle_alloc_error};

/// Bytes before and after an owned buffer that belong to nobody.
const GUARD: usize = 256;
/// What uninitialised memory holds: NaN as BF16 and as FP32.
const GARBAGE: u8 = 0xff;

/// A registered range of a [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    address: usize,
    bytes: usize,
}

impl Buffer {
    /// The buffer's start.
    pub fn ptr<T>(self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    /// Size in bytes.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// The `bytes` bytes from byte `at` on; `None` when the buffer has not so many.
    pub fn part(self, at: usize, bytes: usize) -> Option<Buffer> {
        let end = at.checked_add(bytes)?;
        (end <= self.bytes).then_some(Buffer {
            address: self.address + at,
            bytes,
        })
    }
}

/// What kernels may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
}

/// Whether registered memory may be read before a kernel has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// It holds values.
    Initialised,
    /// It holds garbage.
    Uninitialised,
}

/// Memory that cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The range overlaps one that is registered with other rights, or only in part.
    #[error("{name}: {bytes} bytes at {address:#x} overlap {other}")]
    Overlap {
        /// The new range's name.
        name: String,
        /// The new range's start.
        address: usize,
        /// The new range's size.
        bytes: usize,
        /// The registered range's name.
        other: String,
    },
    /// More values than the buffer holds.
    #[error("{bytes} bytes do not fit a buffer of {room}")]
    DoesNotFit {
        /// Size of the values.
        bytes: usize,
        /// Size of the buffer.
        room: usize,
    },
    /// The range is registered for reading.
    #[error("{name} is read-only")]
    ReadOnly {
        /// The range's name.
        name: String,
    },
    /// No range is registered there.
    #[error("no memory is registered at {address:#x}")]
    Unknown {
        /// The range's start.
        address: usize,
    },
}

/// The memory of a simulated device: the ranges that kernels may access, by their real
/// addresses, and the history of their accesses.
#[derive(Debug)]
pub struct Memory {
    /// In order of address, disjoint.
    ranges: Vec<Registered>,
    next_uid: u32,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// No memory.
    pub fn new() -> Self {
        Self {
            ranges: Vec::new(),
            next_uid: 1,
        }
    }

    /// A buffer of `bytes` bytes, 256-byte aligned, that kernels must write before they read.
    /// It is freed with the memory. Its name appears in faults.
    pub fn alloc(&mut self, name: &str, bytes: usize) -> Buffer {
        let size = bytes.next_multiple_of(GUARD) + 2 * GUARD;
        let layout = Layout::from_size_align(size, GUARD).expect("the size fits an address");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: the allocation has `size` bytes.
        unsafe { start.write_bytes(GARBAGE, size) };
        let address = start.wrapping_add(GUARD).expose_provenance();
        let range = Registered::new(name, address, bytes, true, false, Some(layout));
        let index = self.ranges.partition_point(|other| other.address < address);
        self.ranges.insert(index, range);
        Buffer { address, bytes }
    }

    /// A buffer that holds a copy of `values`.
    pub fn alloc_from<T: Pod>(&mut self, name: &str, values: &[T]) -> Buffer {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = self.alloc(name, bytes.len());
        // SAFETY: the buffer is new and as long.
        unsafe {
            buffer
                .ptr::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        if let Ok(range) = self.writable(buffer) {
            range.initialised = true;
        }
        buffer
    }

    /// Registers memory that somebody else owns. A range inside one that is registered already
    /// with the same rights (or more) and contents is the same memory under a second name.
    ///
    /// # Errors
    /// [`MemoryError::Overlap`] when the range overlaps another in any other way.
    ///
    /// # Safety
    /// - The range stays valid for reads, and for writes with [`Rights::ReadWrite`], until it
    ///   is unregistered or the memory is dropped.
    /// - Nobody else writes it, nor reads it where it is writable, during a run.
    pub unsafe fn register(
        &mut self,
        name: &str,
        start: *mut u8,
        bytes: usize,
        rights: Rights,
        contents: Contents,
    ) -> Result<Buffer, MemoryError> {
        let address = start.expose_provenance();
        let writable = rights == Rights::ReadWrite;
        let initialised = contents == Contents::Initialised;
        let index = self
            .ranges
            .partition_point(|other| other.address <= address);
        let buffer = Buffer { address, bytes };
        let overlap = |other: &Registered| MemoryError::Overlap {
            name: name.to_string(),
            address,
            bytes,
            other: other.name.clone(),
        };
        if let Some(before) = index.checked_sub(1).map(|index| &self.ranges[index]) {
            let inside = before.contains(address, bytes);
            if inside && before.writable >= writable && before.initialised == initialised {
                return Ok(buffer);
            }
            if before.address + before.bytes > address {
                return Err(overlap(before));
            }
        }
        if let Some(after) = self
            .ranges
            .get(index)
            .filter(|after| after.address < address + bytes)
        {
            return Err(overlap(after));
        }
        let range = Registered::new(name, address, bytes, writable, initialised, None);
        self.ranges.insert(index, range);
        Ok(buffer)
    }

    /// Frees a buffer of [`Memory::alloc`].
    ///
    /// # Errors
    /// [`MemoryError::Unknown`] when it is not one of this memory.
    pub fn free(&mut self, buffer: Buffer) -> Result<(), MemoryError> {
        let known = self.ranges.iter().position(|range| {
            range.owned.is_some() && (range.address, range.bytes) == (buffer.address, buffer.bytes)
        });
        let index = known.ok_or(MemoryError::Unknown {
            address: buffer.address,
        })?;
        self.ranges.remove(index).release();
        Ok(())
    }

    /// Forgets a range registered by [`Memory::register`].
    ///
    /// # Errors
    /// [`MemoryError::Unknown`] when no such range is registered.
    pub fn unregister(&mut self, buffer: Buffer) -> Result<(), MemoryError> {
        let known = self.ranges.iter().position(|range| {
            range.owned.is_none() && (range.address, range.bytes) == (buffer.address, buffer.bytes)
        });
        let index = known.ok_or(MemoryError::Unknown {
            address: buffer.address,
        })?;
        self.ranges.remove(index);
        Ok(())
    }

    /// Overwrites the start of a buffer, which kernels may read there from now on.
    ///
    /// # Errors
    /// When the values do not fit the buffer, or it is not writable memory of this one.
    pub fn write<T: Pod>(&mut self, buffer: Buffer, values: &[T]) -> Result<(), MemoryError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if bytes.len() > buffer.bytes {
            let (bytes, room) = (bytes.len(), buffer.bytes);
            return Err(MemoryError::DoesNotFit { bytes, room });
        }
        let range = self.writable(buffer)?;
        // SAFETY: the range is registered and long enough, and no kernel runs.
        unsafe {
            buffer
                .ptr::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        if (buffer.address, bytes.len()) == (range.address, range.bytes) {
            range.initialised = true;
        } else {
            range.each_chunk(buffer.address, bytes.len(), |granules, part, _| {
                granules.initialise(part);
            });
        }
        Ok(())
    }

    /// Makes a buffer's contents garbage again.
    ///
    /// # Errors
    /// When the buffer is not writable memory of this one.
    pub fn forget(&mut self, buffer: Buffer) -> Result<(), MemoryError> {
        let range = self.writable(buffer)?;
        // SAFETY: the range is registered, and no kernel runs.
        unsafe { buffer.ptr::<u8>().write_bytes(GARBAGE, buffer.bytes) };
        if (buffer.address, buffer.bytes) == (range.address, range.bytes) {
            range.initialised = false;
        }
        range.each_chunk(buffer.address, buffer.bytes, |granules, part, _| {
            granules.forget(part)
        });
        Ok(())
    }

    /// The contents of a buffer.
    ///
    /// # Errors
    /// When the buffer is not memory of this one.
    pub fn read<T: Pod>(&self, buffer: Buffer) -> Result<Vec<T>, MemoryError> {
        let Buffer { address, bytes } = buffer;
        self.index(address, bytes)
            .ok_or(MemoryError::Unknown { address })?;
        let mut values = vec![T::zeroed(); bytes / size_of::<T>()];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        // SAFETY: the range is registered and long enough, and no kernel runs.
        unsafe {
            bytes
                .as_mut_ptr()
                .copy_from_nonoverlapping(buffer.ptr(), bytes.len())
        };
        Ok(values)
    }

    fn writable(&mut self, buffer: Buffer) -> Result<&mut Registered, MemoryError> {
        let Buffer { address, bytes } = buffer;
        let index = self
            .index(address, bytes)
            .ok_or(MemoryError::Unknown { address })?;
        let range = &mut self.ranges[index];
        if !range.writable {
            return Err(MemoryError::ReadOnly {
                name: range.name.clone(),
            });
        }
        Ok(range)
    }

    fn index(&self, address: usize, bytes: usize) -> Option<usize> {
        let after = self
            .ranges
            .partition_point(|range| range.address <= address);
        let index = after.checked_sub(1)?;
        self.ranges[index].contains(address, bytes).then_some(index)
    }

    /// The range that holds all of `bytes` bytes at `address`.
    pub(crate) fn find(&self, address: usize, bytes: usize) -> Option<&Registered> {
        self.index(address, bytes).map(|index| &self.ranges[index])
    }

    /// Where an address outside of every range lies.
    pub(crate) fn describe_outside(&self, address: usize) -> String {
        let after = self
            .ranges
            .partition_point(|range| range.address <= address);
        let before = after.checked_sub(1).map(|index| &self.ranges[index]);
        let end = |range: &Registered| range.address + range.bytes;
        match (before, self.ranges.get(after)) {
            (Some(range), _) if address < end(range) => {
                let rest = end(range) - address;
                format!(
                    "{rest} bytes before the end of {}, which has {}",
                    range.name, range.bytes
                )
            }
            (Some(range), next)
                if next.is_none_or(|next| address - end(range) <= next.address - address) =>
            {
                format!(
                    "{} bytes past the end of {}",
                    address - end(range),
                    range.name
                )
            }
            (_, Some(next)) => format!("{} bytes before {}", next.address - address, next.name),
            (_, None) => "no memory is registered".to_string(),
        }
    }

    /// Numbers `blocks` new blocks and returns the first one's, or `None` when none are left.
    pub(crate) fn number_blocks(&mut self, blocks: u32) -> Option<u32> {
        let first = self.next_uid;
        self.next_uid = first.checked_add(blocks).filter(|&next| next < MAX_UID)?;
        Some(first)
    }

    /// After a run without checks nobody knows what was written.
    pub(crate) fn assume_written(&mut self) {
        for range in self.ranges.iter_mut().filter(|range| range.writable) {
            range.initialised = true;
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.ranges.drain(..).for_each(Registered::release);
    }
}
