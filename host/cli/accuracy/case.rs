//! One case: a shape, a kind of inputs, many seeds.

use super::InputsArg;
use super::rows::Rows;
use crate::cli::device::Device;
use crate::cli::error::{CliError, Result};
use crate::cli::operands::Operands;
use crate::cli::progress::Progress;
use crate::cli::{dtype_name, weight_type};
use cake_rmsnorm::RmsNorm;
use cake_rmsnorm::compare::{Accuracy, Output};
use cake_rmsnorm::inputs::pool::{BLOCK_ROWS, BLOCKS, Pool};
use cake_rmsnorm::reference::{WeightGradient, WeightGradientSum};
use half::bf16;
use rayon::prelude::*;
use serde::Serialize;
use std::time::Instant;

/// What the outputs hold before each backward.
const POISONS: [u8; 2] = [0xff, 0x7f];

/// A shape and a kind of inputs.
#[derive(Clone, Copy)]
pub struct Case {
    /// The operator.
    pub op: RmsNorm,
    /// T.
    pub rows: u64,
    /// The inputs.
    pub inputs: InputsArg,
    /// Whether y, rstd and dx of the first seed are compared with the golden bits.
    pub every_row: bool,
}

/// What was found over all seeds.
#[derive(Serialize)]
pub struct Outcome {
    device: &'static str,
    /// The inputs.
    pub inputs: &'static str,
    /// T.
    pub rows: u64,
    /// H.
    pub hidden: u64,
    weight: &'static str,
    sm_count: u32,
    seeds: u64,
    /// Whether all is well.
    pub ok: bool,
    /// What is not.
    pub failures: Vec<String>,
    /// Largest error in units in the last place; large where terms cancel.
    pub max_ulp: f64,
    /// Share of the elements that are the exact sum rounded once.
    pub correctly_rounded: f64,
    /// Largest error as a share of the bound.
    pub bound_share: f64,
    /// Largest error as a share of 1e-4 + 1e-4·|exact|.
    pub worst_budget: f64,
    /// ‖dw − exact‖ / ‖exact‖ over all seeds.
    rel_l2: f64,
    /// Whether a second backward gave the same bits, of every seed.
    pub repeat_bits: bool,
    /// Elements of y and dx, each of which has the golden bits; 0 where they were not compared.
    pub equal_elements: u64,
    seconds: f64,
}

impl Outcome {
    /// One JSON object, on a line.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| CliError::Stdout(error.into()))
    }
}

impl Case {
    /// Runs the case for the seeds 0 … `seeds` − 1.
    pub fn run(&self, device: &dyn Device, seeds: u64, progress: &Progress) -> Result<Outcome> {
        let begin = Instant::now();
        let Case {
            op, rows, inputs, ..
        } = *self;
        let backend = device.backend();
        let routes = backend.routes();
        let plan = op.backward_plan_by(routes, rows, false, backend.properties())?;
        let mut operands = Operands::new(device, op, rows, false, plan.workspace_bytes)?;
        let mut accuracy = Accuracy::new(Output::Dw);
        let mut failures = Vec::new();
        let (mut repeat_bits, mut equal_elements) = (true, 0);
        for seed in 0..seeds {
            progress.stage(format!(
                "{} H {}, T {rows}, seed {seed}",
                inputs.name(),
                op.hidden()
            ));
            let pool = Pool::new(inputs.into(), op.hidden() as usize, weight_type(&op), seed);
            let pool = pool.map_err(|_| CliError::Memory {
                purpose: "a pool of rows",
                bytes: (BLOCKS * BLOCK_ROWS) as u64 * op.hidden() * 2,
            })?;
            upload(&mut operands, &pool, rows)?;
            let every_row = self.every_row && seed == 0;
            if every_row {
                device.synchronize()?;
                operands.y.poison(POISONS[0])?;
                operands.rstd.poison(POISONS[0])?;
                operands.dx.poison(POISONS[0])?;
            }
            operands.forward(backend, rows)?;
            let first = backward(device, &mut operands, rows, POISONS[0])?;
            let again = backward(device, &mut operands, rows, POISONS[1])?;
            if bytes(&first) != bytes(&again) {
                repeat_bits = false;
                failures.push(format!("seed {seed}: repeated runs differ in their bits"));
            }
            if every_row {
                let pool = &pool;
                let (op, rows) = (op, rows as usize);
                let compared = Rows {
                    device,
                    op,
                    pool,
                    rows,
                };
                let different = compared.compare(&operands)?;
                if different.is_empty() {
                    equal_elements = 2 * rows as u64 * op.hidden();
                } else {
                    let which = different.join(", ");
                    failures.push(format!(
                        "seed {seed}: {which} of some rows differ from golden"
                    ));
                }
            }
            let rstd = pool_rstd(&operands, rows)?;
            if !rstd.agree {
                failures.push(format!("seed {seed}: rstd of equal rows differs"));
            }
            let exact = exact(&pool, &rstd.values, rows as usize)?;
            accuracy.add(&first, &exact.dw, Some(&exact.terms))?;
            progress.advance(rows * op.hidden());
        }
        let report = accuracy.report();
        if report.out_of_bound > 0 {
            let worst = report.worst.map_or(String::new(), |worst| {
                let (seed, column) = (worst.index / op.hidden(), worst.index % op.hidden());
                format!(
                    "; worst at seed {seed}, column {column}: {:e}, exact {:e}",
                    worst.found, worst.exact
                )
            });
            let count = report.out_of_bound;
            failures.push(format!("{count} elements beyond the bound{worst}"));
        } else if !report.ok_for_ordinary_inputs() {
            failures.push(format!(
                "{} of {} elements whose terms cancel little are not correctly rounded",
                report.uncancelled_misrounded, report.uncancelled,
            ));
        }
        Ok(Outcome {
            device: device.kind(),
            inputs: inputs.name(),
            rows,
            hidden: op.hidden(),
            weight: dtype_name(weight_type(&op)),
            sm_count: backend.properties().sm_count,
            seeds,
            ok: failures.is_empty(),
            failures,
            max_ulp: report.max_ulp,
            correctly_rounded: report.correctly_rounded,
            bound_share: report.bound_share,
            worst_budget: report.worst_budget,
            rel_l2: report.rel_l2,
            repeat_bits,
            equal_elements,
            seconds: (begin.elapsed().as_secs_f64() * 100.0).round() / 100.0,
        })
    }
}

fn bytes(dw: &[f32]) -> &[u8] {
    bytemuck::cast_slice(dw)
}

fn upload(operands: &mut Operands, pool: &Pool, rows: u64) -> Result<()> {
    let rows = rows as usize;
    let row_bytes = pool.hidden * size_of::<bf16>();
    let (block, total) = (BLOCK_ROWS * row_bytes, rows * row_bytes);
    let blocks = rows.div_ceil(BLOCK_ROWS);
    let (x, dy) = (
        bytemuck::cast_slice(&pool.x),
        bytemuck::cast_slice(&pool.dy),
    );
    let buffer = &mut operands.x;
    buffer.write_blocks(x, block, &Pool::x_blocks(blocks), total)?;
    let buffer = &mut operands.dy;
    buffer.write_blocks(dy, block, &Pool::dy_blocks(blocks), total)?;
    operands.w.write(pool.w.as_bytes())
}

/// dw of a backward over outputs that hold `poison`.
fn backward(
    device: &dyn Device,
    operands: &mut Operands,
    rows: u64,
    poison: u8,
) -> Result<Vec<f32>> {
    device.synchronize()?;
    operands.dw.poison(poison)?;
    operands.workspace.poison(poison)?;
    operands.backward(device.backend(), rows)?;
    device.synchronize()?;
    let hidden = operands.hidden() as usize;
    let mut dw = vec![0f32; hidden];
    operands.dw.read(bytemuck::cast_slice_mut(&mut dw))?;
    Ok(dw)
}

/// rstd of the rows of the pool.
struct PoolRstd {
    values: Vec<f64>,
    /// Whether a row has the same rstd wherever it is.
    agree: bool,
}

/// rstd as the device computed it, for each row of the pool's x.
fn pool_rstd(operands: &Operands, rows: u64) -> Result<PoolRstd> {
    let mut rstd = vec![0f32; rows as usize];
    operands.rstd.read(bytemuck::cast_slice_mut(&mut rstd))?;
    let mut found: Vec<Option<f32>> = vec![None; BLOCKS * BLOCK_ROWS];
    let mut agree = true;
    let blocks = Pool::x_blocks(rstd.len().div_ceil(BLOCK_ROWS));
    for (rows, block) in rstd.chunks(BLOCK_ROWS).zip(blocks) {
        for (i, rstd) in rows.iter().enumerate() {
            let known = found[block as usize * BLOCK_ROWS + i].get_or_insert(*rstd);
            agree &= known.to_bits() == rstd.to_bits();
        }
    }
    let values = found
        .into_iter()
        .map(|rstd| f64::from(rstd.unwrap_or(0.0)))
        .collect();
    Ok(PoolRstd { values, agree })
}

/// The sum of all terms. Those of a pair of blocks are summed once, and count as often as the
/// pair occurs: rstd times a small integer is exact.
fn exact(pool: &Pool, rstd: &[f64], rows: usize) -> Result<WeightGradient> {
    let wide =
        |values: &[bf16]| -> Vec<f64> { values.par_iter().map(|value| value.to_f64()).collect() };
    let (x, dy) = (wide(&pool.x), wide(&pool.dy));
    let of_block = |block: usize, rows: usize| {
        let start = block * BLOCK_ROWS * pool.hidden;
        start..start + rows * pool.hidden
    };
    let mut sum = WeightGradientSum::new(pool.hidden);
    let (pairs, last) = Pool::pairs(rows);
    let whole = pairs
        .into_iter()
        .map(|(x, dy, count)| (x, dy, BLOCK_ROWS, count));
    let last = last.map(|last| (last.x, last.dy, last.rows, 1));
    for (x_block, dy_block, rows, count) in whole.chain(last) {
        let first = x_block * BLOCK_ROWS;
        let rstd: Vec<f64> = rstd[first..first + rows]
            .iter()
            .map(|rstd| rstd * f64::from(count))
            .collect();
        let dy = &dy[of_block(dy_block, rows)];
        sum.add_rows(dy, &x[of_block(x_block, rows)], &rstd)?;
    }
    Ok(sum.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_rmsnorm::inputs::pool::Terms;

    /// The sum over pairs is the sum over rows.
    #[test]
    fn pairs_are_summed_as_often_as_they_occur() {
        let rows = BLOCK_ROWS * 2048 * 2 + BLOCK_ROWS * 5 + 7;
        let pool = Pool::new(Terms::Normal, 8, cake_rmsnorm::Dtype::F32, 1).expect("memory");
        let rstd: Vec<f64> = (0..BLOCKS * BLOCK_ROWS)
            .map(|row| f64::from(1 + row as u32 % 5))
            .collect();
        let found = exact(&pool, &rstd, rows).expect("shapes fit");
        let blocks = rows.div_ceil(BLOCK_ROWS);
        let (xs, dys) = (Pool::x_blocks(blocks), Pool::dy_blocks(blocks));
        let mut naive = [0f64; 8];
        for t in 0..rows {
            let place =
                |blocks: &[u32]| blocks[t / BLOCK_ROWS] as usize * BLOCK_ROWS + t % BLOCK_ROWS;
            let (x, dy) = (place(&xs), place(&dys));
            for (j, sum) in naive.iter_mut().enumerate() {
                *sum += pool.dy[dy * 8 + j].to_f64() * pool.x[x * 8 + j].to_f64() * rstd[x];
            }
        }
        for (found, naive) in found.dw.iter().zip(naive) {
            assert!(
                (found - naive).abs() < 1e-6 * naive.abs().max(1.0),
                "{found} {naive}"
            );
        }
    }
}
