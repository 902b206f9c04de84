//! One range of memory and the history of its accesses.

use super::GUARD;
use crate::check::{Access, Conflict, Granules};
use crate::fault::Action;
use std::alloc::{Layout, dealloc};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bytes of global memory whose history is kept behind one lock.
const CHUNK: usize = 4096;

/// A registered range.
#[derive(Debug)]
pub(crate) struct Registered {
    pub name: String,
    pub address: usize,
    pub bytes: usize,
    pub writable: bool,
    pub initialised: bool,
    /// Set where the memory frees it.
    pub owned: Option<Layout>,
    /// One for each [`CHUNK`] of addresses that the range touches; made when it is first
    /// accessed with checks.
    history: Vec<Mutex<Option<Box<Granules>>>>,
}

impl Registered {
    pub fn new(
        name: &str,
        address: usize,
        bytes: usize,
        writable: bool,
        initialised: bool,
        owned: Option<Layout>,
    ) -> Self {
        let name = name.to_string();
        let chunks = (address + bytes).div_ceil(CHUNK) - address / CHUNK;
        let history = (0..chunks).map(|_| Mutex::default()).collect();
        Self {
            name,
            address,
            bytes,
            writable,
            initialised,
            owned,
            history,
        }
    }

    /// Frees the memory if it is owned.
    pub fn release(self) {
        if let Some(layout) = self.owned {
            let start = std::ptr::with_exposed_provenance_mut::<u8>(self.address - GUARD);
            // SAFETY: allocated with this layout, `GUARD` bytes before the range.
            unsafe { dealloc(start, layout) };
        }
    }

    pub fn contains(&self, address: usize, bytes: usize) -> bool {
        let offset = address.checked_sub(self.address);
        offset
            .and_then(|offset| offset.checked_add(bytes))
            .is_some_and(|end| end <= self.bytes)
    }

    /// Calls `f` with the history of each part of a range that lies in one chunk, its range in the
    /// chunk, and the chunk's address.
    pub fn each_chunk(
        &self,
        address: usize,
        bytes: usize,
        mut f: impl FnMut(&mut Granules, Range<usize>, usize),
    ) {
        let end = address + bytes;
        let mut start = address;
        while start < end {
            let stop = end.min((start / CHUNK + 1) * CHUNK);
            self.with_chunk(start, |granules| {
                let chunk = start / CHUNK * CHUNK;
                f(granules, start - chunk..stop - chunk, chunk);
            });
            start = stop;
        }
    }

    fn with_chunk<R>(&self, address: usize, f: impl FnOnce(&mut Granules) -> R) -> R {
        let chunk = &self.history[address / CHUNK - self.address / CHUNK];
        let mut chunk = chunk.lock().unwrap_or_else(PoisonError::into_inner);
        f(chunk.get_or_insert_with(|| Box::new(Granules::new(CHUNK))))
    }

    /// Checks and records an access; the conflict comes with its address.
    pub fn access(
        &self,
        address: usize,
        bytes: usize,
        access: &Access<'_>,
        kind: GlobalAccess,
    ) -> Result<(), (usize, Conflict)> {
        let mut result = Ok(());
        let initialised = self.initialised;
        self.each_chunk(address, bytes, |granules, part, chunk| {
            let this = match kind {
                GlobalAccess::Read => granules.read(part, access, initialised),
                GlobalAccess::ReadConstant => granules.read_constant(part, access, initialised),
                GlobalAccess::Write => granules.write(part, access),
                GlobalAccess::Atomic { modifies, stores } => {
                    granules.atomic(part, access, initialised, modifies, stores)
                }
            };
            if let (Ok(()), Err(conflict)) = (&result, this) {
                result = Err((chunk + conflict.byte, conflict));
            }
        });
        result
    }
}

/// The kinds of global access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GlobalAccess {
    Read,
    ReadConstant,
    Write,
    Atomic { modifies: bool, stores: bool },
}

impl GlobalAccess {
    /// A plain access.
    pub fn plain(action: Action) -> Self {
        match action {
            Action::Write => Self::Write,
            Action::ConstantRead => Self::ReadConstant,
            Action::Read | Action::Atomic => Self::Read,
        }
    }
}
