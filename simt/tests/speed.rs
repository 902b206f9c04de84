//! How fast the simulator is. `cargo test --release -p cake-rmsnorm-simt --test speed -- --ignored --nocapture`

use cake_rmsnorm_simt::device::{global, shared, thread, warp};
use cake_rmsnorm_simt::{Buffer, Checks, Launch, Memory, Simulator};
use std::time::Instant;

const HIDDEN: u32 = 4096;
const THREADS: u32 = 256;
const VECTORS: u32 = HIDDEN / THREADS / 8;
const ROWS: u32 = 256;
const BLOCKS: u32 = 8;

/// The shape of an RMSNorm backward: a row a step, two 16-byte inputs and one output, a block
/// sum by shuffles and shared memory.
fn row_kernel(x: Buffer, dy: Buffer, dx: Buffer) {
    let index = thread::thread_idx_x();
    let mut row = thread::block_idx_x();
    while row < ROWS {
        let place = |v: u32| (row * HIDDEN / 8 + v * THREADS + index) as usize;
        // SAFETY: every row is one block's, every place one thread's; barriers on both sides of
        // the sums' reads.
        unsafe {
            let load = |from: Buffer, v: u32| {
                global::load_constant::<[u32; 4]>(from.ptr::<[u32; 4]>().wrapping_add(place(v)))
            };
            let words: [_; VECTORS as usize] =
                std::array::from_fn(|v| (load(x, v as u32), load(dy, v as u32)));
            let mut dot = 0.0f32;
            for (a, b) in words.iter().flat_map(|(x, dy)| x.iter().zip(dy)) {
                dot += f32::from_bits(a << 16) * f32::from_bits(b << 16);
                dot += f32::from_bits(a & 0xffff_0000) * f32::from_bits(b & 0xffff_0000);
            }
            for distance in [16, 8, 4, 2, 1] {
                dot += f32::from_bits(warp::shuffle_xor(dot.to_bits(), distance));
            }
            if index.is_multiple_of(32) {
                shared::store(shared::base() + index / 8, dot);
            }
            thread::sync_threads();
            let lane = index % 32;
            let mut sum = 0.0;
            if lane < THREADS / 32 {
                sum = shared::load(shared::base() + lane * 4);
            }
            for distance in [16, 8, 4, 2, 1] {
                sum += f32::from_bits(warp::shuffle_xor(f32::to_bits(sum), distance));
            }
            for (v, (x, dy)) in words.iter().enumerate() {
                let scaled = |i: usize| dy[i] ^ (x[i] & f32::to_bits(sum));
                let to = dx.ptr::<[u32; 4]>().wrapping_add(place(v as u32));
                global::store(to, [scaled(0), scaled(1), scaled(2), scaled(3)]);
            }
            thread::sync_threads();
        }
        row += BLOCKS;
    }
}

/// Row elements a second on one worker.
fn rate(checks: Checks, seed: u64) -> f64 {
    let mut memory = Memory::new();
    let values: Vec<u16> = (0..ROWS * HIDDEN)
        .map(|i| 0x3f00 + (i % 251) as u16)
        .collect();
    let (x, dy) = (
        memory.alloc_from("x", &values),
        memory.alloc_from("dy", &values),
    );
    let dx = memory.alloc("dx", values.len() * 2);
    let kernel = || row_kernel(x, dy, dx);
    let launch = Launch::new("rows", BLOCKS, THREADS, &kernel).shared_bytes(THREADS / 8);
    let simulator = Simulator::new().workers(1).seed(seed).checks(checks);
    let best = (0..3).map(|_| {
        let start = Instant::now();
        simulator.run(&mut memory, &[launch]).unwrap();
        start.elapsed().as_secs_f64()
    });
    values.len() as f64 / best.fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "measures; wants --release and a quiet machine"]
fn at_least_a_million_row_elements_a_second() {
    for seed in [0, 1, 7, 8] {
        let (checked, unchecked) = (rate(Checks::All, seed), rate(Checks::Off, seed));
        println!(
            "seed {seed}: {:.1} million row elements a second with checks, {:.1} without ({:.1} times)",
            checked / 1e6,
            unchecked / 1e6,
            unchecked / checked
        );
        assert!(checked >= 1e6);
    }
}
