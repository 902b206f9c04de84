//! The plain and the residual form on slices, in the middle of larger ones, with gaps between rows.

use super::{Findings, Result};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cudarc::{Backward, Cudarc, Forward, Tensor, Weight};
use cake_rmsnorm::compare::{Output, compare};
use cake_rmsnorm::golden::{backward_slices, forward_slices};
use cake_rmsnorm::inputs::{self, Spec};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::reference::{self, from_elements, from_f32};
use cake_rmsnorm::{Dtype, Element, Error, RmsNorm, RowsView, Update};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr};
use half::{bf16, f16};
use std::sync::Arc;

const EPS: f32 = 1e-5;

pub fn check(gpu: &Cudarc, findings: &mut Findings) -> Result {
    let shapes = [
        (1, 8),
        (77, 1000),
        (640, 4096),
        (33, 333),
        (2100, 768),
        (9, 20_000),
    ];
    for (rows, hidden) in shapes {
        for (residual, weight) in [(false, Dtype::F32), (true, Dtype::Bf16), (true, Dtype::F16)] {
            let spec = Spec {
                rows,
                hidden,
                weight,
                residual,
                seed: 7,
            };
            case::<bf16>(gpu, spec, findings)?;
            case::<f16>(gpu, spec, findings)?;
            case::<f32>(gpu, spec, findings)?;
        }
    }
    refusals(gpu, findings)
}

/// A matrix in a larger slice: NaN before it, between its rows and behind it.
struct Matrix<E> {
    memory: CudaSlice<E>,
    rows: usize,
    hidden: usize,
}

/// Elements before a matrix, and between its rows.
const START: usize = 16;
const GAP: usize = 8;

impl<E: Element + DeviceRepr> Matrix<E> {
    fn new(
        stream: &Arc<CudaStream>,
        values: Option<&[E]>,
        [rows, hidden]: [usize; 2],
    ) -> Result<Self> {
        let nan = E::from_f32(f32::NAN);
        let mut host = vec![nan; START + rows * (hidden + GAP) + 5];
        if let Some(values) = values {
            let places = host[START..].chunks_mut(hidden + GAP);
            for (place, row) in places.zip(values.chunks(hidden)) {
                place[..hidden].copy_from_slice(row);
            }
        }
        Ok(Self {
            memory: stream.clone_htod(&host)?,
            rows,
            hidden,
        })
    }

    fn layout(&self) -> RowsView {
        let packed = RowsView::packed(0, self.rows as u64, self.hidden as u64);
        packed.with_stride((self.hidden + GAP) as i64)
    }

    fn input(&self) -> Tensor<CudaView<'_, E>> {
        Tensor {
            memory: self.memory.slice(START..),
            layout: self.layout(),
        }
    }

    fn output(&mut self) -> Tensor<CudaViewMut<'_, E>> {
        let layout = self.layout();
        Tensor {
            memory: self.memory.slice_mut(START..),
            layout,
        }
    }

    /// The rows, and whether all else is NaN still.
    fn read(&self, stream: &Arc<CudaStream>) -> Result<(Vec<E>, bool)> {
        let host = stream.clone_dtoh(&self.memory)?;
        let nan = |values: &[E]| values.iter().all(|value| value.to_f32().is_nan());
        let (before, host) = host.split_at(START);
        let mut untouched = nan(before);
        let mut values = Vec::with_capacity(self.rows * self.hidden);
        for (index, place) in host.chunks(self.hidden + GAP).enumerate() {
            let row = if index < self.rows { self.hidden } else { 0 };
            values.extend_from_slice(&place[..row]);
            untouched &= nan(&place[row..]);
        }
        Ok((values, untouched))
    }
}

fn case<E: Element + DeviceRepr>(gpu: &Cudarc, spec: Spec, findings: &mut Findings) -> Result {
    let stream = gpu.stream();
    let shape @ [rows, hidden] = [spec.rows, spec.hidden];
    let op = RmsNorm::builder(hidden as u64)
        .input(E::DTYPE)
        .weight(spec.weight)
        .eps(EPS)
        .build()?;
    gpu.prepare(&op, spec.residual, Views::Any)?;
    let host = spec.generate_as::<E>()?;
    let matrix = |values: &[E]| Matrix::new(stream, Some(values), shape);
    let empty = || Matrix::<E>::new(stream, None, shape);
    let nan = |len| stream.clone_htod(&vec![f32::NAN; len]);
    let what = |output| format!("{output} of {spec:?}, {}", E::DTYPE);

    let (x, dy) = (matrix(&host.x)?, matrix(&host.dy)?);
    let residual = host.residual.as_deref().map(matrix).transpose()?;
    let dh = host.dh.as_deref().map(matrix).transpose()?;
    let w = OnDevice::new(stream, &host.w)?;
    let mut h = spec.residual.then(empty).transpose()?;
    let (mut y, mut rstd) = (empty()?, nan(rows)?);
    let forward = Forward {
        x: x.input(),
        residual: residual.as_ref().map(Matrix::input),
        w: w.view(),
        h: h.as_mut().map(Matrix::output),
        y: y.output(),
        rstd: Some(rstd.as_view_mut()),
    };
    gpu.forward_slices(&op, forward)?;
    let golden = forward_slices(&op, &host.x, host.residual.as_deref(), host.w.as_golden())?;
    let (found, untouched) = y.read(stream)?;
    findings.same(&what("y"), &found, &golden.y);
    findings.check(untouched, || what("around y"));
    let kept = stream.clone_dtoh(&rstd)?;
    findings.same(&what("rstd"), &kept, &golden.rstd);
    if let Some((h, golden)) = h.as_ref().zip(golden.h.as_ref()) {
        findings.same(&what("h"), &h.read(stream)?.0, golden);
    }

    let normalised = golden.h.as_deref().unwrap_or(&host.x);
    let golden = backward_slices(
        &op,
        &host.dy,
        normalised,
        host.dh.as_deref(),
        host.w.as_golden(),
        &golden.rstd,
    )?;
    let mut workspace = gpu.workspace(&op, rows as u64, spec.residual)?;
    // rstd kept, and worked out again.
    for rstd in [Some(&rstd), None] {
        let (mut dx, mut dw) = (empty()?, nan(hidden)?);
        let mut dw_bf16 = stream.clone_htod(&vec![bf16::NAN; hidden])?;
        let backward = Backward {
            dy: dy.input(),
            x: h.as_ref().unwrap_or(&x).input(),
            dh: dh.as_ref().map(Matrix::input),
            w: w.view(),
            rstd: rstd.map(CudaSlice::as_view),
            dx: Some(dx.output()),
            dw: Some(dw.as_view_mut()),
            update: Update::Overwrite,
            dw_bf16: Some(dw_bf16.as_view_mut()),
            workspace: Some(workspace.as_view_mut()),
        };
        gpu.backward_slices(&op, backward)?;
        let (dx, untouched) = dx.read(stream)?;
        let dw = stream.clone_dtoh(&dw)?;
        findings.same(&what("dx"), &dx, &golden.dx);
        findings.check(untouched, || what("around dx"));
        findings.same(&what("dw"), &dw, &golden.dw);
        let rounded: Vec<bf16> = golden.dw.iter().map(|&dw| bf16::from_f32(dw)).collect();
        findings.same(&what("dw_bf16"), &stream.clone_dtoh(&dw_bf16)?, &rounded);

        let exact = reference::backward(
            &from_elements(&host.dy),
            &from_elements(normalised),
            host.dh.as_deref().map(from_elements).as_deref(),
            &from_f32(&host.w.to_f32()),
            &from_f32(&kept),
            hidden,
        )?;
        let (input, weight) = (&exact.input, &exact.weight);
        let dx = compare(Output::Dx, &dx, &input.dx, Some(&input.terms), None)?;
        let dw = compare(Output::Dw, &dw, &weight.dw, Some(&weight.terms), None)?;
        findings.check(dx.ok(), || what("dx against FP64"));
        findings.check(dw.ok(), || what("dw against FP64"));
    }
    Ok(())
}

/// A weight on the GPU.
enum OnDevice {
    Bf16(CudaSlice<bf16>),
    F16(CudaSlice<f16>),
    F32(CudaSlice<f32>),
}

impl OnDevice {
    fn new(stream: &Arc<CudaStream>, weight: &inputs::Weight) -> Result<Self> {
        use cake_rmsnorm::golden::Weight as Host;
        Ok(match weight.as_golden() {
            Host::Bf16(w) => Self::Bf16(stream.clone_htod(w)?),
            Host::F16(w) => Self::F16(stream.clone_htod(w)?),
            Host::F32(w) => Self::F32(stream.clone_htod(w)?),
            Host::None => return Err("these inputs have a weight".into()),
        })
    }

    fn view(&self) -> Weight<'_> {
        match self {
            Self::Bf16(w) => Weight::Bf16(w.as_view()),
            Self::F16(w) => Weight::F16(w.as_view()),
            Self::F32(w) => Weight::F32(w.as_view()),
        }
    }
}

/// What is wrong is refused, and nothing is written.
fn refusals(gpu: &Cudarc, findings: &mut Findings) -> Result {
    let stream = gpu.stream();
    let op = RmsNorm::builder(64)
        .input(Dtype::F32)
        .weight(Dtype::F32)
        .build()?;
    let x = stream.clone_htod(&[1.0f32; 128])?;
    let w = stream.clone_htod(&[1.0f32; 64])?;
    let mut y = stream.clone_htod(&[f32::NAN; 128])?;
    gpu.prepare(&op, false, Views::Ordinary)?;
    let mut call = |rows, stride| {
        let mut input = Tensor::rows(x.as_view(), rows, 64);
        input.layout = input.layout.with_stride(stride);
        let args = Forward {
            x: input,
            residual: None,
            w: Weight::F32(w.as_view()),
            h: None,
            y: Tensor::rows(y.as_view_mut(), rows, 64),
            rstd: None,
        };
        gpu.forward_slices(&op, args)
    };
    let too_far = call(2, 65);
    findings.check(matches!(too_far, Err(Error::OutOfBounds { .. })), || {
        format!("a row beyond its slice: {too_far:?}")
    });
    let too_many = call(3, 0);
    findings.check(matches!(too_many, Err(Error::OutOfBounds { .. })), || {
        format!("an output beyond its slice: {too_many:?}")
    });
    let repeated = call(2, 0);
    findings.check(repeated.is_ok(), || format!("one row twice: {repeated:?}"));
    let written = stream.clone_dtoh(&y)?;
    findings.check(written.iter().all(|y| !y.is_nan()), || {
        "one row twice".to_owned()
    });
    Ok(())
}
