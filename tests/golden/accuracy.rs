//! Every element against FP64, within the bounds of the numerics contract.

use crate::data::{Kind, operator, rows, weight};
use cake_rmsnorm::compare::{Accuracy, Output, Report};
use cake_rmsnorm::golden::{self, Weight};
use cake_rmsnorm::reference::{self, WeightGradientSum, from_bf16, from_f32};
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
            .for_each(|terms| *terms += lost / Output::Dw.bound().of_terms);
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
