//! Every element against FP64, within the bounds of the numerics contract.

use crate::data::{Kind, operator, rows, weight};
use cake_rmsnorm::Dtype;
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cpu::Cpu;
use cake_rmsnorm::compare::{Accuracy, Output, Report};
use cake_rmsnorm::golden::{self, Weight};
use cake_rmsnorm::reference::{self, WeightGradientSum, from_bf16, from_f32};
use cake_rmsnorm::{BackwardArgs, RmsNorm, RowsView, VectorView, WeightGradient, Workspace};
use half::bf16;

/// Elements of a block of rows: FP64 copies of it fit in memory many times over.
const BLOCK: usize = 1 << 20;
/// Elements of the largest case.
const LARGEST: usize = 5 << 22;

const HIDDEN: [usize; 8] = [8, 64, 256, 264, 576, 1600, 4096, 65_536];
const ROWS: [usize; 6] = [0, 1, 2, 7, 300, 1500];

/// A forward and a backward on rows of `kinds`, compared with FP64.
struct Case<'a> {
    rows: usize,
    hidden: usize,
    kinds: &'a [Kind],
    eps: f32,
    residual: bool,
}

impl Case<'_> {
    /// Reports on y, rstd, dx and dw.
    fn reports(&self) -> [Report; 4] {
        let (rows_count, hidden) = (self.rows, self.hidden);
        let op = operator(hidden, self.eps);
        let x = rows(rows_count, hidden, self.kinds, 1);
        let dy = rows(rows_count, hidden, &[Kind::Normal], 2);
        let residual = self
            .residual
            .then(|| rows(rows_count, hidden, &[Kind::Normal], 3));
        let dh = self
            .residual
            .then(|| rows(rows_count, hidden, &[Kind::Normal], 4));
        let w = weight(hidden, 5);
        let forward = golden::forward_slices(&op, &x, residual.as_deref(), Weight::F32(&w))
            .expect("matching shapes");
        let normalised = forward.h.as_ref().unwrap_or(&x);
        let backward = golden::backward_slices(
            &op,
            &dy,
            normalised,
            dh.as_deref(),
            Weight::F32(&w),
            &forward.rstd,
        )
        .expect("matching shapes");

        let w = from_f32(&w);
        let mut accuracy = [Output::Y, Output::Rstd, Output::Dx].map(Accuracy::new);
        let [y, rstd, dx] = &mut accuracy;
        let mut dw = WeightGradientSum::new(hidden);
        let block_rows = (BLOCK / hidden).max(1);
        for first in (0..rows_count).step_by(block_rows) {
            let last = rows_count.min(first + block_rows);
            let elements = first * hidden..last * hidden;
            let block = |matrix: &[bf16]| from_bf16(&matrix[elements.clone()]);
            let (dy, h, dh) = (block(&dy), block(normalised), dh.as_deref().map(block));
            let exact = reference::forward(&h, &w, hidden, f64::from(self.eps)).expect("shapes");
            y.add(&forward.y[elements.clone()], &exact.y, None)
                .expect("lengths");
            rstd.add(&forward.rstd[first..last], &exact.rstd, None)
                .expect("lengths");
            let row_rstd = from_f32(&forward.rstd[first..last]);
            let exact = reference::input_gradient(&dy, &h, dh.as_deref(), &w, &row_rstd, hidden)
                .expect("shapes");
            dx.add(&backward.dx[elements], &exact.dx, Some(&exact.terms))
                .expect("lengths");
            dw.add_rows(&dy, &h, &row_rstd).expect("shapes");
        }
        let mut exact = dw.finish();
        let lost = underflow(&forward.rstd);
        exact
            .terms
            .iter_mut()
            .for_each(|terms| *terms += lost / Output::Dw.bound(Dtype::F32).of_terms);
        let mut dw = Accuracy::new(Output::Dw);
        dw.add(&backward.dw, &exact.dw, Some(&exact.terms))
            .expect("lengths");
        let [y, rstd, dx] = accuracy.map(|accuracy| accuracy.report());
        [y, rstd, dx, dw.report()]
    }

    fn check(&self, ok: impl Fn(&Report) -> bool) {
        for report in self.reports() {
            let Case {
                rows,
                hidden,
                kinds,
                eps,
                residual,
            } = self;
            assert!(
                ok(&report),
                "T={rows} H={hidden} {kinds:?} eps={eps:e} residual={residual}: {report:#?}"
            );
        }
    }
}

/// What products that underflow may lose of dw at most: g = dy·x and the compensation are rounded
/// to multiples of 2^-149, and the former is multiplied by rstd, of the scaled row in extreme ones
/// (docs/numerics.md, "Limits").
fn underflow(rstd: &[f32]) -> f64 {
    let scaled = |rstd: f32| match f64::from(rstd) {
        rstd if rstd < 2f64.powi(-40) => rstd * 2f64.powi(80),
        rstd if rstd > 2f64.powi(40) => rstd * 2f64.powi(-80),
        rstd => rstd,
    };
    rstd.iter()
        .map(|&rstd| 2f64.powi(-150) * (1.0 + scaled(rstd)))
        .sum()
}

fn shapes() -> impl Iterator<Item = (usize, usize)> {
    let all = HIDDEN
        .into_iter()
        .flat_map(|hidden| ROWS.map(|rows| (rows, hidden)));
    all.filter(|(rows, hidden)| rows * hidden <= LARGEST)
}

/// All bounds, and almost all elements correctly rounded.
#[test]
fn ordinary_rows() {
    for (rows, hidden) in shapes() {
        for residual in [false, true] {
            let case = Case {
                rows,
                hidden,
                kinds: &[Kind::Normal],
                eps: 1e-6,
                residual,
            };
            case.check(Report::ok_for_ordinary_inputs);
        }
    }
}

/// Each kind alone.
#[test]
fn extreme_rows() {
    for kind in Kind::ALL {
        for (rows, hidden) in [(7, 8), (300, 264), (40, 1600), (8, 4096), (2, 65_536)] {
            for eps in [0.0, 1e-6, 1.0] {
                // A zero row has no finite rstd without eps.
                if kind != Kind::Zero || eps > 0.0 {
                    let case = Case {
                        rows,
                        hidden,
                        kinds: &[kind],
                        eps,
                        residual: false,
                    };
                    case.check(Report::ok);
                }
            }
        }
    }
}

/// All kinds together, in every shape.
#[test]
fn mixed_rows() {
    for (rows, hidden) in shapes() {
        let case = Case {
            rows,
            hidden,
            kinds: &Kind::ALL,
            eps: 1e-6,
            residual: false,
        };
        case.check(Report::ok);
    }
}

/// Long sums: FP32 alone would be off by hundreds of units.
#[test]
fn weight_gradient_of_many_rows() {
    for kinds in [[Kind::Normal], [Kind::HeavyTailed]] {
        let case = Case {
            rows: 65_536,
            hidden: 256,
            kinds: &kinds,
            eps: 1e-6,
            residual: false,
        };
        case.check(Report::ok_for_ordinary_inputs);
    }
}

/// A BF16 weight with an offset that BF16 cannot add, dw added to what it held, and dw as BF16.
#[test]
fn weight_offset_and_accumulation() {
    for (hidden, count, offset) in [(64, 300, 1.0f32), (576, 70, 1.0), (1600, 40, -0.37)] {
        let op = RmsNorm::builder(hidden as u64)
            .weight_offset(offset)
            .build();
        let op = op.expect("an operator");
        let narrow = |values: &[f32]| -> Vec<bf16> {
            values
                .iter()
                .map(|&value| bf16::from_f32(value / 256.0))
                .collect()
        };
        let w = narrow(&weight(hidden, 5));
        let old: Vec<f32> = weight(hidden, 6).iter().map(|old| 100.0 * old).collect();
        let (x, dy) = (
            rows(count, hidden, &[Kind::Normal], 1),
            rows(count, hidden, &[Kind::Normal], 2),
        );
        let forward = golden::forward_slices(&op, &x, None, Weight::Bf16(&w)).expect("shapes");
        let (mut dx, mut dw) = (vec![bf16::NAN; x.len()], old.clone());
        let mut dw_bf16 = vec![bf16::NAN; hidden];
        let matrix =
            |address: *const bf16| RowsView::packed(address as u64, count as u64, hidden as u64);
        let dw_view = VectorView::f32(dw.as_mut_ptr() as u64, hidden as u64);
        let bf16_view = VectorView::bf16(dw_bf16.as_mut_ptr() as u64, hidden as u64);
        let args = BackwardArgs {
            dy: matrix(dy.as_ptr()),
            x: matrix(x.as_ptr()),
            dh: None,
            w: Some(VectorView::bf16(w.as_ptr() as u64, hidden as u64)),
            rstd: None,
            dx: Some(matrix(dx.as_mut_ptr())),
            dw: Some(WeightGradient::accumulate(dw_view).and_bf16(bf16_view)),
            workspace: Workspace {
                address: 0,
                bytes: 0,
            },
        };
        // SAFETY: views of live vectors, the outputs apart from the inputs.
        unsafe { Cpu.backward(&op, &args) }.expect("accepted");

        let (x, dy) = (from_bf16(&x), from_bf16(&dy));
        let w: Vec<f64> = from_bf16(&w)
            .iter()
            .map(|w| w + f64::from(offset))
            .collect();
        let rstd = from_f32(&forward.rstd);
        let exact = reference::forward(&x, &w, hidden, f64::from(op.eps())).expect("shapes");
        let input = reference::input_gradient(&dy, &x, None, &w, &rstd, hidden).expect("shapes");
        let mut sum = WeightGradientSum::new(hidden);
        sum.add_rows(&dy, &x, &rstd).expect("shapes");
        sum.add_values(&from_f32(&old)).expect("lengths");
        let exact_dw = sum.finish();
        let check = |output, what: &dyn Fn(&mut Accuracy)| {
            let mut accuracy = Accuracy::new(output);
            what(&mut accuracy);
            let report = accuracy.report();
            assert!(report.ok_for_ordinary_inputs(), "H={hidden} {report:#?}");
        };
        check(Output::Y, &|y| {
            y.add(&forward.y, &exact.y, None).expect("lengths")
        });
        check(Output::Dx, &|accuracy| {
            accuracy
                .add(&dx, &input.dx, Some(&input.terms))
                .expect("lengths");
        });
        check(Output::Dw, &|accuracy| {
            accuracy
                .add(&dw, &exact_dw.dw, Some(&exact_dw.terms))
                .expect("lengths");
        });
        for (dw, exact) in dw_bf16.iter().zip(&exact_dw.dw) {
            let ulp = 2f64.powi(exact.abs().log2().floor() as i32 - 7);
            let error = (dw.to_f64() - exact).abs() / ulp;
            assert!(error <= 0.5 + 2f64.powi(-16), "dw_bf16 is {error} ulp off");
        }
    }
}

/// What two roundings would lose: the sum itself is no FP32 value, and old + sum is.
#[test]
fn accumulation_rounds_once() {
    let (hidden, one) = (8, [bf16::ONE; 8]);
    let op = RmsNorm::builder(hidden)
        .weight(cake_rmsnorm::Dtype::F32)
        .build();
    let op = op.expect("an operator");
    // dy·x·rstd = 1 + 2^-24 in three rows: 2^-25 twice, 1 between.
    let small = bf16::from_f32(2f32.powi(-25));
    let dy: Vec<bf16> = [[small; 8], one, [small; 8]].concat();
    let x = [bf16::ONE; 24];
    let (rstd, w) = ([1f32; 3], [1f32; 8]);
    // 2^-24 and 1 are rounded to 1; with what dw holds, the half ulp counts.
    let mut dw = [2f32.powi(-24); 8];
    let matrix = |address: *const bf16| RowsView::packed(address as u64, 3, hidden);
    let args = BackwardArgs {
        dy: matrix(dy.as_ptr()),
        x: matrix(x.as_ptr()),
        dh: None,
        w: Some(VectorView::f32(w.as_ptr() as u64, hidden)),
        rstd: Some(VectorView::f32(rstd.as_ptr() as u64, 3)),
        dx: None,
        dw: Some(WeightGradient::accumulate(VectorView::f32(
            dw.as_mut_ptr() as u64,
            hidden,
        ))),
        workspace: Workspace {
            address: 0,
            bytes: 0,
        },
    };
    // SAFETY: views of live arrays, the output apart from the inputs.
    unsafe { Cpu.backward(&op, &args) }.expect("accepted");
    assert_eq!(dw, [1.0 + 2f32.powi(-23); 8]);
}
