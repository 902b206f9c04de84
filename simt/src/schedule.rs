//! In which order simulated threads, warps and blocks run.

/// Which of the threads that can run goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The one that has waited longest: threads in turn.
    RoundRobin,
    /// The one that became ready last: one warp runs far ahead of the others.
    LastReady,
    /// Any, by the seed.
    Random,
}

/// A reproducible schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Seeds every random choice.
    pub seed: u64,
    /// The order of a block's threads.
    pub threads: Order,
}

impl Schedule {
    /// The schedule that a seed stands for. Seed 0 is the plain one: everything in turn.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let orders = [Order::RoundRobin, Order::LastReady, Order::Random];
        let threads = if seed == 0 {
            Order::RoundRobin
        } else {
            orders[random.usize(0..3)]
        };
        Self { seed, threads }
    }
}
