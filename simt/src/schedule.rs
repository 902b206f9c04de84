//! In which order simulated threads, warps, blocks and copies run.

use std::collections::VecDeque;

/// Which of a block's threads that can run goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Warps in turn, each as far as it can go; its lanes in order.
    RoundRobin,
    /// The one that became ready last: one warp runs far ahead of the others.
    LastReady,
    /// Any, by the seed.
    Random,
    /// The one whose warp has the highest priority; priorities change now and then.
    Priority,
}

/// Which of a grid's blocks start first, and whose atomics are served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOrder {
    /// By ascending index.
    Ascending,
    /// By descending index.
    Descending,
    /// Any, by the seed.
    Random,
    /// One block starts last, and is served only when the others cannot go on.
    Late,
}

/// When asynchronous copies move their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyTiming {
    /// When they are issued.
    Immediate,
    /// Some time, by the seed.
    Random,
    /// When no thread of the block can go on without.
    Late,
}

/// A reproducible schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Seeds every random choice.
    pub seed: u64,
    /// The order of a block's threads.
    pub threads: Order,
    /// The order of a grid's blocks.
    pub blocks: BlockOrder,
    /// Most blocks of a stream that are resident at once; as many as the simulator can hold
    /// when `None`. Launches that ask for it are resident as a whole.
    pub resident: Option<u32>,
    /// When asynchronous copies happen.
    pub copies: CopyTiming,
    /// Whether a dependent launch starts as soon as it may, or as late.
    pub early_dependents: bool,
}

impl Schedule {
    /// Everything in turn, copies late.
    pub const PLAIN: Self = Self {
        seed: 0,
        threads: Order::RoundRobin,
        blocks: BlockOrder::Ascending,
        resident: None,
        copies: CopyTiming::Late,
        early_dependents: true,
    };

    /// The schedule that a seed stands for: 0 is [`Schedule::PLAIN`], any other a random mix.
    pub fn from_seed(seed: u64) -> Self {
        if seed == 0 {
            return Self::PLAIN;
        }
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pick = |choices: usize| random.usize(0..choices);
        Self {
            seed,
            threads: [
                Order::RoundRobin,
                Order::LastReady,
                Order::Random,
                Order::Priority,
            ][pick(4)],
            blocks: [
                BlockOrder::Ascending,
                BlockOrder::Descending,
                BlockOrder::Random,
                BlockOrder::Late,
            ][pick(4)],
            resident: [None, Some(1), Some(2), Some(3), Some(7)][pick(5)],
            copies: [CopyTiming::Immediate, CopyTiming::Random, CopyTiming::Late][pick(3)],
            early_dependents: pick(2) == 0,
        }
    }
}

/// The threads of a block that can run.
#[derive(Debug)]
pub(crate) struct Ready {
    order: Order,
    random: fastrand::Rng,
    threads: VecDeque<u32>,
    /// For orders by warp, instead of `threads`: the lanes of each.
    lanes: Vec<u32>,
    /// For [`Order::RoundRobin`], the warp whose turn it is.
    turn: usize,
    /// For [`Order::Priority`].
    priorities: Vec<u32>,
}

impl Ready {
    /// All threads of `warps` warps.
    pub fn new(order: Order, seed: u64, warps: u32) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let priorities = (0..warps).map(|_| random.u32(..)).collect();
        let lanes = vec![0; warps as usize];
        let mut ready = Self {
            order,
            random,
            threads: VecDeque::new(),
            lanes,
            turn: 0,
            priorities,
        };
        (0..warps * 32).for_each(|thread| ready.push(thread));
        ready
    }

    pub fn push(&mut self, thread: u32) {
        if matches!(self.order, Order::RoundRobin | Order::Priority) {
            self.lanes[thread as usize / 32] |= 1 << (thread % 32);
        } else {
            self.threads.push_back(thread);
        }
    }

    /// All lanes of a warp.
    pub fn push_warp(&mut self, warp: u32) {
        if matches!(self.order, Order::RoundRobin | Order::Priority) {
            self.lanes[warp as usize] = u32::MAX;
        } else {
            self.threads.extend(warp * 32..warp * 32 + 32);
        }
    }

    pub fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }

    pub fn pop(&mut self) -> Option<u32> {
        match self.order {
            Order::RoundRobin => self.pop_in_turn(),
            Order::LastReady => self.threads.pop_back(),
            Order::Random if self.threads.is_empty() => None,
            Order::Random => {
                let index = self.random.usize(0..self.threads.len());
                self.threads.swap_remove_back(index)
            }
            Order::Priority => self.pop_priority(),
        }
    }

    fn pop_priority(&mut self) -> Option<u32> {
        if self.random.u32(0..256) == 0 {
            let warp = self.random.usize(0..self.priorities.len());
            self.priorities[warp] = self.random.u32(..);
        }
        let ready = (0..self.lanes.len()).filter(|&warp| self.lanes[warp] != 0);
        let warp = ready.max_by_key(|&warp| self.priorities[warp])?;
        Some(self.pop_lane(warp))
    }

    fn pop_in_turn(&mut self) -> Option<u32> {
        if self.lanes[self.turn] == 0 {
            let (before, after) = self.lanes.split_at(self.turn);
            let mut others = after.iter().chain(before);
            self.turn += others.position(|&lanes| lanes != 0)?;
            self.turn %= self.lanes.len();
        }
        Some(self.pop_lane(self.turn))
    }

    fn pop_lane(&mut self, warp: usize) -> u32 {
        let lane = self.lanes[warp].trailing_zeros();
        self.lanes[warp] &= self.lanes[warp] - 1;
        warp as u32 * 32 + lane
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(order: Order, seed: u64) -> Vec<u32> {
        let mut ready = Ready::new(order, seed, 4);
        std::iter::from_fn(|| ready.pop()).collect()
    }

    #[test]
    fn every_order_runs_every_thread_once() {
        for order in [
            Order::RoundRobin,
            Order::LastReady,
            Order::Random,
            Order::Priority,
        ] {
            let mut threads = drain(order, 3);
            threads.sort_unstable();
            assert_eq!(threads, (0..128).collect::<Vec<_>>(), "{order:?}");
        }
    }

    #[test]
    fn orders_differ_and_seeds_reproduce_them() {
        let orders = [
            drain(Order::RoundRobin, 1),
            drain(Order::LastReady, 1),
            drain(Order::Random, 1),
            drain(Order::Random, 2),
            drain(Order::Priority, 1),
        ];
        for (index, order) in orders.iter().enumerate() {
            assert!(
                !orders[..index].contains(order),
                "{index} repeats an earlier order"
            );
        }
        assert_eq!(drain(Order::Random, 2), orders[3]);
        assert_eq!(drain(Order::Priority, 1), orders[4]);
    }

    #[test]
    fn seeds_reach_every_choice() {
        let schedules: Vec<_> = (0..100).map(Schedule::from_seed).collect();
        let has = |f: &dyn Fn(&Schedule) -> bool| schedules.iter().any(f);
        for order in [
            Order::RoundRobin,
            Order::LastReady,
            Order::Random,
            Order::Priority,
        ] {
            assert!(has(&|s| s.threads == order), "{order:?}");
        }
        for order in [
            BlockOrder::Ascending,
            BlockOrder::Descending,
            BlockOrder::Random,
        ] {
            assert!(has(&|s| s.blocks == order), "{order:?}");
        }
        assert!(has(&|s| s.blocks == BlockOrder::Late));
        assert!(has(&|s| s.resident == Some(1)) && has(&|s| s.resident.is_none()));
        assert!(has(
            &|s| s.copies == CopyTiming::Immediate && s.early_dependents
        ));
        assert!(has(&|s| s.copies == CopyTiming::Late && !s.early_dependents));
    }
}
