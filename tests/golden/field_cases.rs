//! What has gone wrong in other normalisation libraries, with the right answers.

use crate::data::{Kind, bf16s, bits, bits_f32, operator, rows, weight};
use cake_rmsnorm::golden::{self, Weight, backward_slices, forward_slices};
use cake_rmsnorm::{
    Argument, BackwardArgs, Dtype, Error, ForwardArgs, RmsNorm, RowsView, VectorView, Workspace,
};
use half::bf16;

const NAN: u16 = 0x7fff;

fn ones(elements: usize) -> Vec<bf16> {
    vec![bf16::ONE; elements]
}

/// Accumulating in BF16 stops at 256.
#[test]
fn weight_gradient_counts_exactly() {
    let op = operator(8, 1e-6);
    for rows in [1, 255, 4096, 65_537] {
        let (dy, rstd) = (ones(rows * 8), vec![1.0; rows]);
        let result = backward_slices(&op, &dy, &dy, None, Weight::F32(&[1.0; 8]), &rstd).unwrap();
        assert_eq!(result.dw, [rows as f32; 8]);
    }
}

/// A term beside 2^24 times larger ones, and sums that cancel.
#[test]
fn weight_gradient_keeps_small_terms() {
    let op = operator(8, 1e-6);
    let column: Vec<f32> = vec![
        16_777_216.0,
        1.0,
        1.0,
        1.0,
        -16_777_216.0,
        0.5,
        2f32.powi(-20),
    ];
    let dy: Vec<f32> = column.iter().flat_map(|&value| [value; 8]).collect();
    let x = ones(column.len() * 8);
    let rstd = vec![1.0; column.len()];
    let result = backward_slices(&op, &bf16s(&dy), &x, None, Weight::F32(&[1.0; 8]), &rstd);
    assert_eq!(result.unwrap().dw, [3.5 + 2f32.powi(-20); 8]);
}

#[test]
fn zero_rows() {
    let op = operator(64, 1e-6);
    let x = vec![bf16::ZERO; 3 * 64];
    let w: Vec<f32> = (0..64).map(|j| 2f32.powi(j % 5)).collect();
    let forward = forward_slices(&op, &x, None, Weight::F32(&w)).unwrap();
    assert!(forward.y.iter().all(|y| y.to_bits() == 0));
    // 1 / sqrt(FP32(1e-6)) = 1000.00000126; each of the two operations may round away from it.
    assert!(
        forward
            .rstd
            .iter()
            .all(|rstd| (rstd - 1000.0).abs() <= 2.0 * 2f32.powi(-14))
    );
    // Powers of two: the products with 1000 are BF16 values, far from a tie.
    let dy: Vec<f32> = (0..3 * 64)
        .map(|i| [0.0, 1.0, -2.0, 0.25, -1.0][i % 5])
        .collect();
    let backward =
        backward_slices(&op, &bf16s(&dy), &x, None, Weight::F32(&w), &forward.rstd).unwrap();
    let expected: Vec<f32> = (0..3 * 64).map(|i| 1000.0 * dy[i] * w[i % 64]).collect();
    let (dx, expected) = (backward.dx, bf16s(&expected));
    assert!(
        dx.iter()
            .zip(&expected)
            .all(|(dx, expected)| dx == expected),
        "{dx:?}"
    );
    assert_eq!(backward.dw, [0.0; 64]);
}

#[test]
fn zero_rows_without_eps() {
    let op = operator(8, 0.0);
    let mut x = ones(3 * 8);
    x[8..16].fill(bf16::ZERO);
    let forward = forward_slices(&op, &x, None, Weight::F32(&[1.0; 8])).unwrap();
    assert_eq!(forward.rstd, [1.0, f32::INFINITY, 1.0]);
    assert_eq!(bits(&forward.y[8..16]), [NAN; 8]);
    assert_eq!(
        (&forward.y[..8], &forward.y[16..]),
        (&ones(8)[..], &ones(8)[..])
    );
    let backward = backward_slices(
        &op,
        &ones(24),
        &x,
        None,
        Weight::F32(&[1.0; 8]),
        &forward.rstd,
    )
    .unwrap();
    assert_eq!(bits(&backward.dx[8..16]), [NAN; 8]);
    assert_eq!(bits_f32(&backward.dw), [0x7fff_ffff; 8]);
    assert!(
        backward.dx[..8]
            .iter()
            .chain(&backward.dx[16..])
            .all(|dx| dx.to_f32() == 0.0)
    );
}

/// The smallest subnormal BF16 value: rstd overflows, and y with it.
#[test]
fn smallest_rows() {
    let op = operator(8, 0.0);
    let x: Vec<bf16> = (0..8).map(|j| bf16::from_bits(1 | (j % 2) << 15)).collect();
    let forward = forward_slices(&op, &x, None, Weight::F32(&[1.5; 8])).unwrap();
    assert_eq!(forward.rstd, [f32::INFINITY]);
    let expected = [f32::INFINITY, f32::NEG_INFINITY].repeat(4);
    assert_eq!(forward.y, bf16s(&expected));
}

/// h is rounded first, and the rounded h is what is normalised.
#[test]
fn residual_is_rounded_before_the_norm() {
    let op = operator(8, 0.0);
    let x = ones(8);
    // 1 + 2^-9 rounds to 1, 1 + 3·2^-9 to 1 + 2^-7 (both beyond a tie).
    let residual = bf16s(&[0.001_953_125; 8]);
    let result = forward_slices(&op, &x, Some(&residual), Weight::F32(&[1.0; 8])).unwrap();
    assert_eq!(
        (result.h.as_deref(), &result.y, result.rstd[0]),
        (Some(&x[..]), &x, 1.0)
    );

    let op = operator(256, 1e-5);
    let (x, residual) = (
        rows(20, 256, &[Kind::Normal], 1),
        rows(20, 256, &[Kind::Normal], 2),
    );
    let w = weight(256, 3);
    let fused = forward_slices(&op, &x, Some(&residual), Weight::F32(&w)).unwrap();
    let sums = x
        .iter()
        .zip(&residual)
        .map(|(x, r)| bf16::from_f32(x.to_f32() + r.to_f32()));
    let h: Vec<bf16> = sums.collect();
    let plain = forward_slices(&op, &h, None, Weight::F32(&w)).unwrap();
    assert_eq!(bits(fused.h.as_ref().unwrap()), bits(&h));
    assert_eq!(
        (bits(&fused.y), bits_f32(&fused.rstd)),
        (bits(&plain.y), bits_f32(&plain.rstd))
    );
}

/// dx with a residual gradient is rounded once: adding to a rounded dx would round twice.
#[test]
fn residual_gradient_is_added_before_the_rounding() {
    let op = operator(8, 1e-6);
    // rstd·a = 1 + 2^-8 (a tie by itself), k = 0.
    let mut dy = vec![bf16::ZERO; 8];
    dy[0] = bf16::ONE;
    let x = vec![bf16::ZERO; 8];
    let dh = bf16s(&[2f32.powi(-8); 8]);
    let w = Weight::F32(&[1.0; 8]);
    let result = backward_slices(&op, &dy, &x, Some(&dh), w, &[1.0 + 2f32.powi(-8)]).unwrap();
    assert_eq!(result.dx[0].to_f32(), 1.0 + 2f32.powi(-7));
    assert_eq!(result.dx[1].to_f32(), 2f32.powi(-8));
}

/// Infinity follows IEEE: rstd = 0, and 0·∞ is not a number.
#[test]
fn infinite_elements() {
    let op = operator(16, 1e-6);
    let mut x = vec![-bf16::ONE; 2 * 16];
    x[3] = bf16::NEG_INFINITY;
    let forward = forward_slices(&op, &x, None, Weight::F32(&[1.0; 16])).unwrap();
    let mut expected = [0x8000; 16];
    expected[3] = NAN;
    assert_eq!(bits(&forward.y[..16]), expected);
    assert_eq!(forward.rstd[0], 0.0);
    assert!((forward.rstd[1] - 1.0).abs() < 1e-6);
    assert_eq!(forward.y[16..], x[16..]);
}

/// One NaN (in x, then in dy) in row 2 of 5: other rows keep their bits.
#[test]
fn nan_stays_in_its_row() {
    let (hidden, count, column) = (264, 5, 100);
    let op = operator(hidden, 1e-6);
    let (x, dy) = (
        rows(count, hidden, &[Kind::Normal], 1),
        rows(count, hidden, &[Kind::Normal], 2),
    );
    let w = weight(hidden, 3);
    let run = |x: &[bf16], dy: &[bf16]| {
        let forward = forward_slices(&op, x, None, Weight::F32(&w)).unwrap();
        let backward = backward_slices(&op, dy, x, None, Weight::F32(&w), &forward.rstd).unwrap();
        (forward, backward)
    };
    let poisoned = |matrix: &[bf16]| {
        let mut matrix = matrix.to_vec();
        // A signalling NaN with its sign set: outputs are canonical nevertheless.
        matrix[2 * hidden + column] = bf16::from_bits(0xff81);
        matrix
    };
    let row = 2 * hidden..3 * hidden;
    let same_elsewhere = |clean: &[bf16], found: &[bf16]| {
        let (clean, found) = (bits(clean), bits(found));
        assert!(clean[..row.start] == found[..row.start] && clean[row.end..] == found[row.end..]);
    };
    let (clean_forward, clean_backward) = run(&x, &dy);

    let (forward, backward) = run(&poisoned(&x), &dy);
    assert_eq!(bits(&forward.y[row.clone()]), vec![NAN; hidden]);
    assert_eq!(bits_f32(&forward.rstd)[2], 0x7fff_ffff);
    assert_eq!(bits(&backward.dx[row.clone()]), vec![NAN; hidden]);
    assert_eq!(bits_f32(&backward.dw), vec![0x7fff_ffff; hidden]);
    same_elsewhere(&clean_forward.y, &forward.y);
    same_elsewhere(&clean_backward.dx, &backward.dx);

    let (_, backward) = run(&x, &poisoned(&dy));
    assert_eq!(bits(&backward.dx[row.clone()]), vec![NAN; hidden]);
    same_elsewhere(&clean_backward.dx, &backward.dx);
    let mut expected = bits_f32(&clean_backward.dw);
    expected[column] = 0x7fff_ffff;
    assert_eq!(bits_f32(&backward.dw), expected);
}

/// A row has the same bits alone and in any batch.
#[test]
fn rows_do_not_depend_on_the_batch() {
    for hidden in [8, 256, 1600] {
        let count = 300;
        let op = operator(hidden, 1e-6);
        let (x, dy) = (
            rows(count, hidden, &Kind::ALL, 1),
            rows(count, hidden, &[Kind::Normal], 2),
        );
        let w = weight(hidden, 3);
        let run = |first: usize, last: usize| {
            let elements = first * hidden..last * hidden;
            let (x, dy) = (&x[elements.clone()], &dy[elements]);
            let forward = forward_slices(&op, x, None, Weight::F32(&w)).unwrap();
            let backward =
                backward_slices(&op, dy, x, None, Weight::F32(&w), &forward.rstd).unwrap();
            (
                bits(&forward.y),
                bits_f32(&forward.rstd),
                bits(&backward.dx),
            )
        };
        let (y, rstd, dx) = run(0, count);
        for (first, last) in (0..count)
            .map(|row| (row, row + 1))
            .chain([(1, 65), (99, 300)])
        {
            let elements = first * hidden..last * hidden;
            let part = run(first, last);
            assert!(
                part.0 == y[elements.clone()],
                "H={hidden} y of rows {first}..{last}"
            );
            assert!(
                part.1 == rstd[first..last],
                "H={hidden} rstd of rows {first}..{last}"
            );
            assert!(
                part.2 == dx[elements],
                "H={hidden} dx of rows {first}..{last}"
            );
        }
    }
}

/// BF16 and FP32 weights of the same values give the same bits.
#[test]
fn weight_types_agree() {
    let (hidden, count) = (576, 17);
    let (x, dy) = (
        rows(count, hidden, &Kind::ALL, 1),
        rows(count, hidden, &[Kind::Normal], 2),
    );
    let narrow = bf16s(&weight(hidden, 3));
    let wide: Vec<f32> = narrow.iter().map(|w| w.to_f32()).collect();
    let run = |w: Weight<'_>| {
        let op = RmsNorm::new(hidden as u64, w.dtype().expect("a weight"), 1e-6).unwrap();
        let forward = forward_slices(&op, &x, None, w).unwrap();
        let backward = backward_slices(&op, &dy, &x, None, w, &forward.rstd).unwrap();
        (bits(&forward.y), bits(&backward.dx), bits_f32(&backward.dw))
    };
    assert!(run(Weight::Bf16(&narrow)) == run(Weight::F32(&wide)));
}

/// The raw entry points, with strides: a matrix with NaN between its rows, one row read T times,
/// and rows from last to first.
#[test]
fn strides() {
    let (hidden, count, stride) = (64, 37, 96);
    let op = operator(hidden, 1e-6);
    let w = weight(hidden, 1);
    let (x, row) = (
        rows(count, hidden, &Kind::ALL, 2),
        rows(1, hidden, &[Kind::Normal], 3),
    );
    let packed =
        |matrix: &[bf16]| RowsView::packed(matrix.as_ptr() as u64, count as u64, hidden as u64);
    let mut gaps = vec![bf16::NAN; count * stride];
    let mut reversed = vec![bf16::ZERO; x.len()];
    for (t, x) in x.chunks(hidden).enumerate() {
        gaps[t * stride..][..hidden].copy_from_slice(x);
        reversed[(count - 1 - t) * hidden..][..hidden].copy_from_slice(x);
    }
    let last = packed(&reversed[(count - 1) * hidden..]).with_stride(-(hidden as i64));
    let repeated = row.repeat(count);

    let run = |x: RowsView, dy: RowsView, out_stride: usize| {
        let (mut y, mut dx) = (
            vec![bf16::NAN; count * out_stride],
            vec![bf16::NAN; count * out_stride],
        );
        let (mut rstd, mut dw) = (vec![f32::NAN; count], vec![7f32; hidden]);
        let out = |matrix: &mut [bf16]| packed(matrix).with_stride(out_stride as i64);
        let w = VectorView::f32(w.as_ptr() as u64, hidden as u64);
        let rstd_view = VectorView::f32(rstd.as_mut_ptr() as u64, count as u64);
        let forward = ForwardArgs {
            x,
            residual: None,
            w: Some(w),
            h: None,
            y: out(&mut y),
            rstd: Some(rstd_view),
        };
        let backward = BackwardArgs {
            dy,
            x,
            dh: None,
            w: Some(w),
            rstd: Some(rstd_view),
            dx: Some(out(&mut dx)),
            dw: Some(VectorView::f32(dw.as_mut_ptr() as u64, hidden as u64).into()),
            workspace: Workspace {
                address: 0,
                bytes: 0,
            },
        };
        // SAFETY: views of live vectors, the outputs apart from the inputs.
        unsafe {
            golden::forward(&op, &forward);
            golden::backward(&op, &backward);
        }
        let rows = |matrix: &[bf16]| -> Vec<u16> {
            let rows = matrix.chunks(out_stride);
            assert!(
                rows.clone()
                    .all(|row| row[hidden..].iter().all(|gap| gap.is_nan()))
            );
            rows.flat_map(|row| bits(&row[..hidden])).collect()
        };
        (rows(&y), bits_f32(&rstd), rows(&dx), bits_f32(&dw))
    };
    let expected = run(packed(&x), packed(&repeated), hidden);
    assert!(expected.0.iter().all(|&y| y != NAN));
    let expanded = packed(&row).with_stride(0);
    assert!(
        run(packed(&gaps).with_stride(stride as i64), expanded, hidden) == expected,
        "gaps"
    );
    assert!(run(last, expanded, stride) == expected, "reversed");
}

/// Slices need no alignment beyond their elements'.
#[test]
fn any_alignment() {
    let (hidden, count) = (264, 6);
    let op = operator(hidden, 1e-6);
    let w = weight(hidden, 1);
    let x = rows(count, hidden, &Kind::ALL, 2);
    let aligned = forward_slices(&op, &x, None, Weight::F32(&w)).unwrap();
    for offset in 1..8 {
        let mut moved = vec![bf16::NAN; offset];
        moved.extend(&x);
        let found = forward_slices(&op, &moved[offset..], None, Weight::F32(&w)).unwrap();
        assert_eq!(bits(&found.y), bits(&aligned.y), "offset {offset}");
    }
}

#[test]
fn no_rows() {
    let op = operator(8, 1e-6);
    let none: &[bf16] = &[];
    let forward = forward_slices(&op, none, Some(none), Weight::F32(&[1.0; 8])).unwrap();
    assert!(forward.y.is_empty() && forward.rstd.is_empty() && forward.h == Some(vec![]));
    let mut dw = [7f32; 8];
    let empty = RowsView::packed(0, 0, 8);
    let args = BackwardArgs {
        dy: empty,
        x: empty,
        dh: None,
        w: Some(VectorView::f32([1f32; 8].as_ptr() as u64, 8)),
        rstd: Some(VectorView::f32(0, 0)),
        dx: Some(empty),
        dw: Some(VectorView::f32(dw.as_mut_ptr() as u64, 8).into()),
        workspace: Workspace {
            address: 0,
            bytes: 0,
        },
    };
    // SAFETY: dw is live; there are no rows.
    unsafe { golden::backward(&op, &args) };
    assert_eq!(bits_f32(&dw), [0; 8]);
}

#[test]
fn slices_are_checked() {
    let op = operator(8, 1e-6);
    let (x, w) = (ones(16), [1f32; 8]);
    let length = |argument, found, expected| {
        Some(Error::Length {
            argument,
            found,
            expected,
        })
    };
    let forward = |x: &[bf16], residual, w| forward_slices(&op, x, residual, w).err();
    assert_eq!(
        forward(&x[..15], None, Weight::F32(&w)),
        length(Argument::X, 15, 16)
    );
    assert_eq!(
        forward(&x, Some(&x[..8]), Weight::F32(&w)),
        length(Argument::Residual, 8, 16)
    );
    assert_eq!(
        forward(&x, None, Weight::F32(&w[..7])),
        length(Argument::W, 7, 8)
    );
    assert_eq!(
        forward(&x, None, Weight::F32(&[1.0; 16])),
        length(Argument::W, 16, 8)
    );
    let dtype = Error::Dtype {
        argument: Argument::W,
        found: Dtype::Bf16,
        accepted: Dtype::F32,
    };
    assert_eq!(forward(&x, None, Weight::Bf16(&x[..8])), Some(dtype));

    let w = Weight::F32(&w);
    let backward = |dy: &[bf16], x: &[bf16], dh: Option<&[bf16]>, rstd: &[f32]| {
        backward_slices(&op, dy, x, dh, w, rstd).err()
    };
    assert_eq!(
        backward(&x[..9], &x, None, &[1.0; 2]),
        length(Argument::Dy, 9, 16)
    );
    assert_eq!(
        backward(&x, &x[..8], None, &[1.0; 2]),
        length(Argument::X, 8, 16)
    );
    assert_eq!(
        backward(&x, &x, Some(&x[1..]), &[1.0; 2]),
        length(Argument::Dh, 15, 16)
    );
    assert_eq!(
        backward(&x, &x, None, &[1.0; 3]),
        length(Argument::Rstd, 3, 2)
    );
}
