//! The history of a block's shared memory.

use super::run::SHARED_BASE;
use crate::check::{Access, Conflict, Granules};
use crate::fault::Action;
use std::ops::Range;

/// Bytes whose granules have one size: the scratch words of a reduction should not make those of
/// vectors smaller.
const PART: usize = 512;

#[derive(Debug)]
pub(super) struct SharedHistory {
    parts: Vec<Granules>,
}

impl SharedHistory {
    pub fn new(bytes: u32) -> Self {
        let parts = (bytes as usize).div_ceil(PART);
        Self {
            parts: (0..parts).map(|_| Granules::new(PART)).collect(),
        }
    }

    /// Checks and records an access of `bytes` bytes in bounds; a conflict comes with its
    /// address.
    pub fn access(
        &mut self,
        address: u32,
        bytes: u32,
        access: &Access<'_>,
        action: Action,
    ) -> Result<(), (u32, Conflict)> {
        self.each_part(address, bytes, |granules, range| match action {
            Action::Write => granules.write(range, access),
            _ => granules.read(range, access, false),
        })
    }

    /// Turns the 8 bytes at an address into an mbarrier.
    pub fn make_mbarrier(
        &mut self,
        address: u32,
        access: &Access<'_>,
    ) -> Result<(), (u32, Conflict)> {
        self.each_part(address, 8, |granules, range| {
            granules.make_mbarrier(range, access)
        })
    }

    fn each_part(
        &mut self,
        address: u32,
        bytes: u32,
        mut f: impl FnMut(&mut Granules, Range<usize>) -> Result<(), Conflict>,
    ) -> Result<(), (u32, Conflict)> {
        let mut start = (address - SHARED_BASE) as usize;
        let end = start + bytes as usize;
        while start < end {
            let part = start / PART;
            let stop = end.min((part + 1) * PART);
            f(
                &mut self.parts[part],
                start - part * PART..stop - part * PART,
            )
            .map_err(|conflict| (SHARED_BASE + (part * PART + conflict.byte) as u32, conflict))?;
            start = stop;
        }
        Ok(())
    }
}
