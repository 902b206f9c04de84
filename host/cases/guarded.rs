//! Memory of a device, with NaN around what it holds.

use super::Layout;
use crate::Error;
use crate::backend::Backend;
use crate::backend::sim::SimBuffer;
use std::ops::Range;

/// Memory of a device. Copies happen while nothing runs.
pub trait Memory<E> {
    /// Where it lies: a multiple of 16.
    fn address(&self) -> u64;

    /// Copies `bytes` to byte `at` and behind, inside the memory.
    ///
    /// # Errors
    /// - What the device reports.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), E>;

    /// `bytes` bytes from byte `at` on, which were written before.
    ///
    /// # Errors
    /// - What the device reports.
    fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, E>;
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

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.part(at, bytes.len())?.write(bytes)
    }

    fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, Error> {
        SimBuffer::read(&self.part(at, bytes)?)
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
/// Bytes between rows of which not all are looked at.
const LARGE_GAP: usize = 1 << 24;
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

    /// The buffer's bytes; but of a gap that is larger than [`LARGE_GAP`] only both ends.
    fn windows(&self) -> Vec<Range<usize>> {
        let mut rows: Vec<usize> = (0..self.rows).map(|row| self.row(row)).collect();
        rows.sort_unstable();
        let mut windows = Vec::new();
        let mut start = 0;
        for pair in rows.windows(2) {
            let (end, next) = (pair[0] + self.row_bytes(), pair[1]);
            if next > end + LARGE_GAP {
                windows.push(start..end + GUARD);
                start = next - GUARD;
            }
        }
        windows.push(start..self.bytes());
        windows
    }
}

/// A buffer of rows with NaN around them and between.
pub(super) struct Guarded<D: Device> {
    name: &'static str,
    memory: D::Memory,
    place: Place,
    /// What it holds, by the byte where it begins.
    windows: Vec<(usize, Vec<u8>)>,
}

impl<D: Device> Guarded<D> {
    /// With packed `values`, or NaN everywhere.
    pub(super) fn new(
        device: &D,
        name: &'static str,
        place: Place,
        values: Option<&[u8]>,
    ) -> Result<Self, D::Error> {
        let windows = place.windows().into_iter();
        let mut windows: Vec<_> = windows
            .map(|window| (window.start, vec![NAN; window.len()]))
            .collect();
        let width = place.row_bytes();
        if let Some(values) = values {
            for row in 0..place.rows {
                let values = &values[row * width..][..width];
                locate(&mut windows, place.row(row), width).copy_from_slice(values);
            }
        }
        let mut memory = device.alloc(name, place.bytes())?;
        for (at, bytes) in &windows {
            memory.write(*at, bytes)?;
        }
        Ok(Self {
            name,
            memory,
            place,
            windows,
        })
    }

    /// Of row 0.
    pub(super) fn address(&self) -> u64 {
        self.memory.address() + self.place.row(0) as u64
    }

    fn read(&self) -> Result<Vec<(usize, Vec<u8>)>, D::Error> {
        let windows = self.windows.iter();
        windows
            .map(|(at, bytes)| Ok((*at, self.memory.read(*at, bytes.len())?)))
            .collect()
    }

    /// What it holds now is what it must hold from here on.
    pub(super) fn keep(&mut self) -> Result<(), D::Error> {
        self.windows = self.read()?;
        Ok(())
    }

    /// It must hold what it held.
    pub(super) fn check_unwritten(&self, failures: &mut Vec<String>) -> Result<(), D::Error> {
        if self.read()? != self.windows {
            failures.push(format!("{} was written", self.name));
        }
        Ok(())
    }

    /// The rows, packed. What was written beside them is a failure.
    pub(super) fn outputs(&self, failures: &mut Vec<String>) -> Result<Vec<u8>, D::Error> {
        let mut windows = self.read()?;
        let width = self.place.row_bytes();
        let mut rows = Vec::with_capacity(self.place.rows * width);
        for row in 0..self.place.rows {
            let row = locate(&mut windows, self.place.row(row), width);
            rows.extend_from_slice(row);
            row.fill(NAN);
        }
        for (at, bytes) in &windows {
            if let Some(byte) = bytes.iter().position(|&byte| byte != NAN) {
                let (byte, first) = (at + byte, self.place.row(0));
                failures.push(format!(
                    "{}: byte {byte} was written, the first element's is {first}",
                    self.name
                ));
            }
        }
        Ok(rows)
    }
}

/// The bytes of a row that starts at byte `start`.
fn locate(windows: &mut [(usize, Vec<u8>)], start: usize, width: usize) -> &mut [u8] {
    let behind = windows.partition_point(|(at, _)| *at <= start);
    let (at, bytes) = &mut windows[behind.saturating_sub(1)];
    &mut bytes[start - *at..][..width]
}
