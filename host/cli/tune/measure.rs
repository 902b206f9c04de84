//! The fastest choice for a point.

use super::points::{Chosen, Direction, Measured, Point};
use crate::cli::bench::case::{Case, Op, Repeats, Summary};
use crate::cli::bench::fill;
use crate::cli::bench::timer::{Cache, Timer};
use crate::cli::error::{CliError, Result};
use crate::cli::operands::Operands;
use crate::cli::weight_type;
use cake_rmsnorm::RmsNorm;
use cake_rmsnorm::plan::{Choice, DeviceProperties, Routes};
use std::sync::Arc;

/// Samples of every choice, before the best of them are measured well.
const QUICK: Repeats = Repeats {
    batch: 4,
    batches: 1,
};
/// Choices that are measured well.
const BEST: usize = 5;
/// How much of the built-in route's time another one must save to take its place.
const GAIN: f64 = 0.01;
/// Largest workspace of rows up to 8192 elements.
const WORKSPACE_BYTES: u64 = 16 << 20;

/// An operator with its memory.
pub struct Measure<'a> {
    timer: &'a dyn Timer,
    op: RmsNorm,
    residual: bool,
    operands: Operands,
    workspace_bytes: u64,
}

impl<'a> Measure<'a> {
    /// For T up to `rows`.
    pub fn new(timer: &'a dyn Timer, op: RmsNorm, rows: u64, residual: bool) -> Result<Self> {
        let device = timer.device();
        // The largest T's need not be the largest.
        let workspace_bytes = WORKSPACE_BYTES.max(op.hidden() * 8 * 4096);
        let mut operands = Operands::new(device, op, rows, residual, workspace_bytes)?;
        fill(&mut operands, op, rows, residual)?;
        operands.forward(device.backend(), rows)?;
        device.synchronize()?;
        Ok(Self {
            timer,
            op,
            residual,
            operands,
            workspace_bytes,
        })
    }

    /// Measures every choice.
    pub fn point(&mut self, point: Point) -> Result<Measured> {
        let (op, residual, rows) = (self.op, self.residual, point.rows);
        let properties = *self.timer.device().backend().properties();
        let built_in = Routes::built_in();
        let (route, _) = match point.direction {
            Direction::Forward => op.forward_route(built_in, rows, residual, &properties)?,
            Direction::Backward => op.backward_route(built_in, rows, residual, &properties)?,
        };
        let built_in = route.choice;
        let choices = self.choices(&point, &properties)?;
        let case = Case {
            op: match point.direction {
                Direction::Forward => Op::Fwd,
                Direction::Backward => Op::Bwd,
            },
            rows,
            hidden: op.hidden(),
            weight: weight_type(&op),
            residual,
        };
        let well = Repeats::for_bytes(case.bytes(), false);
        let time = |choice: &Choice, repeats| self.time(choice, &point, repeats);
        let best = fastest(&choices, &built_in, |choice, thorough| {
            time(choice, if thorough { well } else { QUICK })
        })?;
        Ok(Measured {
            route: Chosen {
                program: format!("{:?}", best.choice.program),
                warps: best.choice.warps,
                resident_threads: best.choice.resident_threads,
                run_log2: best.choice.run_log2,
            },
            us: best.us,
            built_in_us: best.built_in_us,
            tried: choices.len(),
            point,
        })
    }

    /// The choices that may be routes: their workspace is as small as promised.
    fn choices(&self, point: &Point, properties: &DeviceProperties) -> Result<Vec<Choice>> {
        let (op, rows, residual) = (self.op, point.rows, self.residual);
        if point.direction == Direction::Forward {
            return Ok(op.forward_candidates(rows, residual, properties));
        }
        let mut choices = op.backward_candidates(rows, residual, properties);
        choices.retain(|choice| {
            let plan = op.backward_plan_of(choice, rows, residual, properties);
            plan.is_ok_and(|plan| plan.workspace_bytes <= self.workspace_bytes)
        });
        Ok(choices)
    }

    /// Median of a choice, in µs.
    fn time(&self, choice: &Choice, point: &Point, repeats: Repeats) -> Result<f64> {
        let device = self.timer.device();
        let (forward, backward) = match point.direction {
            Direction::Forward => (Some(*choice), None),
            Direction::Backward => (None, Some(*choice)),
        };
        let routes = Arc::new(Routes::only(forward, backward));
        let sm_count = device.backend().properties().sm_count;
        let backend = device.backend_by(routes, sm_count);
        let backend = backend.ok_or_else(|| CliError::NoDevice {
            device: device.kind(),
            reason: "it runs without plans".to_owned(),
        })?;
        let mut work = || match point.direction {
            Direction::Forward => self.operands.forward(&*backend, point.rows),
            Direction::Backward => self.operands.backward(&*backend, point.rows),
        };
        let samples = self.timer.samples(Cache::Cold, repeats, &mut work)?;
        Ok(Summary::of(samples).us)
    }
}

/// A choice with its time, beside the built-in one's.
struct Best {
    choice: Choice,
    us: f64,
    built_in_us: f64,
}

/// The fastest of `choices`; the built-in one unless another is clearly faster. `time` measures a
/// choice quickly or thoroughly.
fn fastest(
    choices: &[Choice],
    built_in: &Choice,
    time: impl Fn(&Choice, bool) -> Result<f64>,
) -> Result<Best> {
    let mut quick = choices
        .iter()
        .map(|choice| Ok((*choice, time(choice, false)?)))
        .collect::<Result<Vec<_>>>()?;
    quick.sort_by(|a, b| a.1.total_cmp(&b.1));
    let built_in_us = time(built_in, true)?;
    let mut best = Best {
        choice: *built_in,
        us: built_in_us,
        built_in_us,
    };
    let enough = built_in_us * (1.0 - GAIN);
    for (choice, _) in quick.into_iter().take(BEST) {
        let us = time(&choice, true)?;
        if us < enough.min(best.us) {
            best = Best {
                choice,
                us,
                built_in_us,
            };
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_rmsnorm::kernels::contract::Program;

    fn choice(warps: u32) -> Choice {
        Choice {
            warps,
            ..Choice::of(Program::ForwardWide)
        }
    }

    #[test]
    fn the_fastest_is_chosen_where_it_is_clearly_faster() {
        let choices: Vec<Choice> = (1..=16).map(choice).collect();
        let built_in = choice(16);
        // Times by warps; the quick ones are off by up to a few per cent.
        let best = |of: fn(u32) -> f64| {
            let time = |choice: &Choice, thorough| {
                let noise = if thorough {
                    0.0
                } else {
                    f64::from(choice.warps % 3)
                };
                Ok(of(choice.warps) + noise)
            };
            let best = fastest(&choices, &built_in, time).expect("nothing fails");
            (best.choice.warps, best.us, best.built_in_us)
        };
        let v = |warps: u32| 100.0 + 4.0 * f64::from(warps.abs_diff(5));
        assert_eq!(best(v), (5, 100.0, 144.0));
        let flat = |warps: u32| if warps == 3 { 99.5 } else { 100.0 };
        assert_eq!(best(flat), (16, 100.0, 100.0));
    }

    #[test]
    fn a_choice_that_fails_is_an_error() {
        // A choice measured quickly or well; the built-in one, which is measured well alone.
        for (warps, thoroughly) in [(1, false), (1, true), (2, true)] {
            let failing = |choice: &Choice, thorough| {
                if (choice.warps, thorough) != (warps, thoroughly) {
                    return Ok(1.0);
                }
                Err(CliError::NoDevice {
                    device: "cuda",
                    reason: "gone".to_owned(),
                })
            };
            let found = fastest(&[choice(1)], &choice(2), failing);
            assert!(found.is_err(), "{warps} warps, thoroughly: {thoroughly}");
        }
    }
}
