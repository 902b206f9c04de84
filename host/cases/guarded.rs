//! Memory of a device, with NaN around what it holds.

use super::Layout;
use crate::Error;
use crate::backend::Backend;
use crate::backend::sim::SimBuffer;

/// Memory of a device. Copies happen while nothing runs.
pub trait Memory<E> {
    /// Where it lies: a multiple of 16.
    fn address(&self) -> u64;

    /// Copies `bytes`, as many as the memory has.
    ///
    /// # Errors
    /// - What the device reports.
    fn write(&mut self, bytes: &[u8]) -> Result<(), E>;

    /// All bytes.
    ///
    /// # Errors
    /// - What the device reports.
    fn read(&self) -> Result<Vec<u8>, E>;
}

/// A backend, and memory that it can reach.
pub trait Device {
    /// What can go wrong.
    type Error: From<Error>;
    /// Memory.
    type Memory: Memory<Self::Error>;

    /// What runs the case.
    fn backend(&self) -> &dyn Backend;

    /// `bytes` bytes; `name` is for errors.
    ///
    /// # Errors
    /// - What the device reports.
    fn alloc(&self, name: &'static str, bytes: usize) -> Result<Self::Memory, Self::Error>;

    /// Waits for everything that was enqueued.
    ///
    /// # Errors
    /// - What the device reports.
    fn synchronize(&self) -> Result<(), Self::Error>;
}

impl Memory<Error> for SimBuffer {
    fn address(&self) -> u64 {
        SimBuffer::address(self)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        SimBuffer::write(self, bytes)
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        SimBuffer::read(self)
    }
}

/// Where rows lie in a guarded buffer.
#[derive(Clone, Copy)]
pub(super) struct Place {
    layout: Layout,
    rows: usize,
    hidden: usize,
    /// Bytes of an element.
    size: usize,
}

/// Bytes of NaN before and behind everything.
const GUARD: usize = 64;
/// A byte of which NaN of every type is made.
const NAN: u8 = 0xff;

impl Place {
    pub(super) fn new(layout: Layout, rows: usize, hidden: usize, size: usize) -> Self {
        Self {
            layout,
            rows,
            hidden,
            size,
        }
    }

    /// Bytes of the buffer.
    fn bytes(&self) -> usize {
        let elements = self.layout.offset + self.layout.extent(self.rows, self.hidden);
        2 * GUARD + elements * self.size
    }

    /// Where a row's bytes start.
    fn row(&self, row: usize) -> usize {
        let start = self.layout.start(row, self.rows, self.hidden);
        GUARD + (self.layout.offset + start) * self.size
    }

    fn row_bytes(&self) -> usize {
        self.hidden * self.size
    }
}

/// A buffer of rows with NaN around them and between.
pub(super) struct Guarded<D: Device> {
    name: &'static str,
    memory: D::Memory,
    place: Place,
    image: Vec<u8>,
}

impl<D: Device> Guarded<D> {
    /// With packed `values`, or NaN everywhere.
    pub(super) fn new(
        device: &D,
        name: &'static str,
        place: Place,
        values: Option<&[u8]>,
    ) -> Result<Self, D::Error> {
        let mut image = vec![NAN; place.bytes()];
        let width = place.row_bytes();
        if let Some(values) = values {
            for row in 0..place.rows {
                let start = place.row(row);
                image[start..start + width].copy_from_slice(&values[row * width..][..width]);
            }
        }
        let mut memory = device.alloc(name, image.len())?;
        memory.write(&image)?;
        Ok(Self {
            name,
            memory,
            place,
            image,
        })
    }

    /// Of row 0.
    pub(super) fn address(&self) -> u64 {
        self.memory.address() + self.place.row(0) as u64
    }

    /// What it holds now is what it must hold from here on.
    pub(super) fn keep(&mut self) -> Result<(), D::Error> {
        self.image = self.memory.read()?;
        Ok(())
    }

    /// It must hold what it held.
    pub(super) fn check_unwritten(&self, failures: &mut Vec<String>) -> Result<(), D::Error> {
        if self.memory.read()? != self.image {
            failures.push(format!("{} was written", self.name));
        }
        Ok(())
    }

    /// The rows, packed. What was written beside them is a failure.
    pub(super) fn outputs(&self, failures: &mut Vec<String>) -> Result<Vec<u8>, D::Error> {
        let mut bytes = self.memory.read()?;
        let width = self.place.row_bytes();
        let mut rows = Vec::with_capacity(self.place.rows * width);
        for row in 0..self.place.rows {
            let row = &mut bytes[self.place.row(row)..][..width];
            rows.extend_from_slice(row);
            row.fill(NAN);
        }
        if let Some(at) = bytes.iter().position(|&byte| byte != NAN) {
            let first = self.place.row(0);
            failures.push(format!(
                "{}: byte {at} was written, the first element's is {first}",
                self.name
            ));
        }
        Ok(rows)
    }
}
