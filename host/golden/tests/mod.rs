//! The golden implementation against the contract spelled out naively: every bit, for any H, and
//! for every instruction set.

mod naive;

use super::memory::{Elements, ElementsMut, Rows, RowsMut};
use super::row::RowWeight;
use super::{BackwardTask, ForwardTask};
use crate::view::{RowsView, VectorView};
use cake_rmsnorm_kernels::instructions::Instructions;
use cake_rmsnorm_kernels::leaf::leaves_target;
use half::bf16;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Inputs, packed; any H.
#[derive(Debug)]
pub struct Case {
    rows: usize,
    hidden: usize,
    eps: f32,
    x: Vec<u16>,
    dy: Vec<u16>,
    residual: Option<Vec<u16>>,
    dh: Option<Vec<u16>>,
    w: Vec<f32>,
}

/// The bits of all outputs.
#[derive(Debug, PartialEq, Eq)]
pub struct Outputs {
    h: Vec<u16>,
    y: Vec<u16>,
    rstd: Vec<u32>,
    dx: Vec<u16>,
    dw: Vec<u32>,
}

impl Case {
    /// Rows of all magnitudes: ordinary ones, and huge, tiny, zero and spiked ones.
    fn new(rows: usize, hidden: usize, residual: bool, eps: f32, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut matrix = |extreme: bool| {
            let mut values = Vec::with_capacity(rows * hidden);
            for _ in 0..rows {
                let kind = if extreme { rng.random_range(0..40) } else { 40 };
                let scale = match kind {
                    0 => 3e38,
                    1 => 1e18,
                    2 => 1e-38,
                    3 => 1e-20,
                    4 => 0.0,
                    _ => 2f32.powi(rng.random_range(-3..3)),
                };
                let first = values.len();
                values.extend((0..hidden).map(|_| rng.random_range(-1f32..1.0) * scale));
                let any = first + rng.random_range(0..hidden);
                if kind == 5 {
                    values[any] = 1e30;
                }
            }
            values
                .iter()
                .map(|&value| bf16::from_f32(value).to_bits())
                .collect::<Vec<u16>>()
        };
        let (x, dy) = (matrix(true), matrix(false));
        let (residual, dh) = (
            residual.then(|| matrix(false)),
            residual.then(|| matrix(false)),
        );
        let w = (0..hidden)
            .map(|_| rng.random_range(0.25f32..2.0))
            .collect();
        Self {
            rows,
            hidden,
            eps,
            x,
            dy,
            residual,
            dh,
            w,
        }
    }

    /// The same with `value` in place of one element of x.
    fn with(mut self, row: usize, column: usize, value: f32) -> Self {
        self.x[row * self.hidden + column] = bf16::from_f32(value).to_bits();
        self
    }

    /// The same with rows that take each other's terms of dw back: last the first's, and so on.
    /// What is left of dw is what its summation rounded off, which tells any other order; else
    /// the compensation is so good that most orders give the same bits.
    fn cancelling(mut self) -> Self {
        let hidden = self.hidden;
        for row in 0..self.rows {
            let mirror = self.rows - 1 - row;
            let (from, to) = (row * hidden..(row + 1) * hidden, mirror * hidden);
            if row < mirror {
                self.x.copy_within(from.clone(), to);
                self.dy.copy_within(from.clone(), to);
                if let Some(residual) = &mut self.residual {
                    residual.copy_within(from.clone(), to);
                }
                self.dy[from].iter_mut().for_each(|dy| *dy ^= 0x8000);
            } else if row == mirror {
                self.dy[from].fill(0);
            }
        }
        self
    }

    fn golden(&self, instructions: Instructions) -> Outputs {
        let elements = self.rows * self.hidden;
        let mut out = Outputs {
            h: vec![0; if self.residual.is_some() { elements } else { 0 }],
            y: vec![0; elements],
            rstd: vec![0; self.rows],
            dx: vec![0; elements],
            dw: vec![0; self.hidden],
        };
        let view = |address: *const u16| {
            RowsView::packed(address as u64, self.rows as u64, self.hidden as u64)
        };
        let rstd = VectorView::f32(out.rstd.as_mut_ptr() as u64, self.rows as u64);
        let h = out.h.as_mut_ptr();
        let forward = ForwardTask {
            x: Rows::new(&view(self.x.as_ptr())),
            residual: self
                .residual
                .as_ref()
                .map(|residual| Rows::new(&view(residual.as_ptr()))),
            w: RowWeight::new(self.w.clone()),
            h: self.residual.as_ref().map(|_| RowsMut::new(&view(h))),
            y: RowsMut::new(&view(out.y.as_mut_ptr())),
            rstd: ElementsMut::new(&rstd),
            eps: self.eps,
            hidden: self.hidden,
        };
        let normalised = if self.residual.is_some() {
            h.cast_const()
        } else {
            self.x.as_ptr()
        };
        let backward = BackwardTask {
            dy: Rows::new(&view(self.dy.as_ptr())),
            x: Rows::new(&view(normalised)),
            dh: self.dh.as_ref().map(|dh| Rows::new(&view(dh.as_ptr()))),
            w: RowWeight::new(self.w.clone()),
            rstd: Elements::new(&rstd),
            dx: RowsMut::new(&view(out.dx.as_mut_ptr())),
            hidden: self.hidden,
        };
        let dw: &mut [f32] = bytemuck::cast_slice_mut(&mut out.dw);
        // SAFETY: the views are those of live vectors of the right sizes, the outputs apart.
        unsafe {
            forward.run(self.rows, instructions);
            backward.run(self.rows, dw, instructions);
        }
        out
    }

    fn check(&self) {
        let what = format!(
            "T={} H={} residual={}",
            self.rows,
            self.hidden,
            self.residual.is_some()
        );
        let (golden, naive) = (self.golden(Instructions::detect()), naive::run(self));
        same(&golden.h, &naive.h, self.hidden, &what, "h");
        same(&golden.rstd, &naive.rstd, 1, &what, "rstd");
        same(&golden.y, &naive.y, self.hidden, &what, "y");
        same(&golden.dx, &naive.dx, self.hidden, &what, "dx");
        same(&golden.dw, &naive.dw, self.hidden, &what, "dw");
    }
}

fn same<T: PartialEq + std::fmt::LowerHex>(a: &[T], b: &[T], width: usize, what: &str, name: &str) {
    assert_eq!(a.len(), b.len(), "{what}: {name}");
    if let Some(i) = (0..a.len()).find(|&i| a[i] != b[i]) {
        let (row, column) = (i / width, i % width);
        panic!(
            "{what}: {name}[{row}, {column}] is {:x}, naively {:x}",
            a[i], b[i]
        );
    }
}

/// Widths with a tail of a vector, of a lane, of a tile, and without.
#[test]
fn any_hidden_size() {
    for hidden in [
        1, 2, 3, 7, 8, 9, 31, 64, 255, 256, 257, 264, 513, 576, 1600, 3584, 4100,
    ] {
        Case::new(40, hidden, false, 1e-6, hidden as u64).check();
        Case::new(9, hidden, true, 0.0, hidden as u64).check();
    }
}

/// A NaN makes all of dw NaN, an infinity one column.
#[test]
fn not_finite() {
    let case = |residual| Case::new(40, 264, residual, 1e-6, 9);
    let nans = |case: &Case| {
        let dw = case.golden(Instructions::detect()).dw;
        dw.iter().filter(|&&dw| dw == 0x7fff_ffff).count()
    };
    for residual in [false, true] {
        assert_eq!(nans(&case(residual)), 0);
        let nan = case(residual).with(20, 100, f32::NAN);
        nan.check();
        assert_eq!(nans(&nan), 264);
        let infinite = case(residual).with(39, 263, f32::NEG_INFINITY);
        infinite.check();
        assert_eq!(nans(&infinite), 1);
    }
}

/// More than 32 tiles: lanes add more than one tile sum.
#[test]
fn wide_rows() {
    for hidden in [8192, 8200, 16_384, 65_536] {
        Case::new(5, hidden, true, 1e-5, hidden as u64).check();
    }
}

/// T around the multiples of the leaf table's target, where leaves and the tree change shape.
#[test]
fn leaf_table_edges() {
    for hidden in [8, 512, 520, 1024, 1032, 8192, 8200] {
        let target = leaves_target(hidden as u32) as usize;
        let edges = [
            1,
            2,
            3,
            target / 2,
            target,
            3 * target / 2,
            2 * target,
            3 * target,
            4 * target,
        ];
        for edge in edges {
            for rows in [edge - 1, edge, edge + 1] {
                // Naively every row costs the same: wide rows need not have all edges.
                if rows * hidden < 3 << 20 {
                    Case::new(rows, hidden, false, 1e-6, rows as u64)
                        .cancelling()
                        .check();
                }
            }
        }
    }
}

/// Leaves of many rows, wider than the block of columns whose sums are kept.
#[test]
fn leaves_of_many_rows() {
    for case in [
        Case::new(4099, 1064, true, 1e-6, 1),
        Case::new(70_000, 16, false, 1e-6, 2),
    ] {
        case.check();
        case.cancelling().check();
    }
}

/// Without fused multiply-add in hardware, too.
#[test]
fn instruction_sets_agree() {
    let best = Instructions::detect();
    for (rows, hidden) in [(70, 8), (33, 257), (20, 1600), (3, 4096), (2, 65_536)] {
        let case = Case::new(rows, hidden, true, 1e-6, 7);
        assert!(
            case.golden(Instructions::Baseline) == case.golden(best),
            "T={rows} H={hidden}"
        );
    }
}

/// However many threads share the work.
#[test]
fn threads_agree() {
    let case = Case::new(1500, 520, true, 1e-6, 3).cancelling();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        pool.install(|| case.golden(Instructions::detect()))
    };
    let one = with(1);
    assert!(one == with(2) && one == with(7));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_shape(
        rows in 0usize..70,
        hidden in 1usize..700,
        residual: bool,
        cancelling: bool,
        eps in prop_oneof![Just(0.0f32), Just(1e-6), Just(1e-30), Just(1e30)],
        seed: u64,
    ) {
        let case = Case::new(rows, hidden, residual, eps, seed);
        let case = if cancelling { case.cancelling() } else { case };
        case.check();
    }
}
