//! The golden implementation against the contract spelled out naively: every bit, for any H, and
//! for every instruction set.

mod naive;

use super::memory::{Elements, ElementsMut, Rows, RowsMut};
use super::row::RowWeight;
use super::weight_gradient::WeightGradientOut;
use super::{BackwardTask, ForwardTask};
use crate::element::Element;
use crate::op::Update;
use crate::view::{Dtype, RowsView, VectorView};
use cake_rmsnorm_kernels::instructions::Instructions;
use cake_rmsnorm_kernels::leaf::leaves_target;
use half::{bf16, f16};
use naive::Naive;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Inputs, packed; any H.
#[derive(Debug)]
pub struct Case<E = bf16> {
    rows: usize,
    hidden: usize,
    eps: f32,
    x: Vec<E>,
    dy: Vec<E>,
    residual: Option<Vec<E>>,
    dh: Option<Vec<E>>,
    w: Vec<f32>,
    /// What dw holds, where the backward accumulates.
    old: Option<Vec<f32>>,
}

/// The bits of all outputs.
#[derive(Debug, PartialEq, Eq)]
pub struct Outputs {
    h: Vec<u32>,
    y: Vec<u32>,
    rstd: Vec<u32>,
    dx: Vec<u32>,
    dw: Vec<u32>,
    dw_bf16: Vec<u32>,
}

fn bits<E: Element>(values: &[E]) -> Vec<u32> {
    let bits = |value| match *bytemuck::bytes_of(value) {
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => unreachable!("elements have 2 or 4 bytes"),
    };
    values.iter().map(bits).collect()
}

impl<E: Naive> Case<E> {
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
                // Near the ends of FP16, and beyond its smallest values.
                let half = E::DTYPE == Dtype::F16 && scale != 0.0;
                let scale = if half { scale.clamp(6e-8, 6e4) } else { scale };
                let first = values.len();
                values.extend((0..hidden).map(|_| rng.random_range(-1f32..1.0) * scale));
                let any = first + rng.random_range(0..hidden);
                if kind == 5 {
                    values[any] = if half { 6e4 } else { 1e30 };
                }
            }
            values.iter().map(|&x| E::round(x)).collect::<Vec<E>>()
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
            old: None,
        }
    }

    /// The same with a dw that is added to: values around those of the sum, and some that are not
    /// finite.
    fn accumulating(mut self) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(self.hidden as u64);
        let old = (0..self.hidden).map(|column| match column % 37 {
            5 => f32::INFINITY,
            6 => f32::NAN,
            7 => -0.0,
            _ => rng.random_range(-1f32..1.0) * 2f32.powi(rng.random_range(-30..12)),
        });
        self.old = Some(old.collect());
        self
    }

    /// The same with `value` in place of one element of x.
    fn with(mut self, row: usize, column: usize, value: f32) -> Self {
        self.x[row * self.hidden + column] = E::round(value);
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
                self.dy[from]
                    .iter_mut()
                    .for_each(|dy| *dy = E::round(-dy.value()));
            } else if row == mirror {
                self.dy[from].fill(E::zeroed());
            }
        }
        self
    }

    fn golden(&self, instructions: Instructions) -> Outputs {
        let elements = self.rows * self.hidden;
        let mut h = vec![E::zeroed(); if self.residual.is_some() { elements } else { 0 }];
        let mut y = vec![E::zeroed(); elements];
        let mut dx = vec![E::zeroed(); elements];
        let mut rstd = vec![0f32; self.rows];
        let mut dw = self.old.clone().unwrap_or(vec![f32::NAN; self.hidden]);
        let mut dw_bf16 = vec![bf16::NAN; self.hidden];
        let view = |address: *const E| {
            RowsView::packed(address as u64, self.rows as u64, self.hidden as u64)
        };
        let matrix = |values: &Vec<E>| Rows::<E>::new(&view(values.as_ptr()));
        let rstd_view = VectorView::f32(rstd.as_mut_ptr() as u64, self.rows as u64);
        let h_address = h.as_mut_ptr();
        let forward = ForwardTask {
            x: matrix(&self.x),
            residual: self.residual.as_ref().map(matrix),
            w: RowWeight::new(self.w.clone()),
            h: self
                .residual
                .as_ref()
                .map(|_| RowsMut::new(&view(h_address))),
            y: RowsMut::new(&view(y.as_mut_ptr())),
            rstd: Some(ElementsMut::new(&rstd_view)),
            eps: self.eps,
            hidden: self.hidden,
            in_place: false,
        };
        let normalised = if self.residual.is_some() {
            h_address.cast_const()
        } else {
            self.x.as_ptr()
        };
        let backward = BackwardTask {
            dy: matrix(&self.dy),
            x: Rows::new(&view(normalised)),
            dh: self.dh.as_ref().map(matrix),
            w: RowWeight::new(self.w.clone()),
            rstd: Some(Elements::new(&rstd_view)),
            dx: Some(RowsMut::new(&view(dx.as_mut_ptr()))),
            eps: self.eps,
            hidden: self.hidden,
            in_place: false,
        };
        let update = if self.old.is_some() {
            Update::Accumulate
        } else {
            Update::Overwrite
        };
        let out = WeightGradientOut {
            dw: Some(&mut dw),
            bf16: Some(&mut dw_bf16),
            update,
        };
        // SAFETY: the views are those of live vectors of the right sizes, the outputs apart.
        unsafe {
            forward.run(self.rows, instructions);
            backward.run(self.rows, Some(out), instructions);
        }
        Outputs {
            h: bits(&h),
            y: bits(&y),
            rstd: bits(&rstd),
            dx: bits(&dx),
            dw: bits(&dw),
            dw_bf16: bits(&dw_bf16),
        }
    }

    fn check(&self) {
        let what = format!(
            "{} T={} H={} residual={}",
            E::DTYPE,
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
        let what = format!("{what} accumulating={}", self.old.is_some());
        same(
            &golden.dw_bf16,
            &naive.dw_bf16,
            self.hidden,
            &what,
            "dw_bf16",
        );
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
        Case::<bf16>::new(40, hidden, false, 1e-6, hidden as u64).check();
        Case::<bf16>::new(9, hidden, true, 0.0, hidden as u64).check();
        Case::<f16>::new(40, hidden, true, 1e-6, hidden as u64).check();
        Case::<f32>::new(40, hidden, true, 0.0, hidden as u64).check();
    }
}

/// A NaN makes all of dw NaN, an infinity one column.
#[test]
fn not_finite() {
    let case = |residual| Case::<bf16>::new(40, 264, residual, 1e-6, 9);
    let nans = |case: &Case<bf16>| {
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
        Case::<bf16>::new(5, hidden, true, 1e-5, hidden as u64).check();
    }
}

/// T around the multiples of the leaf table's target, where leaves and the tree change shape.
#[test]
fn leaf_table_edges() {
    for hidden in [8, 256, 264, 512, 520, 1024, 1032, 8192, 8200] {
        let target = leaves_target(hidden as u32) as usize;
        let edges = [
            1,
            2,
            3,
            128,
            256,
            512,
            1024,
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
                    Case::<bf16>::new(rows, hidden, false, 1e-6, rows as u64)
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
        Case::<bf16>::new(4099, 1064, true, 1e-6, 1),
        Case::<bf16>::new(70_000, 16, false, 1e-6, 2),
    ] {
        case.check();
        case.cancelling().check();
    }
}

/// Without fused multiply-add in hardware, too.
#[test]
fn instruction_sets_agree() {
    let best = Instructions::detect();
    fn agree<E: Naive>(rows: usize, hidden: usize, best: Instructions) {
        let case = Case::<E>::new(rows, hidden, true, 1e-6, 7);
        let same = case.golden(Instructions::Baseline) == case.golden(best);
        assert!(same, "{} T={rows} H={hidden}", E::DTYPE);
    }
    for (rows, hidden) in [(70, 8), (33, 257), (20, 1600), (3, 4096), (2, 65_536)] {
        agree::<bf16>(rows, hidden, best);
        agree::<f16>(rows, hidden, best);
        agree::<f32>(rows, hidden, best);
    }
}

/// However many threads share the work.
#[test]
fn threads_agree() {
    let case = Case::<bf16>::new(1500, 520, true, 1e-6, 3).cancelling();
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
        accumulating: bool,
        eps in prop_oneof![Just(0.0f32), Just(1e-6), Just(1e-30), Just(1e30)],
        seed: u64,
    ) {
        let check = (cancelling, accumulating);
        fn checked<E: Naive>(case: Case<E>, (cancelling, accumulating): (bool, bool)) {
            let case = if cancelling { case.cancelling() } else { case };
            let case = if accumulating { case.accumulating() } else { case };
            case.check();
        }
        checked(Case::<bf16>::new(rows, hidden, residual, eps, seed), check);
        checked(Case::<f16>::new(rows, hidden, residual, eps, seed), check);
        checked(Case::<f32>::new(rows, hidden, residual, eps, seed), check);
    }
}
