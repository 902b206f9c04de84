//! The access history of a piece of memory.

use super::epoch::{Read, ReadWord};
use super::readers::{Many, Past};
use super::{Access, Conflict, ConflictKind, Epoch};
use std::ops::Range;

/// Sizes of granules: the largest power of two that every access so far is a multiple of.
/// Vector accesses are the common ones and the fastest.
const SIZES: [usize; 3] = [16, 4, 2];

/// The history of a piece of memory, granule by granule. Ranges are in bytes.
#[derive(Debug)]
pub(crate) struct Granules {
    /// Bytes of a granule: one of [`SIZES`].
    size: usize,
    write: Vec<Epoch>,
    read: Vec<ReadWord>,
    /// Sites of the last write and of the last read.
    sites: Vec<[u16; 2]>,
    many: Vec<Many>,
    free: Vec<usize>,
}

impl Granules {
    /// The history of `bytes` bytes that nobody has accessed.
    pub fn new(bytes: usize) -> Self {
        let size = SIZES[0];
        let count = bytes.div_ceil(size);
        Self {
            size,
            write: vec![Epoch::NONE; count],
            read: vec![ReadWord::NOBODY; count],
            sites: vec![[0; 2]; count],
            many: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The granules of a range; they are made smaller when it takes that.
    fn granules(&mut self, bytes: Range<usize>) -> Range<usize> {
        let fits = |size: &usize| (bytes.start | bytes.end).is_multiple_of(*size);
        if !fits(&self.size) {
            let size = SIZES.into_iter().find(fits).unwrap_or(SIZES[2]);
            self.refine(size);
        }
        bytes.start / self.size..bytes.end.div_ceil(self.size)
    }

    #[cold]
    fn refine(&mut self, size: usize) {
        let parts = self.size / size;
        self.size = size;
        self.write = repeat(&self.write, parts);
        self.read = repeat(&self.read, parts);
        self.sites = repeat(&self.sites, parts);
        // Each granule has a set of its own.
        for granule in 0..self.read.len() {
            if let Read::Many(index) = self.read[granule].get()
                && granule % parts != 0
            {
                let many = self.many[index].clone();
                self.read[granule] = ReadWord::many(self.many.len());
                self.many.push(many);
            }
        }
    }

    /// Marks bytes as written by the host.
    pub fn initialise(&mut self, bytes: Range<usize>) {
        let range = self.granules(bytes);
        self.write[range].fill(Epoch::HOST);
    }

    /// Forgets all accesses of bytes.
    pub fn forget(&mut self, bytes: Range<usize>) {
        let range = self.granules(bytes);
        self.write[range.clone()].fill(Epoch::NONE);
        self.read[range].fill(ReadWord::NOBODY);
    }

    /// A read; `initialised` says whether the memory was before its first write.
    pub fn read(
        &mut self,
        bytes: Range<usize>,
        access: &Access<'_>,
        initialised: bool,
    ) -> Result<(), Conflict> {
        let range = self.granules(bytes);
        let mut checked = if initialised {
            Epoch::NONE
        } else {
            Epoch::HOST
        };
        let word = ReadWord::last(access.stamp);
        for granule in range {
            let write = self.write[granule];
            if write != checked {
                self.check_read(granule, write, access)?;
                checked = write;
            }
            if self.read[granule] != word {
                self.note_read(granule, access)?;
            }
        }
        Ok(())
    }

    /// A read that relies on nobody writing during the launch.
    pub fn read_constant(
        &mut self,
        bytes: Range<usize>,
        access: &Access<'_>,
        initialised: bool,
    ) -> Result<(), Conflict> {
        let range = self.granules(bytes);
        let mut checked = if initialised {
            Epoch::NONE
        } else {
            Epoch::HOST
        };
        let word = ReadWord::constant(access.stamp);
        for granule in range {
            let write = self.write[granule];
            if write != checked {
                self.check_read(granule, write, access)?;
                if write.uid() >= access.launch {
                    let kind = ConflictKind::Constant(self.writer(granule));
                    return Err(Conflict {
                        byte: granule * self.size,
                        kind,
                    });
                }
                checked = write;
            }
            if self.read[granule] == word {
                continue;
            }
            if let Read::Many(index) = self.read[granule].get() {
                if let Some(past) = self.many[index].modified_since(access.launch) {
                    return Err(Conflict {
                        byte: granule * self.size,
                        kind: ConflictKind::Constant(past),
                    });
                }
                if let Some(past) = self.many[index].unknown_atomic(access, false) {
                    return Err(Conflict {
                        byte: granule * self.size,
                        kind: ConflictKind::RaceWithAtomic(past),
                    });
                }
                // Readers of the preceding launch, if any, need not be kept apart: a write of
                // this launch is a fault already, and later launches come after both.
                self.release(index);
            }
            self.read[granule] = word;
            self.sites[granule][1] = access.site;
        }
        Ok(())
    }

    /// A write.
    pub fn write(&mut self, bytes: Range<usize>, access: &Access<'_>) -> Result<(), Conflict> {
        let range = self.granules(bytes);
        let mut checked = Epoch::NONE;
        for granule in range {
            let write = self.write[granule];
            if write != checked {
                self.check_write(granule, write, access)?;
                checked = write;
            }
            self.check_readers(granule, access, true)?;
            if let Read::Many(index) = self.read[granule].get() {
                self.release(index);
            }
            self.write[granule] = access.stamp;
            self.read[granule] = ReadWord::NOBODY;
            self.sites[granule][0] = access.site;
        }
        Ok(())
    }

    /// An atomic access; `stores` when it writes without reading.
    pub fn atomic(
        &mut self,
        bytes: Range<usize>,
        access: &Access<'_>,
        initialised: bool,
        modifies: bool,
        stores: bool,
    ) -> Result<(), Conflict> {
        let range = self.granules(bytes);
        for granule in range {
            let write = self.write[granule];
            if write == Epoch::NONE && stores {
                self.write[granule] = Epoch::HOST;
            } else if write != Epoch::NONE || !initialised {
                self.check_read(granule, write, access)?;
            }
            if modifies {
                self.check_readers(granule, access, false)?;
            }
            let index = self.make_many(granule, access);
            self.many[index].add_atomic(modifies, access);
        }
        Ok(())
    }

    /// Turns granules into an mbarrier.
    pub fn make_mbarrier(
        &mut self,
        bytes: Range<usize>,
        access: &Access<'_>,
    ) -> Result<(), Conflict> {
        self.write(bytes.clone(), access)?;
        let range = self.granules(bytes);
        self.write[range].fill(Epoch::MBARRIER);
        Ok(())
    }

    fn writer(&self, granule: usize) -> Past {
        Past {
            epoch: self.write[granule],
            site: self.sites[granule][0],
        }
    }

    fn check_read(
        &self,
        granule: usize,
        write: Epoch,
        access: &Access<'_>,
    ) -> Result<(), Conflict> {
        if write == Epoch::NONE {
            return Err(Conflict {
                byte: granule * self.size,
                kind: ConflictKind::Uninitialised,
            });
        }
        self.check_write(granule, write, access)
    }

    fn check_write(
        &self,
        granule: usize,
        write: Epoch,
        access: &Access<'_>,
    ) -> Result<(), Conflict> {
        let kind = if write == Epoch::NONE {
            return Ok(());
        } else if write == Epoch::MBARRIER {
            ConflictKind::Mbarrier
        } else if !access.knows(write) {
            ConflictKind::RaceWithWrite(self.writer(granule))
        } else if !access.sees(write) {
            ConflictKind::ProxyFence(self.writer(granule))
        } else {
            return Ok(());
        };
        Err(Conflict {
            byte: granule * self.size,
            kind,
        })
    }

    /// Checks a modification against the readers, and a plain one against atomics.
    fn check_readers(
        &self,
        granule: usize,
        access: &Access<'_>,
        plain: bool,
    ) -> Result<(), Conflict> {
        let site = self.sites[granule][1];
        let kind = match self.read[granule].get() {
            Read::Nobody => return Ok(()),
            Read::Last(epoch) if access.knows(epoch) => return Ok(()),
            Read::Last(epoch) => ConflictKind::RaceWithRead(Past { epoch, site }),
            Read::Constant(epoch) if epoch.uid() < access.by.view().floor => return Ok(()),
            Read::Constant(epoch) if epoch.uid() < access.launch => {
                ConflictKind::RaceWithRead(Past { epoch, site })
            }
            Read::Constant(epoch) => ConflictKind::Constant(Past { epoch, site }),
            Read::Many(index) => {
                let many = &self.many[index];
                if let Some(past) = many.unknown_reader(access) {
                    ConflictKind::RaceWithRead(past)
                } else if let Some(past) = many.unknown_atomic(access, true).filter(|_| plain) {
                    ConflictKind::RaceWithAtomic(past)
                } else {
                    return Ok(());
                }
            }
        };
        Err(Conflict {
            byte: granule * self.size,
            kind,
        })
    }

    fn note_read(&mut self, granule: usize, access: &Access<'_>) -> Result<(), Conflict> {
        let past = Past {
            epoch: access.stamp,
            site: access.site,
        };
        match self.read[granule].get() {
            Read::Constant(epoch) if epoch.uid() >= access.launch => return Ok(()),
            Read::Last(epoch) | Read::Constant(epoch) if !access.knows(epoch) => {
                let index = self.make_many(granule, access);
                self.many[index].add_reader(past, access);
                return Ok(());
            }
            Read::Many(index) => {
                if let Some(past) = self.many[index].unknown_atomic(access, false) {
                    let kind = ConflictKind::RaceWithAtomic(past);
                    return Err(Conflict {
                        byte: granule * self.size,
                        kind,
                    });
                }
                self.many[index].add_reader(past, access);
                return Ok(());
            }
            Read::Nobody | Read::Last(_) | Read::Constant(_) => {}
        }
        self.read[granule] = ReadWord::last(access.stamp);
        self.sites[granule][1] = access.site;
        Ok(())
    }

    /// The granule's set of accesses; made from its one reader if it has none yet.
    fn make_many(&mut self, granule: usize, access: &Access<'_>) -> usize {
        let read = self.read[granule].get();
        if let Read::Many(index) = read {
            return index;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.many.push(Many::default());
            self.many.len() - 1
        });
        if let Read::Last(epoch) | Read::Constant(epoch) = read {
            let past = Past {
                epoch,
                site: self.sites[granule][1],
            };
            self.many[index].add_reader(past, access);
        }
        self.read[granule] = ReadWord::many(index);
        index
    }

    fn release(&mut self, index: usize) {
        self.many[index].clear();
        self.free.push(index);
    }
}

/// Each value `times` times.
fn repeat<T: Copy>(values: &[T], times: usize) -> Vec<T> {
    values
        .iter()
        .flat_map(|&value| std::iter::repeat_n(value, times))
        .collect()
}
