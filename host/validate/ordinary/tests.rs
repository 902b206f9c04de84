use super::{backward, forward};
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm, Update, WeightGradient};
use crate::validate::{any_backward, any_forward};
use crate::view::{Dtype, RowsView, VectorView, Workspace};
use proptest::prelude::*;
use std::cell::Cell;

const HIDDEN: u64 = 24;
const ROWS: u64 = 5;

/// A value that is nearly always the ordinary one.
fn mostly<T: Clone + std::fmt::Debug + 'static>(
    ordinary: T,
    others: Vec<T>,
) -> impl Strategy<Value = T> {
    prop_oneof![30 => Just(ordinary), 1 => proptest::sample::select(others)]
}

fn dtype(ordinary: Dtype) -> impl Strategy<Value = Dtype> {
    mostly(ordinary, vec![Dtype::Bf16, Dtype::F16, Dtype::F32])
}

/// Places that are a page apart, some of them beside or on each other, at odd bytes, or nowhere.
fn address(page: u64) -> impl Strategy<Value = u64> {
    let near = |page: u64| [page, page + 1, page + 2, page + 8, page + 16, page + 96];
    let others = (1..8).flat_map(|page| near(4096 * page));
    let others = others.chain([0, u64::MAX - 15, u64::MAX - 1]).collect();
    mostly(4096 * page, others)
}

fn matrix(page: u64) -> impl Strategy<Value = RowsView> {
    let hidden = mostly(HIDDEN, vec![0, HIDDEN - 8, HIDDEN + 8]);
    let rows = mostly(ROWS, vec![0, 1, ROWS + 1]);
    let far = [1 << 27, 1 << 29, 1 << 31, 1 << 62, i64::MAX, i64::MIN];
    let strides = [-32, 0, 8, 16, 23, 32, 40].into_iter().chain(far).collect();
    let stride = mostly(HIDDEN as i64, strides);
    let groups = mostly(
        None,
        vec![Some((0, 8)), Some((1, 24)), Some((2, 48)), Some((5, 120))],
    );
    (
        address(page),
        dtype(Dtype::Bf16),
        rows,
        hidden,
        stride,
        groups,
    )
        .prop_map(|(address, dtype, rows, hidden, stride, groups)| {
            let view = RowsView::packed(address, rows, hidden);
            let view = view.with_dtype(dtype).with_stride(stride);
            match groups {
                Some((rows, stride)) => view.with_groups(rows, stride),
                None => view,
            }
        })
}

fn vector(page: u64, of: Dtype, len: u64) -> impl Strategy<Value = VectorView> {
    let len = mostly(len, vec![0, len - 1, len + 1]);
    (address(page), dtype(of), len).prop_map(|(address, dtype, len)| VectorView {
        address,
        dtype,
        len,
    })
}

fn there<T: Clone + std::fmt::Debug>(
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    proptest::option::weighted(0.6, strategy)
}

fn operator() -> impl Strategy<Value = RmsNorm> {
    let op = RmsNorm::new(HIDDEN, Dtype::F32, 1e-6).expect("an operator");
    let weightless = RmsNorm::builder(HIDDEN).no_weight();
    let weightless = weightless.build().expect("an operator");
    prop_oneof![9 => Just(op), 1 => Just(weightless)]
}

fn forwards() -> impl Strategy<Value = (RmsNorm, ForwardArgs)> {
    let residual = prop_oneof![
        10 => (matrix(2), matrix(3)).prop_map(|(residual, h)| (Some(residual), Some(h))),
        10 => Just((None, None)),
        1 => there(matrix(2)).prop_map(|residual| (residual, None)),
        1 => there(matrix(3)).prop_map(|h| (None, h)),
    ];
    let w = prop_oneof![9 => vector(4, Dtype::F32, HIDDEN).prop_map(Some), 1 => Just(None)];
    let rstd = there(vector(6, Dtype::F32, ROWS));
    (operator(), matrix(1), residual, w, matrix(5), rstd).prop_map(
        |(op, x, (residual, h), w, y, rstd)| {
            let args = ForwardArgs {
                x,
                residual,
                w,
                h,
                y,
                rstd,
            };
            (op, args)
        },
    )
}

fn backwards() -> impl Strategy<Value = (RmsNorm, BackwardArgs)> {
    let dw = (
        vector(5, Dtype::F32, HIDDEN),
        proptest::sample::select(vec![Update::Overwrite, Update::Accumulate]),
        there(vector(6, Dtype::Bf16, HIDDEN)),
    );
    let dw = there(dw.prop_map(|(dw, update, bf16)| WeightGradient { dw, update, bf16 }));
    let w = prop_oneof![9 => vector(4, Dtype::F32, HIDDEN).prop_map(Some), 1 => Just(None)];
    let workspace = (address(7), mostly(256, vec![0, 3, 4, u64::MAX]))
        .prop_map(|(address, bytes)| Workspace { address, bytes });
    let rstd = there(vector(8, Dtype::F32, ROWS));
    let matrices = (matrix(1), matrix(2), there(matrix(3)), there(matrix(9)));
    (operator(), matrices, w, rstd, dw, workspace).prop_map(
        |(op, (dy, x, dh, dx), w, rstd, dw, workspace)| {
            let args = BackwardArgs {
                dy,
                x,
                dh,
                w,
                rstd,
                dx,
                dw,
                workspace,
            };
            (op, args)
        },
    )
}

/// Draws calls: none that the quick look lets through is refused by the proper one, and both see
/// many of either kind.
fn agree<Args: std::fmt::Debug>(
    calls: impl Strategy<Value = (RmsNorm, Args)>,
    quick: impl Fn(&RmsNorm, &Args) -> bool,
    refusal: impl Fn(&RmsNorm, &Args) -> Option<String>,
) {
    let (through, refused) = (Cell::new(0), Cell::new(0));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 60_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&calls, |(op, args)| {
        let refusal = refusal(&op, &args);
        if quick(&op, &args) {
            through.set(through.get() + 1);
            prop_assert_eq!(refusal, None);
        } else if refusal.is_some() {
            refused.set(refused.get() + 1);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (through, refused) = (through.get(), refused.get());
    assert!(
        through > 5000 && refused > 5000,
        "{through} let through, {refused} refused"
    );
}

#[test]
fn a_quick_look_lets_no_wrong_call_through() {
    agree(forwards(), forward, |op, args| {
        any_forward(op, args).err().map(|error| error.to_string())
    });
    agree(backwards(), backward, |op, args| {
        any_backward(op, args).err().map(|error| error.to_string())
    });
}
