//! The kernels themselves under the simulator, with all checks, against the golden
//! implementation: equal bytes.

mod common;

use cake_rmsnorm::Dtype;
use cake_rmsnorm::backend::sim::Sim;
use cake_rmsnorm_simt::Schedule;
use common::Case;

/// A width for each program and for the edges between programs; odd tiles, ragged warps.
const WIDTHS: &[u64] = &[8, 64, 256, 264, 512, 520, 576, 1024, 1032, 2048, 2056, 4096, 6144, 6152, 8192];

#[test]
fn few_rows() {
    for (i, &hidden) in WIDTHS.iter().enumerate() {
        for rows in [1, 2, 7, 65] {
            let weight = if (i as u64 + rows) % 2 == 0 { Dtype::F32 } else { Dtype::Bf16 };
            let residual = (i / 2 + rows as usize) % 2 == 0;
            Case::new(hidden, rows, weight, residual, 8, 1).check(&Sim::new(), "few rows");
        }
    }
}

#[test]
fn single_read_programs() {
    for (hidden, rows) in [(8, 8200), (256, 8195), (512, 1025), (576, 1031), (1024, 1025), (2048, 521), (4096, 515), (6144, 513), (8192, 514), (8200, 513)] {
        for (weight, residual) in [(Dtype::F32, false), (Dtype::Bf16, true)] {
            Case::new(hidden, rows, weight, residual, 0, 2).check(&Sim::new(), "single read");
        }
    }
}

#[test]
fn schedules_change_nothing() {
    let case = Case::new(264, 530, Dtype::F32, true, 8, 3);
    let golden = case.golden();
    for seed in 0..20 {
        let sim = Sim::new().with_schedule(Schedule::from_seed(seed));
        assert!(case.simulated(&sim) == golden, "seed {seed}");
    }
}
