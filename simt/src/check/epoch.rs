//! Stamps of accesses.

/// Clocks a slot may reach.
pub(crate) const MAX_CLOCK: u32 = (1 << 24) - 1;
/// Blocks a memory may see before it must be created anew.
pub(crate) const MAX_UID: u32 = (1 << 26) - 1;

/// Who accessed, and when: 26 bits of block, 12 of slot, 24 of clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

impl Epoch {
    /// Nobody yet.
    pub const NONE: Self = Self(0);
    /// The host, before every launch.
    pub const HOST: Self = Self(1);
    /// The bytes are an mbarrier.
    pub const MBARRIER: Self = Self((1 << 62) - 1);

    pub fn new(uid: u32, slot: u32, clock: u32) -> Self {
        debug_assert!(uid <= MAX_UID && slot < 1 << 12 && clock <= MAX_CLOCK);
        Self(u64::from(uid) << 36 | u64::from(slot) << 24 | u64::from(clock))
    }

    pub fn uid(self) -> u32 {
        (self.0 >> 36) as u32
    }

    pub fn slot(self) -> u32 {
        (self.0 >> 24) as u32 & 0xfff
    }

    pub fn clock(self) -> u32 {
        self.0 as u32 & MAX_CLOCK
    }
}

/// A granule's readers since its last write, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadWord(u64);

/// What a [`ReadWord`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Nobody,
    /// One reader that knew of all readers before.
    Last(Epoch),
    /// A reader that relies on nobody writing during its launch; its clock is [`MAX_CLOCK`].
    Constant(Epoch),
    /// Index of a set of readers.
    Many(usize),
}

impl ReadWord {
    pub const NOBODY: Self = Self(0);
    const CONSTANT: u64 = 1 << 63;
    const MANY: u64 = 1 << 62;

    pub fn last(epoch: Epoch) -> Self {
        Self(epoch.0)
    }

    pub fn constant(epoch: Epoch) -> Self {
        Self(Self::CONSTANT | epoch.0 | u64::from(MAX_CLOCK))
    }

    pub fn many(index: usize) -> Self {
        Self(Self::MANY | index as u64)
    }

    pub fn get(self) -> Read {
        if self.0 == 0 {
            Read::Nobody
        } else if self.0 & Self::CONSTANT != 0 {
            Read::Constant(Epoch(self.0 & !Self::CONSTANT))
        } else if self.0 & Self::MANY != 0 {
            Read::Many((self.0 & !Self::MANY) as usize)
        } else {
            Read::Last(Epoch(self.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_survive_packing() {
        for (uid, slot, clock) in [(0, 0, 1), (MAX_UID, 4094, MAX_CLOCK), (7, 1023, 9)] {
            let epoch = Epoch::new(uid, slot, clock);
            assert_eq!(
                (epoch.uid(), epoch.slot(), epoch.clock()),
                (uid, slot, clock)
            );
            assert_eq!(ReadWord::last(epoch).get(), Read::Last(epoch));
            let Read::Constant(constant) = ReadWord::constant(epoch).get() else {
                panic!("not a constant read");
            };
            assert_eq!((constant.uid(), constant.slot()), (uid, slot));
            assert_eq!(constant.clock(), MAX_CLOCK);
        }
        assert_eq!(ReadWord::many(5).get(), Read::Many(5));
        assert_eq!(ReadWord::NOBODY.get(), Read::Nobody);
    }
}
