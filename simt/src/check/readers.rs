//! Sets of accesses for granules that one word cannot describe: several readers that do not know
//! of each other, and atomics.

use super::{Access, Epoch};

/// How far back a reader looks for others of its block.
const LATEST: usize = 4;

/// An access of the past.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    pub epoch: Epoch,
    pub site: u16,
}

/// Threads of one block that read at the same clock.
#[derive(Clone, Debug)]
struct Group {
    uid: u32,
    clock: u32,
    site: u16,
    threads: [u64; 16],
}

/// An atomic access. Its slot is the thread's for atomics.
#[derive(Clone, Copy, Debug)]
struct Atomic {
    past: Past,
    thread: u32,
    modifies: bool,
}

impl Atomic {
    /// The access as its thread's.
    fn by_thread(&self) -> Past {
        let Past { epoch, site } = self.past;
        let epoch = Epoch::new(epoch.uid(), self.thread, epoch.clock());
        Past { epoch, site }
    }
}

/// Accesses since the last plain write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Many {
    groups: Vec<Group>,
    /// Readers alone in their block and clock.
    singles: Vec<Past>,
    atomics: Vec<Atomic>,
    /// Readers at which those that are known to the next are forgotten.
    crowded: usize,
}

impl Many {
    pub fn clear(&mut self) {
        self.groups.clear();
        self.singles.clear();
        self.atomics.clear();
        self.crowded = 0;
    }

    /// Adds a reader; now and then forgets those that `by` knows of.
    pub fn add_reader(&mut self, reader: Past, by: &Access<'_>) {
        let epoch = reader.epoch;
        let slot = epoch.slot() as usize;
        if slot < 1024 {
            // Threads of a block read together: a look at the latest finds them.
            let same =
                |group: &&mut Group| (group.uid, group.clock) == (epoch.uid(), epoch.clock());
            if let Some(group) = self.groups.iter_mut().rev().take(LATEST).find(same) {
                group.threads[slot / 64] |= 1 << (slot % 64);
                return;
            }
            let beside = |past: &Past| {
                let other = past.epoch;
                (other.uid(), other.clock()) == (epoch.uid(), epoch.clock()) && other.slot() < 1024
            };
            let first = self.singles.len().saturating_sub(LATEST);
            if let Some(index) = self.singles[first..].iter().position(beside) {
                if self.singles[first + index].epoch != epoch {
                    let other = self.singles.swap_remove(first + index);
                    self.groups.push(Group::of(other, reader));
                }
                return;
            }
        }
        if self.groups.len() + self.singles.len() >= self.crowded.max(LATEST) {
            self.groups
                .retain(|group| group.first_unknown(by).is_some());
            self.singles.retain(|past| !by.knows(past.epoch));
            self.crowded = 2 * (self.groups.len() + self.singles.len());
        }
        self.singles.push(reader);
    }

    pub fn add_atomic(&mut self, modifies: bool, by: &Access<'_>) {
        self.atomics.retain(|atomic| !by.knows(atomic.past.epoch));
        let past = Past {
            epoch: by.stamp,
            site: by.site,
        };
        let thread = by.by.epoch().slot();
        self.atomics.push(Atomic {
            past,
            thread,
            modifies,
        });
    }

    /// Some reader that `by` does not know of.
    pub fn unknown_reader(&self, by: &Access<'_>) -> Option<Past> {
        let group = self.groups.iter().find_map(|group| group.first_unknown(by));
        group.or_else(|| {
            self.singles
                .iter()
                .find(|past| !by.knows(past.epoch))
                .copied()
        })
    }

    /// Some atomic that `by` does not know of; only those that modify when `by` only reads.
    pub fn unknown_atomic(&self, by: &Access<'_>, by_writes: bool) -> Option<Past> {
        let conflicts =
            |atomic: &&Atomic| (by_writes || atomic.modifies) && !by.knows(atomic.past.epoch);
        self.atomics.iter().find(conflicts).map(Atomic::by_thread)
    }

    /// Some atomic that modified in a block from `first` on.
    pub fn modified_since(&self, first: u32) -> Option<Past> {
        let modified = |atomic: &&Atomic| atomic.modifies && atomic.past.epoch.uid() >= first;
        self.atomics.iter().find(modified).map(Atomic::by_thread)
    }
}

impl Group {
    fn of(a: Past, b: Past) -> Self {
        let mut threads = [0; 16];
        for slot in [a.epoch.slot() as usize, b.epoch.slot() as usize] {
            threads[slot / 64] |= 1 << (slot % 64);
        }
        Self {
            uid: a.epoch.uid(),
            clock: a.epoch.clock(),
            site: a.site,
            threads,
        }
    }

    fn first_unknown(&self, by: &Access<'_>) -> Option<Past> {
        if self.uid < by.by.view().floor {
            return None;
        }
        for (word, &bits) in self.threads.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let slot = word as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let epoch = Epoch::new(self.uid, slot, self.clock);
                if !by.knows(epoch) {
                    return Some(Past {
                        epoch,
                        site: self.site,
                    });
                }
            }
        }
        None
    }
}
