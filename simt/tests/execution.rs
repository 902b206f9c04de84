//! Kernels that are right run, and give the same result under every schedule.

use cake_rmsnorm_simt::device::{global, shared, thread, warp};
use cake_rmsnorm_simt::{Buffer, Launch, Memory, Simulator};

/// Sums one row a block: lanes by shuffles, warps through shared memory.
fn row_sum(x: Buffer, sums: Buffer) {
    let (index, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let row = thread::block_idx_x() * threads;
    // SAFETY: one element a thread; a warp's slot is written by its lane 0 before the barrier.
    unsafe {
        let mut sum: u32 = global::load_constant(x.ptr::<u32>().add((row + index) as usize));
        for distance in [16, 8, 4, 2, 1] {
            sum += warp::shuffle_xor(sum, distance);
        }
        if index % 32 == 0 {
            shared::store(shared::base() + index / 8, sum);
        }
        thread::sync_threads();
        if index == 0 {
            let mut total = 0;
            for warp in 0..threads / 32 {
                total += shared::load::<u32>(shared::base() + warp * 4);
            }
            global::store(sums.ptr::<u32>().add(thread::block_idx_x() as usize), total);
        }
    }
}

#[test]
fn a_block_reduction_is_the_same_under_every_schedule() {
    let values: Vec<u32> = (0..5 * 96).collect();
    let expected: Vec<u32> = values.chunks(96).map(|row| row.iter().sum()).collect();
    for seed in 0..20 {
        let mut memory = Memory::new();
        let x = memory.alloc_from("x", &values);
        let sums = memory.alloc("sums", 5 * 4);
        let kernel = || row_sum(x, sums);
        let launch = Launch::new("row_sum", 5, 96, &kernel).shared_bytes(12);
        Simulator::new()
            .seed(seed)
            .run(&mut memory, &[launch])
            .unwrap();
        assert_eq!(memory.read::<u32>(sums).unwrap(), expected, "seed {seed}");
    }
}
