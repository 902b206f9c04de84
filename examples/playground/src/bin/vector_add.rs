//! z = x + y, one element a thread.

use cake_rmsnorm_kernels::device::{global, thread};
use cake_rmsnorm_simt::{Launch, Memory, Simulator};
use std::error::Error;
use std::process::ExitCode;

const THREADS: u32 = 128;

/// # Safety
/// - `x` and `y` point to `len` readable values, `z` to `len` writable ones that overlap neither.
unsafe fn vector_add(x: *const f32, y: *const f32, z: *mut f32, len: u32) {
    let index = thread::block_idx_x() * thread::block_dim_x() + thread::thread_idx_x();
    // The last block has more threads than elements are left.
    if index < len {
        let index = index as usize;
        // SAFETY: the element is inside, and this thread's alone.
        unsafe {
            let sum = global::load_f32(x.add(index)) + global::load_f32(y.add(index));
            global::store_f32(z.add(index), sum);
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
    let len = 1000;
    let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
    let mut memory = Memory::new();
    let x = memory.alloc_from("x", &values);
    let y = memory.alloc_from("y", &values);
    let z = memory.alloc("z", x.bytes());

    // SAFETY: three buffers of `len` values.
    let kernel = || unsafe { vector_add(x.ptr(), y.ptr(), z.ptr(), len) };
    let launch = Launch::new("vector_add", len.div_ceil(THREADS), THREADS, &kernel);
    let report = Simulator::new().run(&mut memory, &[launch])?;

    let sums = memory.read::<f32>(z)?;
    assert!(
        sums.iter()
            .zip(&values)
            .all(|(sum, value)| *sum == 2.0 * value)
    );
    println!("{len} sums are right; {} blocks ran", report.blocks);
    Ok(())
}
