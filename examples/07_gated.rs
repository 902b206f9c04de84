//! Lesson 7: the gated form, y = norm(x)·w·silu(z) (Qwen3-Next, GatedDeltaNet) or
//! norm(x·silu(z))·w (Mamba-2), with gradients of x, z and w.
//!
//! ```sh
//! cargo run --release --example 07_gated
//! ```

use cake_rmsnorm::gated::{GateOrder, GatedRmsNorm, backward_slices, forward_slices};
use cake_rmsnorm::golden::Weight;
use cake_rmsnorm::{Dtype, Result};
use half::bf16;

fn main() -> Result<()> {
    // Rows of all heads share a weight of H elements.
    let (tokens, heads, hidden) = (10, 4, 128);
    let number = |i: usize| (i * 7919 % 2003) as f32 / 1001.0 - 1.0;
    let draw = |from: usize| -> Vec<bf16> {
        let count = tokens * heads * hidden;
        (from..from + count)
            .map(|i| bf16::from_f32(number(i)))
            .collect()
    };
    let (x, z, dy) = (draw(0), draw(1000), draw(2000));
    let w: Vec<f32> = (0..hidden).map(|i| 1.0 + 0.1 * number(i)).collect();

    for order in [GateOrder::NormFirst, GateOrder::GateFirst] {
        let op = GatedRmsNorm::new(order, hidden as u64, Dtype::F32, 1e-6)?;
        let forward = forward_slices(&op, &x, &z, Weight::F32(&w))?;
        // rstd may be left out (`None`): it is worked out again, with the same bits.
        let rstd = Some(&forward.rstd[..]);
        let kept = backward_slices(&op, &dy, &x, &z, Weight::F32(&w), rstd)?;
        let again = backward_slices(&op, &dy, &x, &z, Weight::F32(&w), None)?;
        assert_eq!(kept, again);
        println!(
            "{order:?}: y[0] {}, dz[0] {}, dw[0] {}",
            forward.y[0], kept.dz[0], kept.dw[0]
        );
    }

    // A row may be cut into groups, each normalised on its own: Mamba-2 does so across devices.
    let grouped = GatedRmsNorm::with_groups(GateOrder::GateFirst, 128, 4, Dtype::F32, 1e-6)?;
    let forward = forward_slices(&grouped, &x, &z, Weight::F32(&w))?;
    assert_eq!(forward.rstd.len(), 4 * tokens * heads);
    println!("in 4 groups: y[0] {}", forward.y[0]);
    Ok(())
}
