//! Every element against FP64, every bit against the golden implementation. The FP64 side goes
//! block by block, so that its memory does not grow with T.

use crate::cli::error::Result;
use crate::cli::progress::Progress;
use cake_rmsnorm::compare::{Accuracy, Differences, Output, Report};
use cake_rmsnorm::golden::{self, Backward, Forward};
use cake_rmsnorm::inputs::Inputs;
use cake_rmsnorm::reference::{self, WeightGradientSum, from_elements, from_f32};
use cake_rmsnorm::{Element, RmsNorm, compare};
use std::ops::Range;

/// Elements of a block.
const BLOCK: usize = 1 << 22;

/// Inputs, and what a device made of them.
pub struct Results<'a, E> {
    /// The operator.
    pub op: RmsNorm,
    /// Its inputs.
    pub inputs: &'a Inputs<E>,
    /// The device's forward.
    pub forward: &'a Forward<E>,
    /// The device's backward.
    pub backward: &'a Backward<E>,
}

/// An output, compared.
pub struct Comparison {
    /// With FP64.
    pub report: Report,
    /// With the golden implementation.
    pub differences: Differences,
}

/// All outputs, compared.
pub struct Verdict {
    /// h, in the residual form.
    pub h: Option<Comparison>,
    /// y.
    pub y: Comparison,
    /// rstd.
    pub rstd: Comparison,
    /// dx.
    pub dx: Comparison,
    /// dw.
    pub dw: Comparison,
}

impl<E: Element> Results<'_, E> {
    /// Compares every output. Each is judged by what the device itself computed it from: y, dx and
    /// dw by its own h and rstd.
    pub fn verify(&self, progress: &Progress) -> Result<Verdict> {
        let Results {
            op,
            inputs,
            forward,
            backward,
        } = *self;
        let elements = inputs.x.len() as u64;
        let w = inputs.w.as_golden();
        progress.stage("golden forward");
        let golden = golden::forward_slices(&op, &inputs.x, inputs.residual.as_deref(), w)?;
        let h_differences = match (&forward.h, &golden.h) {
            (Some(found), Some(golden)) => Some(differences(Output::H, found, golden)?),
            _ => None,
        };
        let y_differences = differences(Output::Y, &forward.y, &golden.y)?;
        let rstd_differences = differences(Output::Rstd, &forward.rstd, &golden.rstd)?;
        drop(golden);
        progress.advance(elements);

        progress.stage("golden backward");
        let (x, dh) = (self.normalised(), inputs.dh.as_deref());
        let golden = golden::backward_slices(&op, &inputs.dy, x, dh, w, &forward.rstd)?;
        let dx_differences = differences(Output::Dx, &backward.dx, &golden.dx)?;
        let dw_differences = differences(Output::Dw, &backward.dw, &golden.dw)?;
        drop(golden);
        progress.advance(elements);

        let [h, y, rstd, dx, dw] = self.accuracy(progress)?;
        let compared = |report, differences| Comparison {
            report,
            differences,
        };
        Ok(Verdict {
            h: h_differences.map(|differences| compared(h, differences)),
            y: compared(y, y_differences),
            rstd: compared(rstd, rstd_differences),
            dx: compared(dx, dx_differences),
            dw: compared(dw, dw_differences),
        })
    }

    /// What the forward normalised.
    fn normalised(&self) -> &[E] {
        self.forward.h.as_ref().unwrap_or(&self.inputs.x)
    }

    /// h, y, rstd, dx and dw against FP64.
    fn accuracy(&self, progress: &Progress) -> Result<[Report; 5]> {
        let hidden = self.inputs.hidden;
        let mut w = from_f32(&self.inputs.w.to_f32());
        let offset = f64::from(self.op.weight_offset());
        w.iter_mut().for_each(|w| *w += offset);
        let mut matrices = Matrices {
            h: Accuracy::new(Output::H),
            y: Accuracy::new(Output::Y),
            rstd: Accuracy::new(Output::Rstd),
            dx: Accuracy::new(Output::Dx),
        };
        let mut sum = WeightGradientSum::new(hidden);
        progress.stage("FP64");
        let block = (BLOCK / hidden).max(1);
        for first in (0..self.inputs.rows).step_by(block) {
            let rows = first..(first + block).min(self.inputs.rows);
            self.block(rows.clone(), &w, &mut matrices, &mut sum)?;
            progress.advance((rows.len() * hidden) as u64);
        }
        let exact = sum.finish();
        let dw = &self.backward.dw;
        let dw = compare::compare(Output::Dw, dw, &exact.dw, Some(&exact.terms), None)?;
        let Matrices { h, y, rstd, dx } = matrices;
        Ok([h.report(), y.report(), rstd.report(), dx.report(), dw])
    }

    fn block(
        &self,
        rows: Range<usize>,
        w: &[f64],
        matrices: &mut Matrices,
        sum: &mut WeightGradientSum,
    ) -> Result<()> {
        let Results {
            op,
            inputs,
            forward,
            backward,
        } = *self;
        let hidden = inputs.hidden;
        let elements = rows.start * hidden..rows.end * hidden;
        let of = |values: &[E]| from_elements(&values[elements.clone()]);
        if let (Some(h), Some(residual)) = (&forward.h, &inputs.residual) {
            let sums: Vec<f64> = of(&inputs.x)
                .iter()
                .zip(of(residual))
                .map(|(x, r)| x + r)
                .collect();
            matrices.h.add(&h[elements.clone()], &sums, None)?;
        }
        let x = of(self.normalised());
        let exact = reference::forward(&x, w, hidden, f64::from(op.eps()))?;
        matrices
            .rstd
            .add(&forward.rstd[rows.clone()], &exact.rstd, None)?;
        let rstd = from_f32(&forward.rstd[rows]);
        let exact = reference::normalised(&x, w, &rstd, hidden)?;
        matrices.y.add(&forward.y[elements.clone()], &exact, None)?;

        let (dy, dh) = (of(&inputs.dy), inputs.dh.as_deref().map(of));
        let exact = reference::input_gradient(&dy, &x, dh.as_deref(), w, &rstd, hidden)?;
        matrices.dx.add(
            &backward.dx[elements.clone()],
            &exact.dx,
            Some(&exact.terms),
        )?;
        sum.add_rows(&dy, &x, &rstd)?;
        Ok(())
    }
}

/// The outputs that come in blocks of rows.
struct Matrices {
    h: Accuracy,
    y: Accuracy,
    rstd: Accuracy,
    dx: Accuracy,
}

fn differences<T: Element>(output: Output, found: &[T], golden: &[T]) -> Result<Differences> {
    let mut accuracy = Accuracy::new(output);
    accuracy.add_golden(found, golden)?;
    Ok(accuracy.differences().unwrap_or_default())
}

/// Whether repeated backwards gave the bits of the first.
pub struct Repeats {
    /// dx did.
    pub dx: bool,
    /// dw did.
    pub dw: bool,
}

impl Repeats {
    /// Nothing repeated yet.
    pub fn new() -> Self {
        Repeats { dx: true, dw: true }
    }

    /// Compares another run with the first.
    pub fn add<E: Element>(&mut self, first: &Backward<E>, again: &Backward<E>) {
        let same_bytes = |a: &[u8], b: &[u8]| a == b;
        self.dx &= same_bytes(
            bytemuck::cast_slice(&first.dx),
            bytemuck::cast_slice(&again.dx),
        );
        self.dw &= same_bytes(
            bytemuck::cast_slice(&first.dw),
            bytemuck::cast_slice(&again.dw),
        );
    }
}
