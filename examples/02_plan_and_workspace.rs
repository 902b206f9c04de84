//! Lesson 2: what a call will launch, and how much workspace a backward needs. A plan touches no
//! device: this runs anywhere.
//!
//! ```sh
//! cargo run --release --example 02_plan_and_workspace
//! ```

use cake_rmsnorm::plan::DeviceProperties;
use cake_rmsnorm::{Dtype, Result, RmsNorm};

fn main() -> Result<()> {
    let device = DeviceProperties::H200;
    let op = RmsNorm::new(4096, Dtype::F32, 1e-6)?;
    println!("H = {}, FP32 weight, on an H200\n", op.hidden());
    println!("{:>6}  {:36}  {:36}  workspace", "T", "forward", "backward");
    for rows in [1, 128, 4096, 65_536] {
        let forward = op.forward_plan(rows, false, &device)?;
        let backward = op.backward_plan(rows, false, &device)?;
        // A launch knows its kernel, grid, block and shared memory.
        let name = |launch: Option<cake_rmsnorm::plan::Launch>| {
            launch.map_or("nothing".to_owned(), |launch| {
                format!("{} x {}", launch.kernel.name, launch.grid)
            })
        };
        let bytes = backward.workspace_bytes;
        println!(
            "{rows:>6}  {:36}  {:36}  {bytes} bytes",
            name(forward.launch),
            name(backward.main)
        );
    }

    // A plan is for arguments that lie in the usual way; this serves whatever way they lie in.
    let bytes = op.workspace_bytes(65_536, false, &device)?;
    println!("\n{bytes} bytes of workspace serve any backward over 65,536 rows");

    // Another number of multiprocessors launches other grids, with the same bits and the same
    // leaves of the weight gradient.
    let half = device.with_sm_count(66);
    let (all, half) = (
        op.backward_plan(65_536, false, &device)?,
        op.backward_plan(65_536, false, &half)?,
    );
    assert_eq!(
        (all.leaf.leaf_rows(), all.leaf.leaves),
        (half.leaf.leaf_rows(), half.leaf.leaves)
    );
    Ok(())
}
