//! Memory in which arbitrary calls find their arguments, and what becomes of such a call.

use cake_rmsnorm::Error;
use cake_rmsnorm::backend::sim::Sim;
use cake_rmsnorm::plan::DeviceProperties;

/// What became of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The operator or the call was refused.
    Refused(Error),
    /// It ran, and was as it should be. `shares`: an output lay in the place of an input, or, in the
    /// gated form, in another tensor's gaps.
    Ran { shares: bool },
    /// Its memory is not the arena's, so that only a backend that touches none was asked.
    Elsewhere,
}

/// Bytes of the arena.
pub const ARENA: usize = 16 << 10;

/// Memory that starts at a multiple of 16 bytes.
#[derive(Clone, PartialEq)]
pub struct Memory(Vec<u128>);

impl Memory {
    pub fn new(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(16)])
    }

    /// Numbers of every kind.
    pub fn random(bytes: usize, seed: u64) -> Self {
        let mut memory = Self::new(bytes);
        let mut state = seed | 1;
        for byte in memory.bytes_mut() {
            // Xorshift.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 32) as u8;
        }
        memory
    }

    pub fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: any bytes are bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 16) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and any bytes are a number.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 16) }
    }
}

/// Makes a call under the simulator, whose memory is the arena alone, holding what was `before`: what
/// the arena holds then. The arena itself is as it was afterwards.
///
/// # Panics
/// When the simulator finds a fault.
pub fn simulated(
    arena: &mut Memory,
    before: &Memory,
    call: impl FnOnce(&Sim) -> cake_rmsnorm::Result<()>,
) -> Vec<u8> {
    let after = arena.bytes().to_vec();
    let sim = Sim::new().with_sm_count(DeviceProperties::H200.sm_count);
    let start = arena.0.as_mut_ptr().cast();
    // SAFETY: the arena lives on, and nobody else uses it while the simulator is there.
    let buffer = unsafe { sim.register("arena", start, after.len()) }.expect("memory");
    buffer.write(before.bytes()).expect("it fits");
    call(&sim).expect("no fault");
    let found = buffer.read().expect("it is known");
    arena.bytes_mut().copy_from_slice(&after);
    found
}
