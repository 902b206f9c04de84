//! The sum of each row, one block a row: shuffles within a warp, shared memory between warps.

use cake_rmsnorm_kernels::device::{global, shared, thread, warp};
use cake_rmsnorm_simt::{Launch, Memory, Simulator};
use std::error::Error;
use std::process::ExitCode;

const THREADS: u32 = 128;
const WARPS: u32 = THREADS / 32;

/// # Safety
/// - `x` points to a row of `hidden` readable values for each block, `sums` to one writable value
///   for each.
/// - Blocks have [`THREADS`] threads and 4·[`WARPS`] bytes of shared memory.
unsafe fn block_sum(x: *const f32, sums: *mut f32, hidden: u32) {
    let (row, index) = (thread::block_idx_x(), thread::thread_idx_x());
    let (own_warp, lane) = (index / 32, index % 32);
    let place = |warp: u32| shared::base() + 4 * warp;

    // SAFETY: every element is inside its row; all threads come to every shuffle and barrier.
    unsafe {
        // Each thread sums every THREADS-th element.
        let mut sum = 0.0;
        let mut column = index;
        while column < hidden {
            sum += global::load_f32(x.add((row * hidden + column) as usize));
            column += THREADS;
        }
        // After five exchanges every lane has its warp's sum.
        for distance in [16, 8, 4, 2, 1] {
            sum += warp::shuffle_xor(sum, distance);
        }
        if lane == 0 {
            shared::store_f32(place(own_warp), sum);
        }
        thread::sync_threads();
        if index == 0 {
            let mut total = 0.0;
            for warp in 0..WARPS {
                total += shared::load_f32(place(warp));
            }
            global::store_f32(sums.add(row as usize), total);
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let (rows, hidden) = (5, 300);
    let values: Vec<f32> = (0..rows * hidden).map(|i| (i % 17) as f32).collect();
    let expected: Vec<f32> = values
        .chunks(hidden as usize)
        .map(|row| row.iter().sum())
        .collect();

    for seed in 0..20 {
        let mut memory = Memory::new();
        let x = memory.alloc_from("x", &values);
        let sums = memory.alloc("sums", 4 * rows as usize);
        // SAFETY: the buffers and the launch are as the kernel wants them.
        let kernel = || unsafe { block_sum(x.ptr(), sums.ptr(), hidden) };
        let launch = Launch::new("block_sum", rows, THREADS, &kernel).shared_bytes(4 * WARPS);
        Simulator::new().seed(seed).run(&mut memory, &[launch])?;
        assert_eq!(memory.read::<f32>(sums)?, expected, "seed {seed}");
    }
    println!("{rows} sums are right under 20 schedules: {expected:?}");
    Ok(())
}
