//! Inputs from files.

use super::{check, refusal, tensors_of};
use half::bf16;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use std::collections::HashMap;
use std::path::PathBuf;
use tempfile::TempDir;

/// A tensor of a test file.
type Tensor = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn bf16_tensor(name: &'static str, shape: &[usize], value: impl Fn(usize) -> f32) -> Tensor {
    let len = shape.iter().product();
    let bytes = (0..len)
        .flat_map(|i| bf16::from_f32(value(i)).to_le_bytes())
        .collect();
    (name, Dtype::BF16, shape.to_vec(), bytes)
}

fn f32_tensor(name: &'static str, shape: &[usize], value: impl Fn(usize) -> f32) -> Tensor {
    let len = shape.iter().product();
    let bytes = (0..len).flat_map(|i| value(i).to_le_bytes()).collect();
    (name, Dtype::F32, shape.to_vec(), bytes)
}

struct InputFile {
    _folder: TempDir,
    path: PathBuf,
}

impl InputFile {
    fn new(tensors: &[Tensor], eps: Option<&str>) -> Self {
        let file = Self::of_bytes(&[]);
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            (
                *name,
                TensorView::new(*dtype, shape.clone(), data).expect("whole elements"),
            )
        });
        let metadata = eps.map(|eps| HashMap::from([("eps".to_owned(), eps.to_owned())]));
        serialize_to_file(views, metadata, &file.path).expect("a file");
        file
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("in.safetensors");
        std::fs::write(&path, bytes).expect("a file");
        InputFile {
            _folder: folder,
            path,
        }
    }

    fn path(&self) -> &str {
        self.path.to_str().expect("a path")
    }
}

fn wave(i: usize) -> f32 {
    (i as f32 * 0.7).sin() * 2.0
}

fn ordinary() -> Vec<Tensor> {
    vec![
        bf16_tensor("x", &[3, 16], wave),
        bf16_tensor("dy", &[3, 16], |i| wave(i + 5) * 0.1),
        f32_tensor("w", &[16], |i| 1.0 + i as f32 / 64.0),
    ]
}

#[test]
fn a_file_goes_in_and_the_formulas_come_out() {
    let file = InputFile::new(&ordinary(), Some("0.25"));
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("out.safetensors");
    let report = check(&[
        "--input",
        file.path(),
        "--output",
        out.to_str().expect("a path"),
    ]);
    assert_eq!(report["eps"], 0.25);

    let written = tensors_of(&out);
    let names: Vec<_> = written
        .iter()
        .map(|(name, dtype, shape, _)| format!("{name} {dtype} {shape:?}"))
        .collect();
    assert_eq!(
        names,
        [
            "dw F32 [16]",
            "dx BF16 [3, 16]",
            "rstd F32 [3]",
            "y BF16 [3, 16]"
        ]
    );
    let f32s = |i: usize| -> Vec<f64> {
        written[i]
            .3
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes")).into())
            .collect()
    };
    let bf16s = |i: usize| -> Vec<f64> {
        written[i]
            .3
            .chunks(2)
            .map(|b| bf16::from_le_bytes(b.try_into().expect("2 bytes")).to_f64())
            .collect()
    };
    let (dw, dx, rstd, y) = (f32s(0), bf16s(1), f32s(2), bf16s(3));

    let value = |v: f32| bf16::from_f32(v).to_f64();
    let (x, dy) = (
        |t: usize, j: usize| value(wave(t * 16 + j)),
        |t: usize, j: usize| value(wave(t * 16 + j + 5) * 0.1),
    );
    let w = |j: usize| 1.0 + j as f64 / 64.0;
    for t in 0..3 {
        let mean = (0..16).map(|j| x(t, j) * x(t, j)).sum::<f64>() / 16.0;
        let r = 1.0 / (mean + 0.25).sqrt();
        assert!((rstd[t] / r - 1.0).abs() < 1e-6);
        let dot = (0..16).map(|j| dy(t, j) * w(j) * x(t, j)).sum::<f64>() / 16.0;
        for j in 0..16 {
            assert!((y[t * 16 + j] - x(t, j) * r * w(j)).abs() <= 0.004 * y[t * 16 + j].abs());
            let expected = r * dy(t, j) * w(j) - r * r * r * dot * x(t, j);
            assert!((dx[t * 16 + j] - expected).abs() < 0.004 * expected.abs() + 1e-6);
        }
    }
    for (j, dw) in dw.iter().enumerate() {
        let expected: f64 = (0..3).map(|t| dy(t, j) * x(t, j) * rstd[t]).sum();
        assert!((dw - expected).abs() < 1e-6 * (1.0 + expected.abs()), "{j}");
    }
}

#[test]
fn a_residual_in_the_file_is_used() {
    let mut tensors = ordinary();
    tensors.push(bf16_tensor("residual", &[3, 16], |i| wave(i + 9)));
    tensors.push(bf16_tensor("dh", &[3, 16], |i| wave(i + 2)));
    let file = InputFile::new(&tensors, None);
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("out.safetensors");
    let report = check(&[
        "--input",
        file.path(),
        "--residual",
        "--output",
        out.to_str().expect("a path"),
    ]);
    assert_eq!(report["residual"], true);
    assert_eq!(report["eps"].as_f64().map(|eps| eps as f32), Some(1e-6));
    let h = &tensors_of(&out)[2];
    assert_eq!(h.0, "h");
    for (i, h) in h.3.chunks(2).enumerate() {
        let sum = bf16::from_f32(wave(i)).to_f32() + bf16::from_f32(wave(i + 9)).to_f32();
        assert_eq!(h, bf16::from_f32(sum).to_le_bytes(), "{i}");
    }
}

#[test]
fn special_values_in_a_file_are_no_failure() {
    let mut tensors = ordinary();
    tensors[0] = bf16_tensor("x", &[3, 16], |i| if i == 20 { f32::NAN } else { wave(i) });
    tensors[1] = bf16_tensor("dy", &[3, 16], |i| {
        if i == 35 { f32::INFINITY } else { wave(i) }
    });
    check(&["--input", InputFile::new(&tensors, None).path()]);
}

#[test]
fn options_override_the_file() {
    let file = InputFile::new(&ordinary(), Some("0.25"));
    assert_eq!(check(&["--input", file.path(), "--eps", "0.5"])["eps"], 0.5);
    let message = refusal(&["check", "--input", file.path(), "--weight", "bf16"]);
    assert!(
        message.contains("tensor w is FP32, accepted is BF16"),
        "{message}"
    );
    let message = refusal(&["check", "--input", file.path(), "--residual"]);
    assert!(message.contains("no tensor residual"), "{message}");
    let message = refusal(&["check", "--input", file.path(), "--rows", "3"]);
    assert!(message.contains("--rows"), "{message}");
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let replaced = |at: usize, tensor: Tensor| {
        let mut tensors = ordinary();
        tensors[at] = tensor;
        refusal(&["check", "--input", InputFile::new(&tensors, None).path()])
    };
    let cases = [
        (
            0,
            f32_tensor("x", &[3, 16], wave),
            "tensor x is F32, accepted is BF16",
        ),
        (
            0,
            bf16_tensor("x", &[48], wave),
            "tensor x is [48], accepted is a matrix",
        ),
        (
            0,
            bf16_tensor("z", &[3, 16], wave),
            "tensor x is missing: found are dy, w, z",
        ),
        (
            1,
            f32_tensor("dy", &[3, 16], wave),
            "tensor dy is F32, accepted is BF16",
        ),
        (
            1,
            bf16_tensor("dy", &[2, 16], wave),
            "tensor dy is [2, 16], accepted is [3, 16]",
        ),
        (
            2,
            f32_tensor("w", &[15], wave),
            "tensor w is [15], accepted is [16]",
        ),
        (
            2,
            ("w", Dtype::F64, vec![16], vec![0; 128]),
            "tensor w is F64, accepted is F32, BF16 or F16",
        ),
        (
            2,
            bf16_tensor("v", &[16], wave),
            "tensor w is missing: found are dy, v, x",
        ),
    ];
    for (at, tensor, message) in cases {
        let found = replaced(at, tensor);
        assert!(found.contains(message), "{found}");
    }
    let mut tensors = ordinary();
    tensors.push(bf16_tensor("dh", &[4, 16], wave));
    let message = refusal(&["check", "--input", InputFile::new(&tensors, None).path()]);
    assert!(
        message.contains("tensor dh is [4, 16], accepted is [3, 16]"),
        "{message}"
    );
}

#[test]
fn files_that_are_no_safetensors_are_refused() {
    let good = std::fs::read(&InputFile::new(&ordinary(), None).path).expect("a file");
    let mut long_header = good.clone();
    long_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    for bytes in [
        &b""[..],
        &b"not a tensor"[..],
        &good[..good.len() - 1],
        &long_header,
    ] {
        let message = refusal(&["check", "--input", InputFile::of_bytes(bytes).path()]);
        assert!(
            message.contains("is not a valid safetensors file"),
            "{message}"
        );
    }
    let file = InputFile::new(&ordinary(), Some("tiny"));
    let message = refusal(&["check", "--input", file.path()]);
    assert!(message.contains("metadata eps is \"tiny\""), "{message}");
    let message = refusal(&["check", "--input", "/nowhere/at/all.safetensors"]);
    assert!(message.contains("/nowhere/at/all.safetensors"), "{message}");
}
