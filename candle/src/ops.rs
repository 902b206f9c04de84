//! The operators, with gradients.

use crate::device::{self, Wanted, base, tensor};
use crate::layout::{dtype, heads, is_aligned, readable, rows, wrap};
use cake_rmsnorm::RmsNorm;
pub use cake_rmsnorm::gated::GateOrder;
use cake_rmsnorm::gated::GatedRmsNorm;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp2, CustomOp3, Error, Layout, Result, Shape, Storage, Tensor,
};
use std::sync::{Mutex, PoisonError};

/// What the plain and the residual form are told besides tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// What is added to the mean square.
    pub eps: f32,
    /// What is added to each element of the weight, in FP32.
    pub weight_offset: f32,
}

impl From<f32> for Options {
    /// Only eps.
    fn from(eps: f32) -> Self {
        Self {
            eps,
            weight_offset: 0.0,
        }
    }
}

const PLAIN: &str = "rms-norm";
const RESIDUAL: &str = "rms-norm-residual";
const GATED: &str = "gated-rms-norm";

/// y = norm(x)·w over the last dimension; `options` may be eps alone.
///
/// # Errors
/// - Shapes, types or devices do not fit; what the device reports.
pub fn rms_norm(x: &Tensor, w: &Tensor, options: impl Into<Options>) -> Result<Tensor> {
    let [x] = readable([x], dtype(x, PLAIN)?)?;
    let w = w.contiguous()?;
    let op = operator(PLAIN, &x, &w, options.into())?;
    let forward = device::forward(&op, &x, None, &w)?;
    let node = Norm {
        op,
        rstd: statistics(forward.rstd),
        y: Ready::new(forward.y, x.shape()),
    };
    x.apply_op2(&w, node)
}

/// h = x + residual, y = norm(h)·w over the last dimension, in one kernel; returns y and h.
///
/// # Errors
/// - As [`rms_norm`].
pub fn rms_norm_residual(
    x: &Tensor,
    residual: &Tensor,
    w: &Tensor,
    options: impl Into<Options>,
) -> Result<(Tensor, Tensor)> {
    same(RESIDUAL, x, residual)?;
    let [x, residual] = readable([x, residual], dtype(x, RESIDUAL)?)?;
    let w = w.contiguous()?;
    let op = operator(RESIDUAL, &x, &w, options.into())?;
    let forward = device::forward(&op, &x, Some(&residual), &w)?;
    let Some(sum) = forward.h else {
        return Err(Error::msg("a forward with a residual gives h"));
    };
    let sum = Sum(Ready::new(sum, x.shape()));
    let h = x.apply_op2(&residual, sum)?;
    let node = Norm {
        op,
        rstd: statistics(forward.rstd),
        y: Ready::new(forward.y, x.shape()),
    };
    let y = h.apply_op2(&w, node)?;
    Ok((y, h))
}

/// y = norm(x)·w·silu(z), or norm(x·silu(z))·w, over the last dimension, whose H is a multiple of 8
/// up to 8,192; BF16, with a BF16 or FP32 weight.
///
/// # Errors
/// - As [`rms_norm`].
pub fn gated_rms_norm(
    x: &Tensor,
    z: &Tensor,
    w: &Tensor,
    eps: f32,
    order: GateOrder,
) -> Result<Tensor> {
    same(GATED, x, z)?;
    let hidden = hidden(GATED, x, w)?;
    let op = wrap(GatedRmsNorm::new(order, hidden, dtype(w, GATED)?, eps))?;
    let ([x, z], heads) = aligned([x, z])?;
    let w = w.contiguous()?;
    let forward = device::gated_forward(&op, heads, &x, &z, &w)?;
    let node = Gated {
        op,
        rstd: statistics(forward.rstd),
        y: Ready::new(forward.y, x.shape()),
    };
    x.apply_op3(&z, &w, node)
}

fn operator(name: &'static str, x: &Tensor, w: &Tensor, options: Options) -> Result<RmsNorm> {
    let op = RmsNorm::builder(hidden(name, x, w)?)
        .input(dtype(x, name)?)
        .weight(dtype(w, name)?)
        .weight_offset(options.weight_offset)
        .eps(options.eps);
    wrap(op.build())
}

/// H of a matrix and a weight on one device.
fn hidden(op: &'static str, x: &Tensor, w: &Tensor) -> Result<u64> {
    let hidden = x.dims().last().copied().unwrap_or(0);
    if w.dims() != [hidden] {
        return Err(Error::ShapeMismatchBinaryOp {
            lhs: x.shape().clone(),
            rhs: w.shape().clone(),
            op,
        }
        .bt());
    }
    same_device(op, x, w)?;
    Ok(hidden as u64)
}

/// Refuses tensors of two shapes, types or devices.
fn same(op: &'static str, lhs: &Tensor, rhs: &Tensor) -> Result<()> {
    if lhs.shape() != rhs.shape() {
        return Err(Error::ShapeMismatchBinaryOp {
            lhs: lhs.shape().clone(),
            rhs: rhs.shape().clone(),
            op,
        }
        .bt());
    }
    if lhs.dtype() != rhs.dtype() {
        return Err(Error::DTypeMismatchBinaryOp {
            lhs: lhs.dtype(),
            rhs: rhs.dtype(),
            op,
        }
        .bt());
    }
    same_device(op, lhs, rhs)
}

fn same_device(op: &'static str, lhs: &Tensor, rhs: &Tensor) -> Result<()> {
    if lhs.device().same_device(rhs.device()) {
        return Ok(());
    }
    Err(Error::DeviceMismatchBinaryOp {
        lhs: lhs.device().location(),
        rhs: rhs.device().location(),
        op,
    }
    .bt())
}

/// Tensors that the gated form can read where they lie, and the heads of a token that they lie in;
/// copies where it cannot.
fn aligned<const N: usize>(tensors: [&Tensor; N]) -> Result<([Tensor; N], u64)> {
    let dtype = dtype(tensors[0], GATED)?;
    let mut tensors = readable(tensors, dtype)?;
    let mut views = Vec::with_capacity(N);
    for tensor in &mut tensors {
        let mut view = wrap(rows(tensor.layout(), dtype))?;
        if !is_aligned(&view, base(tensor)) {
            *tensor = tensor.force_contiguous()?;
            view = wrap(rows(tensor.layout(), dtype))?;
        }
        views.push(view);
    }
    // `readable` left at most one size of groups.
    Ok((tensors, heads(&views).unwrap_or(1)))
}

fn statistics(storage: Storage) -> Tensor {
    let elements = match &storage {
        Storage::Cpu(CpuStorage::F32(rstd)) => rstd.len(),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => storage.as_cuda_slice::<f32>().map_or(0, |rstd| rstd.len()),
        _ => 0,
    };
    tensor(storage, elements)
}

/// A gradient of the weight as the weight's type.
fn weight_gradient(dw: Option<Storage>, w: &Tensor) -> Result<Option<Tensor>> {
    let dw = dw.map(|dw| tensor(dw, w.dims()).to_dtype(w.dtype()));
    dw.transpose()
}

/// An output that was computed already, together with others: candle's operators have one each.
struct Ready(Mutex<Option<Storage>>, Shape);

impl Ready {
    fn new(storage: Storage, shape: &Shape) -> Self {
        Self(Mutex::new(Some(storage)), shape.clone())
    }

    fn take(&self) -> Option<Storage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn cpu(&self) -> Result<(CpuStorage, Shape)> {
        match self.take() {
            Some(Storage::Cpu(storage)) => Ok((storage, self.1.clone())),
            _ => Err(Error::msg("the output is not there, or not on the CPU")),
        }
    }

    fn cuda(&self) -> Result<(CudaStorage, Shape)> {
        match self.take() {
            Some(Storage::Cuda(storage)) => Ok((storage, self.1.clone())),
            _ => Err(Error::msg("the output is not there, or not on a GPU")),
        }
    }
}

/// y of x (or of h) and w.
struct Norm {
    op: RmsNorm,
    rstd: Tensor,
    y: Ready,
}

impl CustomOp2 for Norm {
    fn name(&self) -> &'static str {
        PLAIN
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.y.cpu()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.y.cuda()
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let wanted = Wanted {
            dx: x.track_op(),
            dw: w.track_op(),
        };
        if !wanted.dx && !wanted.dw {
            return Ok((None, None));
        }
        let [x, dy] = readable([x, dy], self.op.input())?;
        let gradients = device::backward(&self.op, &dy, &x, w, &self.rstd, wanted)?;
        let dx = gradients.dx.map(|dx| tensor(dx, x.shape()));
        Ok((dx, weight_gradient(gradients.dw, w)?))
    }
}

/// h of x and residual.
struct Sum(Ready);

impl CustomOp2 for Sum {
    fn name(&self) -> &'static str {
        RESIDUAL
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.0.cpu()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.0.cuda()
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        dh: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((Some(dh.clone()), Some(dh.clone())))
    }
}

/// y of x, z and w.
struct Gated {
    op: GatedRmsNorm,
    rstd: Tensor,
    y: Ready,
}

impl CustomOp3 for Gated {
    fn name(&self) -> &'static str {
        GATED
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.y.cpu()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.y.cuda()
    }

    fn bwd(
        &self,
        x: &Tensor,
        z: &Tensor,
        w: &Tensor,
        _: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (wants, dw) = ([x, z].map(Tensor::track_op), w.track_op());
        if wants == [false; 2] && !dw {
            return Ok((None, None, None));
        }
        let ([x, z, dy], heads) = aligned([x, z, dy])?;
        let inputs = [&x, &z, w];
        let gradients = device::gated_backward(&self.op, heads, &dy, inputs, &self.rstd, dw)?;
        let of = |gradient: Option<Storage>| gradient.map(|dx| tensor(dx, x.shape()));
        Ok((
            of(gradients.dx),
            of(gradients.dz),
            weight_gradient(gradients.dw, w)?,
        ))
    }
}
