//! CPU instruction sets: the same source compiled for more than one, chosen when the program runs.
//!
//! Every operation is correctly rounded in all of them, so they give the same bits.

/// An instruction set that this CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// What the crate is compiled for. Without fused multiply-add in hardware it is slow, and
    /// right.
    Baseline,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2Fma(HasAvx2Fma),
}

/// Made only where the CPU has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HasAvx2Fma(());

impl Instructions {
    /// The best of them.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Self::Avx2Fma(HasAvx2Fma(()));
        }
        Self::Baseline
    }

    /// Runs `body`, compiled for the instruction set. `body` and what it calls must be
    /// `#[inline(always)]` to gain from it.
    #[inline(always)]
    pub fn run<R>(self, body: impl FnOnce() -> R) -> R {
        match self {
            Self::Baseline => body(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `HasAvx2Fma` exists, so the CPU has both.
            Self::Avx2Fma(_) => unsafe { run_avx2_fma(body) },
        }
    }
}

/// # Safety
/// - The CPU has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2_fma<R>(body: impl FnOnce() -> R) -> R {
    body()
}
