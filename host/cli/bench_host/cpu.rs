//! The CPU that calls are timed on.
//!
//! On a server that others share, a core's second hardware thread may be at somebody else's work:
//! what a call takes then depends, by a third and more, on where the system puts the thread.

use std::time::Instant;

/// Each CPU does the work that they are compared by this often; its median counts.
const RUNS: usize = 9;

/// Moves this thread to the one of `cpus` that takes the least time for `work` now. Does nothing
/// where the system lets no thread choose.
pub fn move_to_quietest(cpus: &Affinity, work: impl Fn()) {
    let times = cpus
        .each()
        .map(Affinity::of_one)
        .filter(Affinity::set)
        .map(|cpu| (median_ns(&work), cpu));
    if let Some((_, cpu)) = times.min_by(|a, b| a.0.total_cmp(&b.0)) {
        cpu.set();
    }
}

fn median_ns(work: impl Fn()) -> f64 {
    let mut times = [(); RUNS].map(|()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e9
    });
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

pub use affinity::Affinity;

#[cfg(target_os = "linux")]
mod affinity {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The CPUs that a thread may run on.
    #[derive(Clone, Copy)]
    pub struct Affinity(CpuSet);

    impl Affinity {
        /// Of this thread; none of them where the system does not say.
        pub fn of_this_thread() -> Self {
            Self(sched_getaffinity(None).unwrap_or_default())
        }

        pub(super) fn of_one(cpu: usize) -> Self {
            let mut set = CpuSet::new();
            set.set(cpu);
            Self(set)
        }

        pub(super) fn each(&self) -> impl Iterator<Item = usize> {
            (0..CpuSet::MAX_CPU).filter(|&cpu| self.0.is_set(cpu))
        }

        /// Gives these to this thread; whether the system did.
        pub fn set(&self) -> bool {
            sched_setaffinity(None, &self.0).is_ok()
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod affinity {
    /// Here the system alone decides where threads run.
    #[derive(Clone, Copy)]
    pub struct Affinity;

    impl Affinity {
        pub fn of_this_thread() -> Self {
            Self
        }

        pub(super) fn of_one(_: usize) -> Self {
            Self
        }

        pub(super) fn each(&self) -> impl Iterator<Item = usize> {
            std::iter::empty()
        }

        pub fn set(&self) -> bool {
            false
        }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_moved_and_moves_back() {
        let before = Affinity::of_this_thread();
        let cpus: Vec<usize> = before.each().collect();
        move_to_quietest(&before, || assert!(std::hint::black_box(1) > 0));
        let there: Vec<usize> = Affinity::of_this_thread().each().collect();
        assert!(there.len() == 1 && cpus.contains(&there[0]));
        assert!(before.set());
        let after: Vec<usize> = Affinity::of_this_thread().each().collect();
        assert_eq!(after, cpus);
    }
}
