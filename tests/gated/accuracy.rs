//! Every element of the gated form against FP64, within the bounds of the numerics contract.

use cake_rmsnorm::Dtype;
use cake_rmsnorm::compare::{Accuracy, Bound, Output, Report};
use cake_rmsnorm::gated::{GateOrder, GatedRmsNorm, backward_slices, forward_slices};
use cake_rmsnorm::golden::Weight;
use cake_rmsnorm::kernels::gated::gate::Gate;
use cake_rmsnorm::reference::gated::{Shape, backward, forward};
use cake_rmsnorm::reference::{WeightGradientSum, from_bf16, from_f32};
use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

fn normal(rng: &mut ChaCha8Rng) -> f32 {
    StandardNormal.sample(rng)
}

/// A matrix of rows whose sizes span 2⁻⁶ … 2⁶.
fn matrix(rng: &mut ChaCha8Rng, rows: usize, hidden: usize, spread: i32) -> Vec<bf16> {
    let mut values = Vec::with_capacity(rows * hidden);
    for _ in 0..rows {
        let scale = 2f32.powi(rng.random_range(-spread..=spread));
        values.extend((0..hidden).map(|_| bf16::from_f32(scale * normal(rng))));
    }
    values
}

/// Reports on y, rstd, dx, dz, on dw against the true sum, and on dw against the exact sum of its
/// terms with the factors that the contract rounds.
fn reports(order: GateOrder, rows: usize, hidden: usize, groups: usize, seed: u64) -> [Report; 6] {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let op = GatedRmsNorm::with_groups(order, hidden as u64, groups as u64, Dtype::F32, 1e-6)
        .expect("a supported shape");
    let x = matrix(&mut rng, rows, hidden, 6);
    let dy = matrix(&mut rng, rows, hidden, 3);
    let z = matrix(&mut rng, rows, hidden, 2);
    let w: Vec<f32> = (0..hidden).map(|_| 1.0 + 0.25 * normal(&mut rng)).collect();
    let found = forward_slices(&op, &x, &z, Weight::F32(&w)).expect("matching shapes");
    let gradients =
        backward_slices(&op, &dy, &x, &z, Weight::F32(&w), None).expect("matching shapes");
    let given = backward_slices(&op, &dy, &x, &z, Weight::F32(&w), Some(&found.rstd));
    assert_eq!(
        given.as_ref(),
        Ok(&gradients),
        "rstd is recomputed with the same bits"
    );

    let shape = Shape {
        order,
        hidden,
        groups,
    };
    let accuracy = |output: Output| Accuracy::with_bound(output, output.gated_bound());
    let [mut y, mut rstd, mut dx, mut dz, mut dw] =
        [Output::Y, Output::Rstd, Output::Dx, Output::Dz, Output::Dw].map(accuracy);
    let (x64, z64, dy64, w64) = (from_bf16(&x), from_bf16(&z), from_bf16(&dy), from_f32(&w));
    let exact = forward(shape, &x64, &z64, &w64, 1e-6f32.into()).expect("matching shapes");
    y.add(
        &found.y,
        &exact.y,
        Some(&exact.y.iter().map(|y| y.abs()).collect::<Vec<_>>()),
    )
    .expect("lengths");
    rstd.add(&found.rstd, &exact.rstd, None).expect("lengths");
    let rstd64 = from_f32(&found.rstd);
    let mut sum = WeightGradientSum::new(hidden);
    let exact = backward(shape, &dy64, &x64, &z64, &w64, &rstd64, &mut sum).expect("shapes");
    dx.add(&gradients.dx, &exact.dx.dx, Some(&exact.dx.terms))
        .expect("lengths");
    dz.add(&gradients.dz, &exact.dz.dx, Some(&exact.dz.terms))
        .expect("lengths");
    let exact = sum.finish();
    dw.add(&gradients.dw, &exact.dw, Some(&exact.terms))
        .expect("lengths");

    // dy·x and the rounded factor have 16 and 24 bits: their product is exact in FP64.
    let products: Vec<f64> = dy64.iter().zip(&x64).map(|(dy, x)| dy * x).collect();
    let factors: Vec<f64> = z
        .iter()
        .enumerate()
        .map(|(i, z)| {
            let part = i / (hidden / groups);
            f64::from(Gate::of(z.to_f32()).silu() * found.rstd[part])
        })
        .collect();
    let mut sum = WeightGradientSum::new(hidden);
    sum.add_rows(&products, &factors, &vec![1.0; rows])
        .expect("shapes");
    let exact = sum.finish();
    let mut rounded = Accuracy::with_bound(
        Output::Dw,
        Bound {
            ulps: 1.0,
            of_terms: 2f64.powi(-40),
        },
    );
    rounded
        .add(&gradients.dw, &exact.dw, Some(&exact.terms))
        .expect("lengths");
    [y, rstd, dx, dz, dw, rounded].map(|accuracy| accuracy.report())
}

const ORDERS: [GateOrder; 2] = [GateOrder::NormFirst, GateOrder::GateFirst];

#[test]
fn ordinary_rows() {
    for order in ORDERS {
        for (hidden, groups) in [
            (8, 1),
            (64, 1),
            (128, 1),
            (200, 1),
            (256, 1),
            (1024, 4),
            (4096, 1),
            (8192, 1),
        ] {
            for rows in [0, 1, 2, 7, 300] {
                let [y, rstd, dx, dz, dw, rounded] =
                    reports(order, rows, hidden, groups, 7 + hidden as u64);
                for report in [&y, &rstd, &dx, &dz, &dw, &rounded] {
                    assert!(
                        report.ok(),
                        "{order:?} {rows} x {hidden} / {groups}: {report:#?}"
                    );
                }
                for report in [&y, &dx, &dz, &rounded] {
                    assert!(
                        report.ok_for_ordinary_inputs(),
                        "{order:?} {rows} x {hidden} / {groups}: {report:#?}"
                    );
                }
            }
        }
    }
}

/// dw of many rows is the correctly rounded sum of its terms.
#[test]
fn weight_gradient_of_many_rows() {
    for order in ORDERS {
        let [.., dw, rounded] = reports(order, 70_001, 64, 1, 11);
        assert!(dw.ok(), "{order:?}: {dw:#?}");
        assert!(rounded.ok_for_ordinary_inputs(), "{order:?}: {rounded:#?}");
    }
}

/// Rows whose squares leave the FP32 range, on either side.
#[test]
fn extreme_rows() {
    for order in ORDERS {
        let op = GatedRmsNorm::new(order, 64, Dtype::F32, 0.0).expect("a supported shape");
        for scale in [1e-37f32, 1e-30, 1e25, 1e37] {
            let mut rng = ChaCha8Rng::seed_from_u64(3);
            let mut row = |scale: f32| -> Vec<bf16> {
                (0..64)
                    .map(|_| bf16::from_f32(scale * (1.0 + normal(&mut rng).abs())))
                    .collect()
            };
            let (x, z, dy) = (row(scale), row(1.0), row(1.0));
            let w = vec![1.0; 64];
            let found = forward_slices(&op, &x, &z, Weight::F32(&w)).expect("shapes");
            let shape = Shape {
                order,
                hidden: 64,
                groups: 1,
            };
            let (x64, z64, dy64) = (from_bf16(&x), from_bf16(&z), from_bf16(&dy));
            let w64 = from_f32(&w);
            let exact = forward(shape, &x64, &z64, &w64, 0.0).expect("shapes");
            let rstd64 = from_f32(&found.rstd);
            let mut sum = WeightGradientSum::new(64);
            let gradients = backward(shape, &dy64, &x64, &z64, &w64, &rstd64, &mut sum);
            let exact_gradients = gradients.expect("shapes");
            let gradients =
                backward_slices(&op, &dy, &x, &z, Weight::F32(&w), None).expect("shapes");
            let near = |output: Output, found: &[bf16], exact: &[f64], terms: Option<&[f64]>| {
                let mut accuracy = Accuracy::with_bound(output, output.gated_bound());
                accuracy.add(found, exact, terms).expect("lengths");
                let report = accuracy.report();
                assert!(report.ok(), "{order:?} {scale:e}: {report:#?}");
            };
            near(Output::Y, &found.y, &exact.y, None);
            let (dx, dz) = (&exact_gradients.dx, &exact_gradients.dz);
            near(Output::Dx, &gradients.dx, &dx.dx, Some(&dx.terms));
            near(Output::Dz, &gradients.dz, &dz.dx, Some(&dz.terms));
        }
    }
}

/// A grouped operator gives the bits of one operator a group; a row those of its own batch.
#[test]
fn groups_and_rows_stand_alone() {
    let (rows, width, groups) = (37, 72, 3);
    let hidden = width * groups;
    for order in ORDERS {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let [x, z, dy] = [6, 2, 3].map(|spread| matrix(&mut rng, rows, hidden, spread));
        let w: Vec<f32> = (0..hidden).map(|_| normal(&mut rng)).collect();
        let whole =
            GatedRmsNorm::with_groups(order, hidden as u64, groups as u64, Dtype::F32, 1e-6)
                .expect("a supported shape");
        let one = GatedRmsNorm::new(order, width as u64, Dtype::F32, 1e-6).expect("supported");
        let y = forward_slices(&whole, &x, &z, Weight::F32(&w))
            .expect("shapes")
            .y;
        let gradients =
            backward_slices(&whole, &dy, &x, &z, Weight::F32(&w), None).expect("shapes");
        for group in 0..groups {
            let columns = group * width..(group + 1) * width;
            let part = |matrix: &[bf16]| -> Vec<bf16> {
                let rows = matrix.chunks(hidden);
                rows.flat_map(|row| row[columns.clone()].to_vec()).collect()
            };
            let w = Weight::F32(&w[columns.clone()]);
            let alone = forward_slices(&one, &part(&x), &part(&z), w).expect("shapes");
            assert_eq!(alone.y, part(&y));
            let alone = backward_slices(&one, &part(&dy), &part(&x), &part(&z), w, None);
            let alone = alone.expect("shapes");
            assert_eq!(alone.dx, part(&gradients.dx));
            assert_eq!(alone.dz, part(&gradients.dz));
            assert_eq!(alone.dw, gradients.dw[columns]);
        }
        let row = 11 * hidden..12 * hidden;
        let alone = forward_slices(&whole, &x[row.clone()], &z[row.clone()], Weight::F32(&w));
        assert_eq!(alone.expect("shapes").y, y[row]);
    }
}
