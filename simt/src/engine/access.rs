//! Accesses of memory by threads.

use super::context::Context;
use super::run::{SHARED_BASE, Site};
use crate::FaultKind;
use crate::check::{Access, Knowledge, sites};
use crate::fault::{Action, Place, Space};
use crate::memory::{GlobalAccess, Registered};

impl Context<'_> {
    /// An access of a thread itself.
    pub(super) fn plain_access<'a>(&self, by: &'a Knowledge, site: Site) -> Access<'a> {
        let (stamp, site) = (by.epoch(), sites::number(site));
        Access {
            stamp,
            by,
            site,
            launch: self.planned.first_uid,
            proxies: None,
        }
    }

    pub(super) fn shared_place(&self, address: u32) -> Place {
        let (offset, size) = (
            address.wrapping_sub(SHARED_BASE),
            self.planned.launch.shared_bytes,
        );
        let description = format!("byte {} of {size}", offset as i32);
        Place {
            space: Space::Shared,
            address: u64::from(address),
            description,
        }
    }

    /// The host address of shared memory, within bounds and aligned.
    pub(super) fn shared_range(
        &self,
        address: u32,
        bytes: u32,
        align: u32,
        action: Action,
    ) -> Result<*mut u8, FaultKind> {
        if !address.is_multiple_of(align) {
            return Err(FaultKind::Misaligned {
                action,
                bytes,
                place: self.shared_place(address),
            });
        }
        let pointer = self.shared_pointer(address, bytes);
        pointer.ok_or_else(|| FaultKind::OutOfBounds {
            action,
            bytes,
            place: self.shared_place(address),
        })
    }

    /// Checks a thread's access of shared memory and returns its host address.
    #[inline(always)]
    pub fn shared(&self, site: Site, address: u32, bytes: u32, action: Action) -> *mut u8 {
        if !self.checks
            && let Some(pointer) = self.shared_pointer(address, bytes)
        {
            return pointer;
        }
        self.check_shared(site, address, bytes, action)
    }

    fn check_shared(&self, site: Site, address: u32, bytes: u32, action: Action) -> *mut u8 {
        self.spend(site);
        self.with(site, |state, thread| {
            let pointer = self.shared_range(address, bytes, bytes, action)?;
            let access = self.plain_access(&state.threads[thread].knowledge, site);
            let result = state.history.access(address, bytes, &access, action);
            result.map_err(|(address, conflict)| {
                self.run
                    .conflict(self.shared_place(address), action, conflict)
            })?;
            Ok(pointer)
        })
    }

    /// The registered range of a global access, with the rights for it.
    pub(super) fn global_range(
        &self,
        address: usize,
        bytes: u32,
        align: u32,
        action: Action,
        writes: bool,
    ) -> Result<&Registered, FaultKind> {
        let place = || self.run.global_place(address);
        if !address.is_multiple_of(align as usize) {
            return Err(FaultKind::Misaligned {
                action,
                bytes,
                place: place(),
            });
        }
        let range = self.run.memory.find(address, bytes as usize);
        let range = range.ok_or_else(|| FaultKind::OutOfBounds {
            action,
            bytes,
            place: place(),
        })?;
        if writes && !range.writable {
            return Err(FaultKind::ReadOnly {
                action,
                place: place(),
            });
        }
        Ok(range)
    }

    /// Checks a thread's access of global memory. Returns by how many bytes it is displaced.
    #[inline(always)]
    pub fn global(&self, site: Site, address: usize, bytes: u32, action: Action) -> isize {
        if self.unchanged {
            return 0;
        }
        let displaced = self.run.displace(action, bytes, site, address);
        if self.checks {
            self.check_global(site, displaced, bytes, action);
        }
        displaced.wrapping_sub(address).cast_signed()
    }

    fn check_global(&self, site: Site, address: usize, bytes: u32, action: Action) {
        self.spend(site);
        let kind = GlobalAccess::plain(action);
        self.with(site, |state, thread| {
            let writes = action == Action::Write;
            let range = self.global_range(address, bytes, bytes, action, writes)?;
            let access = self.plain_access(&state.threads[thread].knowledge, site);
            range
                .access(address, bytes as usize, &access, kind)
                .map_err(|(address, conflict)| {
                    self.run
                        .conflict(self.run.global_place(address), action, conflict)
                })
        });
    }

    fn spend(&self, site: Site) {
        let left = self.budget.get();
        if left == 0 {
            let message = "a thread makes access after access without synchronisation".to_string();
            self.raise(site, FaultKind::Limit(message));
        }
        self.budget.set(left - 1);
    }
}
