//! What is timed: an operation on a shape.

use cake_rmsnorm::Dtype;
use clap::ValueEnum;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Op {
    /// Forward.
    Fwd,
    /// Backward.
    Bwd,
    /// A training step with checkpointing: forward, the same forward again, backward.
    Step,
}

impl Op {
    /// As written on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Op::Fwd => "fwd",
            Op::Bwd => "bwd",
            Op::Step => "step",
        }
    }

    /// In words.
    pub fn title(self) -> &'static str {
        match self {
            Op::Fwd => "Forward",
            Op::Bwd => "Backward",
            Op::Step => "Forward, forward, backward",
        }
    }
}

/// An operation on a shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The operation.
    pub op: Op,
    /// T.
    pub rows: u64,
    /// H.
    pub hidden: u64,
    /// The weight's type.
    pub weight: Dtype,
    /// The residual form.
    pub residual: bool,
}

impl Case {
    /// The fewest bytes that the operation moves: every input read once, every output written
    /// once.
    pub fn bytes(&self) -> u64 {
        let matrix = 2 * self.rows * self.hidden;
        let vectors = 4 * self.rows + self.weight.bytes() * self.hidden;
        // x and y, with residual and h; dy, x and dx, with dh.
        let forward = (if self.residual { 4 } else { 2 }) * matrix + vectors;
        let backward = (if self.residual { 4 } else { 3 }) * matrix + vectors + 4 * self.hidden;
        match self.op {
            Op::Fwd => forward,
            Op::Bwd => backward,
            Op::Step => 2 * forward + backward,
        }
    }

    /// The form, as the measurements name it: per-head norms are those of rows of 256.
    pub fn kind(&self) -> &'static str {
        match (self.residual, self.hidden) {
            (true, _) => "add",
            (false, 256) => "head",
            (false, _) => "plain",
        }
    }
}

/// How often an operation is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeats {
    /// In one go.
    pub batch: usize,
    /// Batches; one more runs before and is not counted.
    pub batches: usize,
}

impl Repeats {
    /// For an operation that moves `bytes` bytes.
    pub fn for_bytes(bytes: u64, quick: bool) -> Self {
        let batch = match bytes {
            0..=0x400_0000 => 12,
            0x400_0001..=0x4000_0000 => 8,
            _ => 4,
        };
        let batches = if quick { 3 } else { 6 };
        Self { batch, batches }
    }
}

/// Samples, summarised.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Median, µs.
    pub us: f64,
    /// A tenth of the samples is below.
    pub us_p10: f64,
    /// A tenth of the samples is above.
    pub us_p90: f64,
    /// The shortest.
    pub us_min: f64,
    /// Samples.
    pub n: usize,
}

impl Summary {
    /// Of samples in µs; of none, all zero.
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let n = samples.len();
        let at = |index: usize| samples.get(index).copied().unwrap_or(0.0);
        let median = if n.is_multiple_of(2) {
            f64::midpoint(at((n / 2).saturating_sub(1)), at(n / 2))
        } else {
            at(n / 2)
        };
        let rounded = |us: f64| (us * 1000.0).round() / 1000.0;
        Self {
            us: rounded(median),
            us_p10: rounded(at(n / 10)),
            us_p90: rounded(at(n * 9 / 10)),
            us_min: rounded(at(0)),
            n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(op: Op, residual: bool, weight: Dtype) -> Case {
        Case {
            op,
            rows: 3,
            hidden: 8,
            weight,
            residual,
        }
    }

    #[test]
    fn bytes_are_the_fewest_that_must_move() {
        // A matrix has 48 bytes, rstd 12, the weight 32 or 16, dw 32.
        let bytes = |op, residual, weight| case(op, residual, weight).bytes();
        assert_eq!(bytes(Op::Fwd, false, Dtype::F32), 2 * 48 + 12 + 32);
        assert_eq!(bytes(Op::Fwd, true, Dtype::Bf16), 4 * 48 + 12 + 16);
        assert_eq!(bytes(Op::Bwd, false, Dtype::Bf16), 3 * 48 + 12 + 16 + 32);
        assert_eq!(bytes(Op::Bwd, true, Dtype::F32), 4 * 48 + 12 + 32 + 32);
        assert_eq!(bytes(Op::Step, false, Dtype::F32), 2 * 140 + 220);
    }

    #[test]
    fn summaries_hold_the_middle_and_the_tenths() {
        let summary = Summary::of((0..20).rev().map(f64::from).collect());
        assert_eq!(summary.us, 9.5);
        assert_eq!((summary.us_p10, summary.us_p90), (2.0, 18.0));
        assert_eq!((summary.us_min, summary.n), (0.0, 20));
        assert_eq!(Summary::of(vec![3.0, 1.0, 2.0]).us, 2.0);
        assert_eq!(Summary::of(Vec::new()).n, 0);
    }
}
