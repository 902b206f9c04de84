//! A case on a device: the calls, and what is wrong with what they wrote.

use super::guarded::{Device, Guarded, Place};
use super::values::{Results, Values};
use super::{BackwardInput, Case, ForwardInput, InPlace, Layout, Layouts, Step};
use crate::compare::{Accuracy, Output};
use crate::element::Element;
use crate::golden::Forward;
use crate::op::{BackwardArgs, ForwardArgs, RmsNorm};
use crate::plan::Views;
use crate::reference::{self, from_elements, from_f32};
use crate::view::{Dtype, RowsView, VectorView, Workspace};
use half::{bf16, f16};

impl Case {
    /// Runs a forward and a backward, and says what is wrong with what they wrote: nothing, when all
    /// is well.
    ///
    /// # Errors
    /// - What the device reports.
    pub fn run<D: Device>(&self, device: &D) -> Result<Vec<String>, D::Error> {
        match self.input {
            Dtype::Bf16 => self.run_as::<bf16, D>(device),
            Dtype::F16 => self.run_as::<f16, D>(device),
            Dtype::F32 => self.run_as::<f32, D>(device),
        }
    }

    fn run_as<E: Element, D: Device>(&self, device: &D) -> Result<Vec<String>, D::Error> {
        let op = self.operator()?;
        let (in_place, layouts) = self.places();
        let values = Values::<E>::draw(self, &layouts);
        let expected = values.expected(&op)?;
        device.backend().prepare(&op, self.residual, Views::Any)?;
        let mut run = Run {
            case: self,
            device,
            op: &op,
            values: &values,
            layouts,
            in_place,
            failures: Vec::new(),
        };
        let found = run.run()?;
        let mut failures = run.failures;
        self.compare_bits(&expected, &found, &mut failures);
        if self.is_bounded() {
            self.compare_values(&op, &values, &expected, &mut failures)?;
        }
        Ok(failures)
    }

    /// Every bit of what was asked for against the golden implementation.
    fn compare_bits<E: Element>(
        &self,
        expected: &Results<E>,
        found: &Results<E>,
        failures: &mut Vec<String>,
    ) {
        let hidden = self.hidden;
        let (e, f) = (&expected.forward, &found.forward);
        if let (Some(e), Some(f)) = (&e.h, &f.h) {
            different("h", e, f, hidden, failures);
        }
        if self.keeps_rstd {
            different("rstd", &e.rstd, &f.rstd, 1, failures);
        }
        different("y", &e.y, &f.y, hidden, failures);
        if self.gradients.0 {
            different("dx", &expected.dx, &found.dx, hidden, failures);
        }
        if self.wants_dw() && self.dw.has_f32() {
            different("dw", &expected.dw, &found.dw, hidden, failures);
        }
        if self.wants_dw() && self.dw.has_bf16() {
            let (e, f) = (&expected.dw_bf16, &found.dw_bf16);
            different("dw in BF16", e, f, hidden, failures);
        }
    }

    /// Every value of the golden implementation against FP64.
    fn compare_values<E: Element>(
        &self,
        op: &RmsNorm,
        values: &Values<E>,
        golden: &Results<E>,
        failures: &mut Vec<String>,
    ) -> crate::Result<()> {
        let hidden = self.hidden;
        let forward = &golden.forward;
        let w = match &values.w {
            // The sum in FP32 is what rows are multiplied by.
            Some(w) => w.to_f32().iter().map(|w| w + self.weight_offset).collect(),
            None => vec![1.0; hidden],
        };
        let w = from_f32(&w);
        let h = from_elements(forward.h.as_ref().unwrap_or(&values.x));
        let rstd = from_f32(&forward.rstd);
        let mut judge = |output, accuracy: Accuracy| {
            let report = accuracy.report();
            if !report.ok() {
                failures.push(format!("{output:?} beyond its bound: {:?}", report.worst));
            }
        };

        let exact = reference::forward(&h, &w, hidden, f64::from(op.eps()))?;
        let mut accuracy = Accuracy::new(Output::Rstd);
        accuracy.add(&forward.rstd, &exact.rstd, None)?;
        judge(Output::Rstd, accuracy);
        let exact = reference::normalised(&h, &w, &rstd, hidden)?;
        let mut accuracy = Accuracy::new(Output::Y);
        accuracy.add(&forward.y, &exact, None)?;
        judge(Output::Y, accuracy);

        let (dy, dh) = (from_elements(&values.dy), &values.dh);
        let dh = dh.as_deref().map(from_elements);
        let mut exact = reference::backward(&dy, &h, dh.as_deref(), &w, &rstd, hidden)?;
        let rows = exact.input.terms.chunks_mut(hidden).zip(h.chunks(hidden));
        for ((terms, h), &rstd) in rows.zip(&rstd) {
            // k and k·x′ of an extreme row underflow to multiples of 2⁻¹⁴⁹; dx is 2⁸⁰ times what
            // they are part of.
            if rstd > 2f64.powi(40) {
                for (terms, h) in terms.iter_mut().zip(h) {
                    let lost = 2f64.powi(80 - 149) * (1.0 + h.abs() * 2f64.powi(80));
                    *terms += lost / Output::Dx.bound(E::DTYPE).of_terms;
                }
            }
        }
        let mut accuracy = Accuracy::new(Output::Dx);
        let input = &exact.input;
        accuracy.add(&golden.dx, &input.dx, Some(&input.terms))?;
        judge(Output::Dx, accuracy);
        if self.weight.is_none() {
            return Ok(());
        }
        if let Some(old) = &values.old_dw {
            let columns = exact.weight.dw.iter_mut().zip(&mut exact.weight.terms);
            for ((dw, terms), &old) in columns.zip(old) {
                *dw += f64::from(old);
                *terms += f64::from(old).abs();
            }
        }
        let lost = lost_to_underflow(&forward.rstd) / Output::Dw.bound(Dtype::F32).of_terms;
        exact
            .weight
            .terms
            .iter_mut()
            .for_each(|terms| *terms += lost);
        let mut accuracy = Accuracy::new(Output::Dw);
        accuracy.add(&golden.dw, &exact.weight.dw, Some(&exact.weight.terms))?;
        judge(Output::Dw, accuracy);
        Ok(())
    }
}

/// What products of tiny elements may lose of dw: dy·x, and what its rounding lost, are rounded to
/// multiples of 2⁻¹⁴⁹ before they are multiplied by rstd (of the scaled row, where it is extreme),
/// and the compensation is.
fn lost_to_underflow(rstd: &[f32]) -> f64 {
    let scaled = |rstd: f64| match rstd {
        rstd if rstd < 2f64.powi(-40) => rstd * 2f64.powi(80),
        rstd if rstd > 2f64.powi(40) => rstd * 2f64.powi(-80),
        rstd => rstd,
    };
    let lost = |rstd: &f32| 2f64.powi(-150) * (1.0 + 2.0 * scaled(f64::from(*rstd)));
    rstd.iter().filter(|rstd| rstd.is_finite()).map(lost).sum()
}

fn different<T: Element>(
    name: &str,
    expected: &[T],
    found: &[T],
    width: usize,
    failures: &mut Vec<String>,
) {
    let bytes = |value| bytemuck::bytes_of::<T>(value);
    let pairs = || expected.iter().zip(found).enumerate();
    let mut wrong = pairs().filter(|(_, (e, f))| bytes(e) != bytes(f));
    if let Some((i, (e, f))) = wrong.next() {
        let (row, column) = (i / width, i % width);
        let more = wrong.count();
        failures.push(format!(
            "{name}[{row}, {column}] is {:e}, golden {:e}, and {more} more",
            f.to_f32(),
            e.to_f32(),
        ));
    }
}

/// A case while it runs.
struct Run<'a, E, D> {
    case: &'a Case,
    device: &'a D,
    op: &'a RmsNorm,
    values: &'a Values<E>,
    layouts: Layouts,
    in_place: InPlace,
    /// Bytes that must not have been written.
    failures: Vec<String>,
}

/// What the forward leaves for the backward.
struct Kept<D: Device> {
    /// What it normalised.
    x: Guarded<D>,
    rstd: Guarded<D>,
}

impl<E: Element, D: Device> Run<'_, E, D> {
    /// What the device writes.
    fn run(&mut self) -> Result<Results<E>, D::Error> {
        let w = match &self.values.w {
            Some(w) => {
                let (start, size) = (self.case.weight_start, w.dtype().bytes() as usize);
                Some(self.vector("w", start, size, self.case.hidden, Some(w.as_bytes()))?)
            }
            None => None,
        };
        let (forward, kept) = self.forward(w.as_ref())?;
        let found = self.backward(w.as_ref(), kept, forward)?;
        if let Some(w) = &w {
            w.check_unwritten(&mut self.failures)?;
        }
        Ok(found)
    }

    fn forward(&mut self, w: Option<&Guarded<D>>) -> Result<(Forward<E>, Kept<D>), D::Error> {
        let (layouts, in_place, values) = (self.layouts, self.in_place, self.values);
        let mut x = self.matrix("x", layouts.x, Some(&values.x))?;
        let residual = match &values.residual {
            Some(residual) => Some(self.matrix("residual", layouts.residual, Some(residual))?),
            None => None,
        };
        let own_y = self.matrix("y", layouts.y, None)?;
        let own_h = self.matrix("h", layouts.h, None)?;
        let mut rstd = self.vector("rstd", 0, 4, self.case.rows, None)?;
        let place = |own, input| match input {
            None => own,
            Some(ForwardInput::X) => &x,
            Some(ForwardInput::Residual) => residual.as_ref().unwrap_or(own),
        };
        let (y, h) = (place(&own_y, in_place.y), place(&own_h, in_place.h));
        let args = ForwardArgs {
            x: self.view(&x, layouts.x),
            residual: residual.as_ref().map(|it| self.view(it, layouts.residual)),
            w: self.weight_view(w),
            h: residual.as_ref().map(|_| self.view(h, layouts.h)),
            y: self.view(y, layouts.y),
            rstd: self.rstd_view(&rstd),
        };
        // SAFETY: every view lies in a live buffer of the device, and nobody else uses them until
        // the work has completed, below.
        unsafe { self.device.backend().forward(self.op, &args)? };
        self.device.synchronize()?;

        let failures = &mut self.failures;
        let found = Forward {
            h: match residual {
                Some(_) => Some(bytemuck::pod_collect_to_vec(&h.outputs(failures)?)),
                None => None,
            },
            y: bytemuck::pod_collect_to_vec(&y.outputs(failures)?),
            rstd: bytemuck::pod_collect_to_vec(&rstd.outputs(failures)?),
        };
        let taken = [in_place.y, in_place.h];
        let untouched = [
            (Some(&x), taken.contains(&Some(ForwardInput::X))),
            (
                residual.as_ref(),
                taken.contains(&Some(ForwardInput::Residual)),
            ),
            (Some(&own_y), in_place.y.is_none()),
            (Some(&own_h), residual.is_some() && in_place.h.is_none()),
            (Some(&rstd), self.case.keeps_rstd),
        ];
        for (buffer, written) in untouched {
            if let (Some(buffer), false) = (buffer, written) {
                buffer.check_unwritten(failures)?;
            }
        }
        let normalised = match (residual, in_place.h) {
            (None, _) if in_place.y.is_none() => x,
            // y lies where x did.
            (None, _) => self.matrix("x", layouts.x, Some(&values.x))?,
            (Some(_), Some(ForwardInput::X)) => {
                x.keep()?;
                x
            }
            (Some(mut residual), Some(ForwardInput::Residual)) => {
                residual.keep()?;
                residual
            }
            (Some(_), None) => {
                let mut h = own_h;
                h.keep()?;
                h
            }
        };
        rstd.keep()?;
        Ok((
            found,
            Kept {
                x: normalised,
                rstd,
            },
        ))
    }

    fn backward(
        &mut self,
        w: Option<&Guarded<D>>,
        kept: Kept<D>,
        forward: Forward<E>,
    ) -> Result<Results<E>, D::Error> {
        let (layouts, in_place, values, case) =
            (self.layouts, self.in_place, self.values, self.case);
        let backend = self.device.backend();
        let (rows, hidden) = (case.rows, case.hidden);
        let bytes = self
            .op
            .workspace_bytes(rows as u64, case.residual, backend.properties())?;
        let workspace = self.vector("workspace", 0, 1, bytes as usize, None)?;
        let dy = self.matrix("dy", layouts.dy, Some(&values.dy))?;
        let dh = match &values.dh {
            Some(dh) => Some(self.matrix("dh", layouts.dh, Some(dh))?),
            None => None,
        };
        let own_dx = self.matrix("dx", layouts.dx, None)?;
        let old = values.old_dw.as_deref().map(bytemuck::cast_slice);
        let dw = self.vector("dw", 0, 4, hidden, old)?;
        let dw_bf16 = self.vector("dw in BF16", 0, 2, hidden, None)?;
        let dx = match in_place.dx {
            None => &own_dx,
            Some(BackwardInput::Dy) => &dy,
            Some(BackwardInput::X) => &kept.x,
            Some(BackwardInput::Dh) => dh.as_ref().unwrap_or(&own_dx),
        };
        let x_layout = match case.residual {
            true => layouts.h,
            false => layouts.x,
        };
        let dw_view = VectorView::f32(dw.address(), hidden as u64);
        let bf16_view = VectorView::bf16(dw_bf16.address(), hidden as u64);
        let args = BackwardArgs {
            dy: self.view(&dy, layouts.dy),
            x: self.view(&kept.x, x_layout),
            dh: dh.as_ref().map(|dh| self.view(dh, layouts.dh)),
            w: self.weight_view(w),
            rstd: self.rstd_view(&kept.rstd),
            dx: case.gradients.0.then(|| self.view(dx, layouts.dx)),
            dw: case.wants_dw().then(|| case.dw.view(dw_view, bf16_view)),
            workspace: Workspace {
                address: workspace.address(),
                bytes,
            },
        };
        // SAFETY: as in the forward.
        unsafe { backend.backward(self.op, &args)? };
        self.device.synchronize()?;

        let failures = &mut self.failures;
        workspace.outputs(failures)?;
        let found = Results {
            forward,
            dx: bytemuck::pod_collect_to_vec(&dx.outputs(failures)?),
            dw: bytemuck::pod_collect_to_vec(&dw.outputs(failures)?),
            dw_bf16: bytemuck::pod_collect_to_vec(&dw_bf16.outputs(failures)?),
        };
        let taken = |input| in_place.dx == Some(input);
        let untouched = [
            (Some(&dy), taken(BackwardInput::Dy)),
            (Some(&kept.x), taken(BackwardInput::X)),
            (dh.as_ref(), taken(BackwardInput::Dh)),
            (Some(&kept.rstd), false),
            (Some(&own_dx), case.gradients.0 && in_place.dx.is_none()),
            (Some(&dw), case.wants_dw() && case.dw.has_f32()),
            (Some(&dw_bf16), case.wants_dw() && case.dw.has_bf16()),
        ];
        for (buffer, written) in untouched {
            if let (Some(buffer), false) = (buffer, written) {
                buffer.check_unwritten(failures)?;
            }
        }
        Ok(found)
    }

    /// Rows with these values, or of NaN.
    fn matrix(
        &self,
        name: &'static str,
        layout: Layout,
        values: Option<&[E]>,
    ) -> Result<Guarded<D>, D::Error> {
        let Case { rows, hidden, .. } = *self.case;
        let place = Place::new(layout, rows, hidden, size_of::<E>());
        Guarded::new(self.device, name, place, values.map(bytemuck::cast_slice))
    }

    /// `len` elements of `size` bytes, `offset` elements behind a multiple of 16 bytes.
    fn vector(
        &self,
        name: &'static str,
        offset: usize,
        size: usize,
        len: usize,
        values: Option<&[u8]>,
    ) -> Result<Guarded<D>, D::Error> {
        let step = Step::Packed;
        let place = Place::new(Layout { offset, step }, 1, len, size);
        Guarded::new(self.device, name, place, values)
    }

    fn view(&self, buffer: &Guarded<D>, layout: Layout) -> RowsView {
        let (rows, hidden) = (self.case.rows as u64, self.case.hidden as u64);
        let packed = RowsView::packed(buffer.address(), rows, hidden);
        layout.view(packed.with_dtype(E::DTYPE))
    }

    fn weight_view(&self, w: Option<&Guarded<D>>) -> Option<VectorView> {
        w.zip(self.case.weight).map(|(w, dtype)| VectorView {
            address: w.address(),
            dtype,
            len: self.case.hidden as u64,
        })
    }

    /// Of rstd, where it is kept.
    fn rstd_view(&self, rstd: &Guarded<D>) -> Option<VectorView> {
        let view = VectorView::f32(rstd.address(), self.case.rows as u64);
        self.case.keeps_rstd.then_some(view)
    }
}
