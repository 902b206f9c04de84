//! The CPU: the golden implementation.

use super::{Backward, Float, Forward, Wanted};
use crate::layout::{dtype, rows, tokens, wrap};
use cake_rmsnorm::backend::{Backend, cpu::Cpu};
use cake_rmsnorm::gated::{GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, HeadsView};
use cake_rmsnorm::{
    BackwardArgs, Dtype, Element, ForwardArgs, RmsNorm, RowsView, Update, VectorView,
    WeightGradient, Workspace,
};
use candle_core::{Layout, Result, Storage, StorageRef, Tensor, WithDType};
use half::{bf16, f16};

const NO_WORKSPACE: Workspace = Workspace {
    address: 0,
    bytes: 0,
};

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

    /// Address of the storage.
    fn base(&self) -> Result<u64> {
        let Storage::Cpu(storage) = &*self.storage else {
            return Err(candle_core::Error::msg("a tensor is not on the CPU"));
        };
        Ok(match self.dtype {
            Dtype::Bf16 => storage.as_slice::<bf16>()?.as_ptr() as u64,
            Dtype::F16 => storage.as_slice::<f16>()?.as_ptr() as u64,
            Dtype::F32 => storage.as_slice::<f32>()?.as_ptr() as u64,
        })
    }

    fn rows(&self) -> Result<RowsView> {
        let view = wrap(rows(self.layout, self.dtype))?;
        Ok(RowsView {
            address: self.base()? + view.address,
            ..view
        })
    }

    fn heads(&self, heads: u64) -> Result<HeadsView> {
        Ok(tokens(self.rows()?, heads))
    }

    /// A contiguous vector.
    fn vector(&self) -> Result<VectorView> {
        let offset = self.layout.start_offset() as u64 * self.dtype.bytes();
        Ok(VectorView {
            address: self.base()? + offset,
            dtype: self.dtype,
            len: self.layout.shape().elem_count() as u64,
        })
    }
}

/// A new output, packed.
struct Output<E>(Vec<E>);

impl<E: Element + WithDType> Output<E> {
    fn zeros(elements: u64) -> Self {
        Self(vec![E::from_f32(0.0); elements as usize])
    }

    fn rows(&mut self, rows: u64, hidden: u64) -> RowsView {
        RowsView::packed(self.0.as_mut_ptr() as u64, rows, hidden).with_dtype(<E as Element>::DTYPE)
    }

    fn storage(self) -> Storage {
        Storage::Cpu(E::to_cpu_storage_owned(self.0))
    }
}

pub(super) fn forward<E: Float>(
    op: &RmsNorm,
    x: &Tensor,
    residual: Option<&Tensor>,
    w: &Tensor,
) -> Result<Forward> {
    let (x, w) = (Borrowed::new(x)?, Borrowed::new(w)?);
    let residual = residual.map(Borrowed::new).transpose()?;
    let input = x.rows()?;
    let (rows, hidden) = (input.rows, input.hidden);
    let mut y = Output::<E>::zeros(rows * hidden);
    let mut h = residual.as_ref().map(|_| Output::<E>::zeros(rows * hidden));
    let mut rstd = Output::<f32>::zeros(rows);
    let args = ForwardArgs {
        x: input,
        residual: residual.as_ref().map(Borrowed::rows).transpose()?,
        w: Some(w.vector()?),
        h: h.as_mut().map(|h| h.rows(rows, hidden)),
        y: y.rows(rows, hidden),
        rstd: Some(VectorView::f32(rstd.0.as_mut_ptr() as u64, rows)),
    };
    // SAFETY: the inputs are candle's, whose layouts lie in their storages, and borrowed; the
    // outputs are new.
    wrap(unsafe { Cpu.forward(op, &args) })?;
    Ok(Forward {
        y: y.storage(),
        h: h.map(Output::storage),
        rstd: rstd.storage(),
    })
}

pub(super) fn backward<E: Float>(
    op: &RmsNorm,
    dy: &Tensor,
    x: &Tensor,
    w: &Tensor,
    rstd: &Tensor,
    wanted: Wanted,
) -> Result<Backward> {
    let (dy, x) = (Borrowed::new(dy)?, Borrowed::new(x)?);
    let (w, rstd) = (Borrowed::new(w)?, Borrowed::new(rstd)?);
    let input = x.rows()?;
    let (rows, hidden) = (input.rows, input.hidden);
    let mut dx = wanted.dx.then(|| Output::<E>::zeros(rows * hidden));
    let mut dw = wanted.dw.then(|| Output::<f32>::zeros(hidden));
    let args = BackwardArgs {
        dy: dy.rows()?,
        x: input,
        dh: None,
        w: Some(w.vector()?),
        rstd: Some(rstd.vector()?),
        dx: dx.as_mut().map(|dx| dx.rows(rows, hidden)),
        dw: dw.as_mut().map(|dw| {
            let dw = VectorView::f32(dw.0.as_mut_ptr() as u64, hidden);
            WeightGradient::overwrite(dw)
        }),
        workspace: NO_WORKSPACE,
    };
    // SAFETY: as in `forward`.
    wrap(unsafe { Cpu.backward(op, &args) })?;
    Ok(Backward {
        dx: dx.map(Output::storage),
        dz: None,
        dw: dw.map(Output::storage),
    })
}

pub(super) fn gated_forward(
    op: &GatedRmsNorm,
    heads: u64,
    x: &Tensor,
    z: &Tensor,
    w: &Tensor,
) -> Result<Forward> {
    let (x, z, w) = (Borrowed::new(x)?, Borrowed::new(z)?, Borrowed::new(w)?);
    let input = x.heads(heads)?;
    let rows = input.tokens * heads;
    let mut y = Output::<bf16>::zeros(rows * input.hidden);
    let mut rstd = Output::<f32>::zeros(rows * op.groups());
    let args = GatedForwardArgs {
        x: input,
        z: z.heads(heads)?,
        w: w.vector()?,
        y: packed(&mut y, &input),
        rstd: Some(VectorView::f32(
            rstd.0.as_mut_ptr() as u64,
            rstd.0.len() as u64,
        )),
    };
    // SAFETY: as in `forward`.
    wrap(unsafe { Cpu.gated_forward(op, &args) })?;
    Ok(Forward {
        y: y.storage(),
        h: None,
        rstd: rstd.storage(),
    })
}

pub(super) fn gated_backward(
    op: &GatedRmsNorm,
    heads: u64,
    dy: &Tensor,
    [x, z, w]: [&Tensor; 3],
    rstd: &Tensor,
    wants_dw: bool,
) -> Result<Backward> {
    let (dy, x, z) = (Borrowed::new(dy)?, Borrowed::new(x)?, Borrowed::new(z)?);
    let (w, rstd) = (Borrowed::new(w)?, Borrowed::new(rstd)?);
    let input = x.heads(heads)?;
    let elements = input.tokens * heads * input.hidden;
    let mut dx = Output::<bf16>::zeros(elements);
    let mut dz = Output::<bf16>::zeros(elements);
    let mut dw = wants_dw.then(|| Output::<f32>::zeros(input.hidden));
    let args = GatedBackwardArgs {
        dy: dy.heads(heads)?,
        x: input,
        z: z.heads(heads)?,
        w: w.vector()?,
        rstd: Some(rstd.vector()?),
        dx: packed(&mut dx, &input),
        dz: packed(&mut dz, &input),
        dw: dw.as_mut().map(|dw| {
            let dw = VectorView::f32(dw.0.as_mut_ptr() as u64, input.hidden);
            (dw, Update::Overwrite)
        }),
        workspace: NO_WORKSPACE,
    };
    // SAFETY: as in `forward`.
    wrap(unsafe { Cpu.gated_backward(op, &args) })?;
    Ok(Backward {
        dx: Some(dx.storage()),
        dz: Some(dz.storage()),
        dw: dw.map(Output::storage),
    })
}

fn packed(output: &mut Output<bf16>, like: &HeadsView) -> HeadsView {
    let address = output.0.as_mut_ptr() as u64;
    HeadsView::packed(address, like.tokens, like.heads, like.hidden)
}
