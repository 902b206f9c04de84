//! candle's CUDA devices: the kernels, on candle's stream.

use super::{Backward, Float, Forward, Wanted};
use crate::layout::{dtype, rows, tokens, wrap};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cudarc::{
    Backward as BackwardSlices, Cudarc, Device, Forward as ForwardSlices, GatedBackward,
    GatedForward, Tensor as Slice, Weight,
};
use cake_rmsnorm::gated::{GateOrder, GatedRmsNorm, HeadsView};
use cake_rmsnorm::plan::Views;
use cake_rmsnorm::{Dtype, RmsNorm, RowsView, Update};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, DeviceRepr};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{CudaDevice, CudaStorage, Layout, Result, Storage, StorageRef, Tensor};
use half::{bf16, f16};
use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The backend on candle's stream. A context's kernels stay loaded until the process ends.
fn gpu(device: &CudaDevice) -> Result<Cudarc> {
    static DEVICES: Mutex<Vec<Device>> = Mutex::new(Vec::new());
    let gpu = wrap(Cudarc::new(&device.cuda_stream()))?;
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let context = gpu.device().context().cu_ctx();
    if devices
        .iter()
        .all(|known| known.context().cu_ctx() != context)
    {
        devices.push(gpu.device().clone());
    }
    Ok(gpu)
}

/// What an operator's kernels depend on: H, the types, the form.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kernels {
    hidden: u64,
    input: Dtype,
    weight: Option<Dtype>,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    Plain,
    Residual,
    NormFirst,
    GateFirst,
}

/// Loads what an operator needs, once in a context.
fn prepare(
    gpu: &Cudarc,
    kernels: Kernels,
    load: impl FnOnce() -> cake_rmsnorm::Result<()>,
) -> Result<()> {
    // By the context's address: a pointer would not travel between threads.
    static LOADED: LazyLock<Mutex<HashSet<(usize, Kernels)>>> = LazyLock::new(Mutex::default);
    let key = (gpu.device().context().cu_ctx() as usize, kernels);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if !loaded.contains(&key) {
        wrap(load())?;
        loaded.insert(key);
    }
    Ok(())
}

fn prepare_rows(gpu: &Cudarc, op: &RmsNorm, residual: bool) -> Result<()> {
    let kernels = Kernels {
        hidden: op.hidden(),
        input: op.input(),
        weight: op.weight(),
        form: if residual {
            Form::Residual
        } else {
            Form::Plain
        },
    };
    prepare(gpu, kernels, || gpu.prepare(op, residual, Views::Any))
}

fn prepare_gated(gpu: &Cudarc, op: &GatedRmsNorm) -> Result<()> {
    let kernels = Kernels {
        hidden: op.width(),
        input: Dtype::Bf16,
        weight: Some(op.weight()),
        form: match op.order() {
            GateOrder::NormFirst => Form::NormFirst,
            GateOrder::GateFirst => Form::GateFirst,
        },
    };
    prepare(gpu, kernels, || gpu.prepare_gated(op))
}

/// A tensor's storage, which stays as it is meanwhile.
struct Borrowed<'a> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
    dtype: Dtype,
}

impl<'a> Borrowed<'a> {
    fn new(tensor: &'a Tensor) -> Result<Self> {
        let dtype = dtype(tensor, "rms-norm")?;
        let (storage, layout) = tensor.storage_and_layout();
        Ok(Self {
            storage,
            layout,
            dtype,
        })
    }

    fn slice<E: CudaDType>(&self) -> Result<&CudaSlice<E>> {
        match &*self.storage {
            Storage::Cuda(storage) => storage.as_cuda_slice::<E>(),
            _ => Err(candle_core::Error::msg("a tensor is not on the GPU")),
        }
    }

    fn layout(&self) -> Result<RowsView> {
        wrap(rows(self.layout, self.dtype))
    }

    fn rows<E: CudaDType>(&self) -> Result<Slice<CudaView<'_, E>>> {
        Ok(Slice {
            memory: self.slice()?.as_view(),
            layout: self.layout()?,
        })
    }

    fn heads(&self, heads: u64) -> Result<Slice<CudaView<'_, bf16>, HeadsView>> {
        Ok(Slice {
            memory: self.slice()?.as_view(),
            layout: tokens(self.layout()?, heads),
        })
    }

    /// A contiguous vector.
    fn vector<E: CudaDType>(&self) -> Result<CudaView<'_, E>> {
        let start = self.layout.start_offset();
        let end = start + self.layout.shape().elem_count();
        let slice = self.slice()?.try_slice(start..end);
        slice.ok_or_else(|| candle_core::Error::msg("a tensor reaches beyond its storage"))
    }

    fn weight(&self) -> Result<Weight<'_>> {
        Ok(match self.dtype {
            Dtype::Bf16 => Weight::Bf16(self.vector::<bf16>()?),
            Dtype::F16 => Weight::F16(self.vector::<f16>()?),
            Dtype::F32 => Weight::F32(self.vector::<f32>()?),
        })
    }
}

/// A new output of `elements` elements.
fn new<E: DeviceRepr>(device: &CudaDevice, elements: u64) -> Result<CudaSlice<E>> {
    // SAFETY: every element is written before it is read: outputs are packed.
    unsafe { device.cuda_stream().alloc(elements as usize) }.w()
}

fn storage<E: CudaDType>(device: &CudaDevice, slice: CudaSlice<E>) -> Storage {
    Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, device.clone()))
}

pub(super) fn forward<E: Float>(
    device: &CudaDevice,
    op: &RmsNorm,
    x: &Tensor,
    residual: Option<&Tensor>,
    w: &Tensor,
) -> Result<Forward> {
    let gpu = gpu(device)?;
    let (x, w) = (Borrowed::new(x)?, Borrowed::new(w)?);
    let residual = residual.map(Borrowed::new).transpose()?;
    prepare_rows(&gpu, op, residual.is_some())?;
    let RowsView { rows, hidden, .. } = x.layout()?;
    let mut y = new::<E>(device, rows * hidden)?;
    let mut h = residual
        .as_ref()
        .map(|_| new::<E>(device, rows * hidden))
        .transpose()?;
    let mut rstd = new::<f32>(device, rows)?;
    let arguments = ForwardSlices {
        x: x.rows()?,
        residual: residual.as_ref().map(Borrowed::rows).transpose()?,
        w: w.weight()?,
        h: h.as_mut()
            .map(|h| Slice::rows(h.as_view_mut(), rows, hidden)),
        y: Slice::rows(y.as_view_mut(), rows, hidden),
        rstd: Some(rstd.as_view_mut()),
    };
    wrap(gpu.forward_slices(op, arguments))?;
    Ok(Forward {
        y: storage(device, y),
        h: h.map(|h| storage(device, h)),
        rstd: storage(device, rstd),
    })
}

pub(super) fn backward<E: Float>(
    device: &CudaDevice,
    op: &RmsNorm,
    dy: &Tensor,
    x: &Tensor,
    w: &Tensor,
    rstd: &Tensor,
    wanted: Wanted,
) -> Result<Backward> {
    let gpu = gpu(device)?;
    // candle adds the gradient that h has from elsewhere: there is no dh.
    prepare_rows(&gpu, op, false)?;
    let (dy, x) = (Borrowed::new(dy)?, Borrowed::new(x)?);
    let (w, rstd) = (Borrowed::new(w)?, Borrowed::new(rstd)?);
    let RowsView { rows, hidden, .. } = x.layout()?;
    let dx = wanted.dx.then(|| new::<E>(device, rows * hidden));
    let dw = wanted.dw.then(|| new::<f32>(device, hidden));
    let (mut dx, mut dw) = (dx.transpose()?, dw.transpose()?);
    let mut workspace = wrap(gpu.workspace(op, rows, false))?;
    let arguments = BackwardSlices {
        dy: dy.rows()?,
        x: x.rows()?,
        dh: None,
        w: w.weight()?,
        rstd: Some(rstd.vector()?),
        dx: dx
            .as_mut()
            .map(|dx| Slice::rows(dx.as_view_mut(), rows, hidden)),
        dw: dw.as_mut().map(CudaSlice::as_view_mut),
        update: Update::Overwrite,
        dw_bf16: None,
        workspace: Some(workspace.as_view_mut()),
    };
    wrap(gpu.backward_slices::<E>(op, arguments))?;
    Ok(Backward {
        dx: dx.map(|dx| storage(device, dx)),
        dz: None,
        dw: dw.map(|dw| storage(device, dw)),
    })
}

pub(super) fn gated_forward(
    device: &CudaDevice,
    op: &GatedRmsNorm,
    heads: u64,
    x: &Tensor,
    z: &Tensor,
    w: &Tensor,
) -> Result<Forward> {
    let gpu = gpu(device)?;
    prepare_gated(&gpu, op)?;
    let (x, z, w) = (Borrowed::new(x)?, Borrowed::new(z)?, Borrowed::new(w)?);
    let RowsView { rows, hidden, .. } = x.layout()?;
    let mut y = new::<bf16>(device, rows * hidden)?;
    let mut rstd = new::<f32>(device, rows * op.groups())?;
    let arguments = GatedForward {
        x: x.heads(heads)?,
        z: z.heads(heads)?,
        w: w.weight()?,
        y: Slice::heads(y.as_view_mut(), rows / heads.max(1), heads, hidden),
        rstd: Some(rstd.as_view_mut()),
    };
    wrap(gpu.gated_forward_slices(op, arguments))?;
    Ok(Forward {
        y: storage(device, y),
        h: None,
        rstd: storage(device, rstd),
    })
}

pub(super) fn gated_backward(
    device: &CudaDevice,
    op: &GatedRmsNorm,
    heads: u64,
    dy: &Tensor,
    [x, z, w]: [&Tensor; 3],
    rstd: &Tensor,
    wants_dw: bool,
) -> Result<Backward> {
    let gpu = gpu(device)?;
    prepare_gated(&gpu, op)?;
    let (dy, x, z) = (Borrowed::new(dy)?, Borrowed::new(x)?, Borrowed::new(z)?);
    let (w, rstd) = (Borrowed::new(w)?, Borrowed::new(rstd)?);
    let RowsView { rows, hidden, .. } = x.layout()?;
    let tokens = rows / heads.max(1);
    let mut dx = new::<bf16>(device, rows * hidden)?;
    let mut dz = new::<bf16>(device, rows * hidden)?;
    let dw = wants_dw.then(|| new::<f32>(device, hidden));
    let mut dw = dw.transpose()?;
    let mut workspace = wrap(gpu.gated_workspace(op, rows))?;
    let arguments = GatedBackward {
        dy: dy.heads(heads)?,
        x: x.heads(heads)?,
        z: z.heads(heads)?,
        w: w.weight()?,
        rstd: Some(rstd.vector()?),
        dx: Slice::heads(dx.as_view_mut(), tokens, heads, hidden),
        dz: Slice::heads(dz.as_view_mut(), tokens, heads, hidden),
        dw: dw.as_mut().map(CudaSlice::as_view_mut),
        update: Update::Overwrite,
        workspace: Some(workspace.as_view_mut()),
    };
    wrap(gpu.gated_backward_slices(op, arguments))?;
    Ok(Backward {
        dx: Some(storage(device, dx)),
        dz: Some(storage(device, dz)),
        dw: dw.map(|dw| storage(device, dw)),
    })
}
