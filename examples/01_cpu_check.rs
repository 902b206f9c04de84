//! Lesson 1: a forward and a backward on the CPU, and how far from exact they are.
//!
//! ```sh
//! cargo run --release --example 01_cpu_check
//! ```

use cake_rmsnorm::compare::{Output, Report, compare};
use cake_rmsnorm::golden::{Weight, backward_slices, forward_slices};
use cake_rmsnorm::reference::{self, from_bf16, from_f32};
use cake_rmsnorm::{Dtype, Result, RmsNorm};
use half::bf16;

fn main() -> Result<()> {
    // T rows of H elements, numbers from a fixed sequence.
    let (rows, hidden) = (100, 768);
    let number = |i: usize| (i * 7919 % 2003) as f32 / 1001.0 - 1.0;
    let x: Vec<bf16> = (0..rows * hidden)
        .map(|i| bf16::from_f32(number(i)))
        .collect();
    let dy: Vec<bf16> = x.iter().rev().copied().collect();
    let w: Vec<f32> = (0..hidden).map(|i| 1.0 + 0.1 * number(i)).collect();

    // An operator: H, the weight's type, eps. Matrices are BF16 unless its builder is told otherwise.
    let op = RmsNorm::new(hidden as u64, Dtype::F32, 1e-6)?;
    let forward = forward_slices(&op, &x, None, Weight::F32(&w))?;
    // The backward wants what the forward normalised, and its rstd.
    let backward = backward_slices(&op, &dy, &x, None, Weight::F32(&w), &forward.rstd)?;

    // The formulas in FP64, which share no code with the above.
    let (x, dy, w) = (from_bf16(&x), from_bf16(&dy), from_f32(&w));
    let rstd = from_f32(&forward.rstd);
    let y = reference::normalised(&x, &w, &rstd, hidden)?;
    let exact = reference::backward(&dy, &x, None, &w, &rstd, hidden)?;
    let (dx, dw) = (&exact.input, &exact.weight);
    print("y", &compare(Output::Y, &forward.y, &y, None, None)?);
    print(
        "dx",
        &compare(Output::Dx, &backward.dx, &dx.dx, Some(&dx.terms), None)?,
    );
    print(
        "dw",
        &compare(Output::Dw, &backward.dw, &dw.dw, Some(&dw.terms), None)?,
    );
    Ok(())
}

fn print(name: &str, report: &Report) {
    let rounded = 100.0 * report.correctly_rounded;
    println!(
        "{name:2}  {rounded:6.2}% of {} elements correctly rounded",
        report.elements
    );
    assert!(report.ok(), "{name} is beyond its bound");
}
