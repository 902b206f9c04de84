use super::*;

fn spec(rows: usize, hidden: usize) -> Spec {
    Spec {
        rows,
        hidden,
        weight: Dtype::F32,
        residual: true,
        seed: 1,
    }
}

fn generate(spec: Spec) -> Inputs {
    spec.generate().expect("small tensors")
}

/// 64-bit FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[test]
fn a_seed_names_the_same_bytes_everywhere() {
    let inputs = generate(spec(37, 264));
    let dh = inputs.dh.as_deref().expect("residual form");
    let residual = inputs.residual.as_deref().expect("residual form");
    let hashes = [&inputs.x, &inputs.dy, residual, dh].map(|t| hash(bytemuck::cast_slice(t)));
    let hashes = [&hashes[..], &[hash(inputs.w.as_bytes())]].concat();
    assert_eq!(hashes, GOLDEN_HASHES, "{hashes:#x?}");
}

/// x, dy, residual, dh, w.
const GOLDEN_HASHES: [u64; 5] = [
    0x4972_a0ce_a56b_56a8,
    0xd847_33af_3d6d_35fd,
    0x27a1_24f2_19bc_734b,
    0x9ab8_eb6d_d889_9b55,
    0xb2cb_43d8_0b5c_7d76,
];

#[test]
fn a_row_does_not_depend_on_the_number_of_rows() {
    let (few, many) = (generate(spec(3, 72)), generate(spec(300, 72)));
    assert_eq!(few.x, many.x[..few.x.len()]);
    assert_eq!(few.dy, many.dy[..few.dy.len()]);
    assert_eq!(few.w, many.w);
}

#[test]
fn seeds_and_tensors_differ() {
    let one = generate(spec(8, 64));
    let two = generate(Spec {
        seed: 2,
        ..spec(8, 64)
    });
    assert_ne!(one.x, two.x);
    assert_ne!(one.w, two.w);
    assert_ne!(Some(&one.x), one.residual.as_ref());
    assert_ne!(Some(&one.dy), one.dh.as_ref());
}

#[test]
fn rows_of_every_kind_are_there_and_finite() {
    let inputs = generate(spec(512, 512));
    let rms = |row: &[bf16]| {
        let squares: f64 = row.iter().map(|v| v.to_f64() * v.to_f64()).sum();
        (squares / row.len() as f64).sqrt()
    };
    let rms: Vec<f64> = inputs.x.chunks(512).map(rms).collect();
    let share = |range: std::ops::Range<f64>| {
        rms.iter().filter(|rms| range.contains(rms)).count() as f64 / rms.len() as f64
    };
    assert!(
        (0.07..0.2).contains(&share(0.0..2e-3)),
        "tiny {}",
        share(0.0..2e-3)
    );
    assert!(
        (0.5..0.8).contains(&share(0.05..40.0)),
        "ordinary {}",
        share(0.05..40.0)
    );
    let largest = |values: &[bf16]| values.iter().map(|v| v.to_f32().abs()).fold(0.0, f32::max);
    assert!(largest(&inputs.x) > 200.0);
    assert!(
        [&inputs.x, &inputs.dy]
            .iter()
            .all(|t| t.iter().all(|v| v.is_finite()))
    );
}

#[test]
fn dy_has_heavy_tails() {
    let inputs = generate(spec(64, 4096));
    let row = &inputs.dy[..4096];
    let mut sizes: Vec<f32> = row.iter().map(|v| v.to_f32().abs()).collect();
    sizes.sort_by(f32::total_cmp);
    // A normal row's largest of 4096 is about 5.4 medians away.
    assert!(
        sizes[4095] > 15.0 * sizes[2048],
        "{} {}",
        sizes[4095],
        sizes[2048]
    );
}

#[test]
fn no_rows_and_impossible_sizes() {
    let none = generate(spec(0, 64));
    assert!(none.x.is_empty() && none.w.len() == 64);
    assert!(spec(usize::MAX, 65_536).generate().is_err());
}

#[test]
fn weight_types_convert_once_rounded() {
    let w = Weight::F32(vec![1.0, 1.0 + f32::EPSILON, 1.003_906_3]);
    let Weight::Bf16(rounded) = w.to_dtype(Dtype::Bf16) else {
        panic!("asked for BF16")
    };
    assert_eq!(rounded[..2], [bf16::ONE, bf16::ONE]);
    assert_eq!(
        w.to_dtype(Dtype::Bf16).to_dtype(Dtype::F32).dtype(),
        Dtype::F32
    );
    assert_eq!(w.to_dtype(Dtype::F32), w);
}
