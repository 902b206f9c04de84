//! A kernel with a data race. On a GPU it gives the right result more often than not; the
//! simulator refuses it every time. Mend it where it says so.

use cake_rmsnorm_kernels::device::{global, shared, thread};
use cake_rmsnorm_simt::{Checks, Fault, Launch, Memory, Simulator};

const THREADS: u32 = 64;
const ROWS: u32 = 3;

/// Reverses rows of THREADS values through shared memory, one after the other.
///
/// # Safety
/// - `x` and `y` point to ROWS rows, readable and writable, and do not overlap.
/// - One block of [`THREADS`] threads, with 4·THREADS bytes of shared memory.
unsafe fn reverse(x: *const f32, y: *mut f32) {
    let index = thread::thread_idx_x();
    for row in 0..ROWS {
        let element = (row * THREADS + index) as usize;
        // SAFETY: every element is inside, and one thread's alone.
        unsafe {
            let value = global::load_f32(x.add(element));
            shared::store_f32(shared::base() + 4 * index, value);
            thread::sync_threads();
            let mirrored = shared::load_f32(shared::base() + 4 * (THREADS - 1 - index));
            global::store_f32(y.add(element), mirrored);
            // A fast thread stores its next value before a slow one has loaded. Mend it:
            // thread::sync_threads();
        }
    }
}

/// Whether the result is right.
fn run(seed: u64, checks: Checks) -> Result<bool, Fault> {
    let values: Vec<f32> = (0..ROWS * THREADS).map(|i| i as f32).collect();
    let rows = values.chunks(THREADS as usize);
    let expected: Vec<f32> = rows.flat_map(|row| row.iter().rev()).copied().collect();
    let mut memory = Memory::new();
    let x = memory.alloc_from("x", &values);
    let y = memory.alloc("y", x.bytes());
    // SAFETY: the buffers and the launch are as the kernel wants them.
    let kernel = || unsafe { reverse(x.ptr(), y.ptr()) };
    let launch = Launch::new("reverse", 1, THREADS, &kernel).shared_bytes(4 * THREADS);
    Simulator::new()
        .seed(seed)
        .checks(checks)
        .run(&mut memory, &[launch])?;
    Ok(memory
        .read(y)
        .is_ok_and(|result: Vec<f32>| result == expected))
}

fn main() {
    let right = (0..20)
        .filter(|&seed| run(seed, Checks::Off) == Ok(true))
        .count();
    println!("without checks {right} of 20 schedules give the right result");
    let faults: Vec<Fault> = (0..20)
        .filter_map(|seed| run(seed, Checks::All).err())
        .collect();
    println!("with checks {} of 20 are refused", faults.len());
    if let Some(fault) = faults.first() {
        println!("{fault}");
    }
}
