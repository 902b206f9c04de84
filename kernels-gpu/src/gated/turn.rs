//! Which rows a position of a backward takes, in which order.

use crate::gated::place::Place;

/// The rows of a position: its share of every run of its worker, in order, `ROWS` neighbours at a
/// time. Shares have a multiple of `ROWS`.
#[derive(Clone, Copy, Debug)]
pub struct Turn<const ROWS: u32> {
    /// Tokens times heads.
    pub rows: u32,
    /// Heads of a token.
    pub heads: u32,
    /// log₂ of the rows of a run.
    pub run_log2: u32,
    /// log₂ of the rows of a share.
    pub share_log2: u32,
    /// The position's number in its block.
    pub position: u32,
    /// Positions of the warp before this one.
    pub behind: u32,
    /// Workers that take runs in turns.
    pub workers: u32,
}

/// A step of a turn: `ROWS` neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    run: u32,
    /// The first of its rows.
    pub row: u32,
    /// Where that lies.
    pub place: Place,
    /// Steps that the warp's first position has left of its share, this one included: as many as
    /// any of the warp's positions, or more. Past the last row the others go on with none.
    pub left: u32,
}

impl<const ROWS: u32> Turn<ROWS> {
    /// Runs of all workers.
    #[inline(always)]
    pub fn runs(self) -> u32 {
        (self.rows + ((1 << self.run_log2) - 1)) >> self.run_log2
    }

    /// Positions that have rows of run `run`; the leaves of the others are not there.
    #[inline(always)]
    pub fn present(self, run: u32) -> u32 {
        let taken = self.rows - (run << self.run_log2);
        (taken + ((1 << self.share_log2) - 1)) >> self.share_log2
    }

    /// Whether a share ends before row `done`, or the rows do.
    #[inline(always)]
    pub fn ends(self, done: u32) -> bool {
        done == self.rows || done & ((1 << self.share_log2) - 1) == 0
    }

    /// The first step of the share of run `run`.
    #[inline(always)]
    pub fn start(self, run: u32) -> Step {
        let row = (run << self.run_log2) + (self.position << self.share_log2);
        let first = row - (self.behind << self.share_log2);
        let left = self.rows.saturating_sub(first).min(1 << self.share_log2);
        Step {
            run,
            row,
            place: Place::of(row, self.heads),
            left: left.div_ceil(ROWS),
        }
    }

    /// The step after `step` in the same share; `left` is 0 behind the last.
    #[inline(always)]
    pub fn after(self, step: Step) -> Step {
        Step {
            run: step.run,
            row: step.row + ROWS,
            place: step.place.plus(Place::of(ROWS, self.heads), self.heads),
            left: step.left - 1,
        }
    }

    /// The step after `step`, perhaps in the worker's next run.
    #[inline(always)]
    pub fn next(self, step: Step) -> Step {
        if step.left > 1 {
            self.after(step)
        } else {
            self.start(step.run + self.workers)
        }
    }
}
