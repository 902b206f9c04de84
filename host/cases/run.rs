//! A case on a device: memory with guards, the calls, and what is wrong with what they wrote.

use super::{Case, Draw, Layout, Step};
use crate::backend::Backend;
use crate::backend::sim::SimBuffer;
use crate::compare::{Accuracy, Output};
use crate::element::Element;
use crate::golden::{self, Backward, Forward};
use crate::inputs::{Weight, bell};
use crate::op::{BackwardArgs, ForwardArgs, WeightGradient};
use crate::plan::Views;
use crate::reference::{self, from_elements, from_f32};
use crate::view::{Dtype, RowsView, VectorView, Workspace};
use crate::{Error, RmsNorm};
use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Memory of a device. Copies happen while nothing runs.
pub trait Memory<E> {
    /// Where it lies: a multiple of 16.
    fn address(&self) -> u64;

    /// Copies `bytes`, as many as the memory has.
    ///
    /// # Errors
    /// - What the device reports.
    fn write(&mut self, bytes: &[u8]) -> Result<(), E>;

    /// All bytes.
    ///
    /// # Errors
    /// - What the device reports.
    fn read(&self) -> Result<Vec<u8>, E>;
}

/// A backend, and memory that it can reach.
pub trait Device {
    /// What can go wrong.
    type Error: From<Error>;
    /// Memory.
    type Memory: Memory<Self::Error>;

    /// What runs the case.
    fn backend(&self) -> &dyn Backend;

    /// `bytes` bytes; `name` is for errors.
    ///
    /// # Errors
    /// - What the device reports.
    fn alloc(&self, name: &'static str, bytes: usize) -> Result<Self::Memory, Self::Error>;

    /// Waits for everything that was enqueued.
    ///
    /// # Errors
    /// - What the device reports.
    fn synchronize(&self) -> Result<(), Self::Error>;
}

impl Memory<Error> for SimBuffer {
    fn address(&self) -> u64 {
        SimBuffer::address(self)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        SimBuffer::write(self, bytes)
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        SimBuffer::read(self)
    }
}

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
        let values = Values::<E>::draw(self);
        let expected = values.expected(self, &op)?;
        let mut failures = Vec::new();
        let found = self.execute(device, &op, &values, &mut failures)?;
        self.compare_bits(&expected, &found, &mut failures);
        if self.is_bounded() {
            self.compare_values(&op, &values, &expected, &mut failures)?;
        }
        Ok(failures)
    }

    /// What a device writes. Bytes that it must not have written are failures.
    fn execute<E: Element, D: Device>(
        &self,
        device: &D,
        op: &RmsNorm,
        values: &Values<E>,
        failures: &mut Vec<String>,
    ) -> Result<Results<E>, D::Error> {
        let Case { rows, hidden, .. } = *self;
        let backend = device.backend();
        backend.prepare(op, self.residual, Views::Any)?;
        let bytes = op.workspace_bytes(rows as u64, self.residual, backend.properties())?;

        let input = |name, layout: Layout, values: &[E]| {
            let place = Place::new(layout, rows, hidden, size_of::<E>());
            Guarded::new(device, name, place, Some(bytemuck::cast_slice(values)))
        };
        let output = |name, layout: Layout| {
            let place = Place::new(layout, rows, hidden, size_of::<E>());
            Guarded::new(device, name, place, None)
        };
        let vector = |name, offset, bytes: usize, size, values: Option<&[u8]>| {
            let step = Step::Packed;
            let place = Place::new(Layout { offset, step }, 1, bytes / size, size);
            Guarded::new(device, name, place, values)
        };
        let optional = |values: &Option<Vec<E>>, name, layout| {
            let values = values.as_deref();
            values.map(|values| input(name, layout, values)).transpose()
        };
        let layouts = self.layouts;
        let x = input("x", layouts.x, &values.x)?;
        let dy = input("dy", layouts.dy, &values.dy)?;
        let residual = optional(&values.residual, "residual", layouts.residual)?;
        let dh = optional(&values.dh, "dh", layouts.dh)?;
        let w = values.w.as_ref().map(|w| {
            let (bytes, size) = (w.as_bytes(), w.dtype().bytes() as usize);
            vector("w", self.weight_start, bytes.len(), size, Some(bytes))
        });
        let w = w.transpose()?;
        let h = residual.as_ref().map(|_| output("h", layouts.h));
        let h = h.transpose()?;
        let y = output("y", layouts.y)?;
        let dx = output("dx", layouts.dx)?;
        let rstd = vector("rstd", 0, 4 * rows, 4, None)?;
        let dw = vector("dw", 0, 4 * hidden, 4, None)?;
        let workspace = vector("workspace", 0, bytes as usize, 1, None)?;

        let matrix = |buffer: &Guarded<D>, layout: &Layout| {
            let packed = RowsView::packed(buffer.address(), rows as u64, hidden as u64);
            layout.view(packed.with_dtype(E::DTYPE))
        };
        let weight = w.as_ref().zip(self.weight).map(|(w, dtype)| VectorView {
            address: w.address(),
            dtype,
            len: hidden as u64,
        });
        let rstd_view = VectorView::f32(rstd.address(), rows as u64);
        let rstd_view = self.keeps_rstd.then_some(rstd_view);
        let (wants_dx, wants_dw) = self.gradients;
        let dw_view = VectorView::f32(dw.address(), hidden as u64);
        let h_view = h.as_ref().map(|h| matrix(h, &layouts.h));
        let x_view = matrix(&x, &layouts.x);
        let forward = ForwardArgs {
            x: x_view,
            residual: residual.as_ref().map(|r| matrix(r, &layouts.residual)),
            w: weight,
            h: h_view,
            y: matrix(&y, &layouts.y),
            rstd: rstd_view,
        };
        let backward = BackwardArgs {
            dy: matrix(&dy, &layouts.dy),
            x: h_view.unwrap_or(x_view),
            dh: dh.as_ref().map(|dh| matrix(dh, &layouts.dh)),
            w: weight,
            rstd: rstd_view,
            dx: wants_dx.then(|| matrix(&dx, &layouts.dx)),
            dw: wants_dw.then_some(WeightGradient::overwrite(dw_view)),
            workspace: Workspace {
                address: workspace.address(),
                bytes,
            },
        };
        // SAFETY: every view lies in a live buffer of the device, and nobody else uses them until
        // the work has completed.
        unsafe {
            backend.forward(op, &forward)?;
            backend.backward(op, &backward)?;
        }
        device.synchronize()?;

        let inputs = [&x, &dy].into_iter().chain(&w);
        for buffer in inputs.chain(&residual).chain(&dh) {
            buffer.check_input(failures)?;
        }
        workspace.outputs(failures)?;
        let mut take = |buffer: &Guarded<D>| -> Result<Vec<E>, D::Error> {
            Ok(bytemuck::pod_collect_to_vec(&buffer.outputs(failures)?))
        };
        let forward = Forward {
            h: h.as_ref().map(&mut take).transpose()?,
            y: take(&y)?,
            rstd: bytemuck::pod_collect_to_vec(&rstd.outputs(&mut Vec::new())?),
        };
        let backward = Backward {
            dx: take(&dx)?,
            dw: bytemuck::pod_collect_to_vec(&dw.outputs(&mut Vec::new())?),
        };
        // What was not asked for is as it was.
        let unwanted = [(&rstd, self.keeps_rstd), (&dw, wants_dw), (&dx, wants_dx)];
        for (buffer, wanted) in unwanted {
            if wanted {
                buffer.outputs(failures)?;
            } else {
                buffer.check_input(failures)?;
            }
        }
        Ok(Results { forward, backward })
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
        let (e, f) = (&expected.backward, &found.backward);
        if self.gradients.0 {
            different("dx", &e.dx, &f.dx, hidden, failures);
        }
        if self.gradients.1 {
            different("dw", &e.dw, &f.dw, hidden, failures);
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
        let Results { forward, backward } = golden;
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
        accuracy.add(&backward.dx, &input.dx, Some(&input.terms))?;
        judge(Output::Dx, accuracy);
        if self.weight.is_none() {
            return Ok(());
        }
        let lost = lost_to_underflow(&forward.rstd) / Output::Dw.bound(Dtype::F32).of_terms;
        exact
            .weight
            .terms
            .iter_mut()
            .for_each(|terms| *terms += lost);
        let mut accuracy = Accuracy::new(Output::Dw);
        accuracy.add(&backward.dw, &exact.weight.dw, Some(&exact.weight.terms))?;
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

/// Packed inputs; rows that are the same one in memory are equal.
struct Values<E> {
    x: Vec<E>,
    residual: Option<Vec<E>>,
    dy: Vec<E>,
    dh: Option<Vec<E>>,
    w: Option<Weight>,
}

/// Outputs, packed.
struct Results<E> {
    forward: Forward<E>,
    backward: Backward<E>,
}

impl<E: Element> Values<E> {
    fn draw(case: &Case) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(case.seed ^ u64::MAX);
        let draw = &mut Draw(&mut rng);
        let mut matrix = |data: super::Data, layout: Layout| {
            let mut values = data.rows(draw, case.rows, case.hidden);
            if layout.step == Step::Same {
                let (first, rest) = values.split_at_mut(case.hidden.min(case.rows * case.hidden));
                rest.chunks_exact_mut(case.hidden)
                    .for_each(|row| row.copy_from_slice(first));
            }
            values
        };
        let layouts = &case.layouts;
        let x = matrix(case.x, layouts.x);
        let dy = matrix(case.dy, layouts.dy);
        let ordinary = super::Data::Ordinary;
        let residual = case.residual.then(|| matrix(ordinary, layouts.residual));
        let dh = case.residual.then(|| matrix(ordinary, layouts.dh));
        let mean = 1.0 - case.weight_offset;
        let w = (0..case.hidden).map(|_| mean + 0.25 * bell(draw.bits()));
        let w = Weight::F32(w.collect());
        let w = case.weight.map(|dtype| w.to_dtype(dtype));
        Self {
            x,
            residual,
            dy,
            dh,
            w,
        }
    }

    fn expected(&self, case: &Case, op: &RmsNorm) -> crate::Result<Results<E>> {
        debug_assert_eq!(self.x.len(), case.rows * case.hidden);
        let w = self
            .w
            .as_ref()
            .map_or(golden::Weight::None, Weight::as_golden);
        let forward = golden::forward_slices(op, &self.x, self.residual.as_deref(), w)?;
        let h = forward.h.as_ref().unwrap_or(&self.x);
        let dh = self.dh.as_deref();
        let backward = golden::backward_slices(op, &self.dy, h, dh, w, &forward.rstd)?;
        Ok(Results { forward, backward })
    }
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

/// Where rows lie in a guarded buffer.
#[derive(Clone, Copy)]
struct Place {
    layout: Layout,
    rows: usize,
    hidden: usize,
    /// Bytes of an element.
    size: usize,
}

/// Bytes of NaN before and behind everything.
const GUARD: usize = 64;
/// A byte of which NaN of every type is made.
const NAN: u8 = 0xff;

impl Place {
    fn new(layout: Layout, rows: usize, hidden: usize, size: usize) -> Self {
        Self {
            layout,
            rows,
            hidden,
            size,
        }
    }

    /// Bytes of the buffer.
    fn bytes(&self) -> usize {
        let elements = self.layout.offset + self.layout.extent(self.rows, self.hidden);
        2 * GUARD + elements * self.size
    }

    /// Where a row's bytes start.
    fn row(&self, row: usize) -> usize {
        let start = self.layout.start(row, self.rows, self.hidden);
        GUARD + (self.layout.offset + start) * self.size
    }

    fn row_bytes(&self) -> usize {
        self.hidden * self.size
    }
}

/// A buffer of rows with NaN around them and between.
struct Guarded<D: Device> {
    name: &'static str,
    memory: D::Memory,
    place: Place,
    image: Vec<u8>,
}

impl<D: Device> Guarded<D> {
    /// With packed `values`, or NaN everywhere.
    fn new(
        device: &D,
        name: &'static str,
        place: Place,
        values: Option<&[u8]>,
    ) -> Result<Self, D::Error> {
        let mut image = vec![NAN; place.bytes()];
        let width = place.row_bytes();
        if let Some(values) = values {
            for row in 0..place.rows {
                let start = place.row(row);
                image[start..start + width].copy_from_slice(&values[row * width..][..width]);
            }
        }
        let mut memory = device.alloc(name, image.len())?;
        memory.write(&image)?;
        Ok(Self {
            name,
            memory,
            place,
            image,
        })
    }

    /// Of row 0.
    fn address(&self) -> u64 {
        self.memory.address() + self.place.row(0) as u64
    }

    fn check_input(&self, failures: &mut Vec<String>) -> Result<(), D::Error> {
        if self.memory.read()? != self.image {
            failures.push(format!("{} was written", self.name));
        }
        Ok(())
    }

    /// The rows, packed. What was written beside them is a failure.
    fn outputs(&self, failures: &mut Vec<String>) -> Result<Vec<u8>, D::Error> {
        let mut bytes = self.memory.read()?;
        let width = self.place.row_bytes();
        let mut rows = Vec::with_capacity(self.place.rows * width);
        for row in 0..self.place.rows {
            let row = &mut bytes[self.place.row(row)..][..width];
            rows.extend_from_slice(row);
            row.fill(NAN);
        }
        if let Some(at) = bytes.iter().position(|&byte| byte != NAN) {
            let first = self.place.row(0);
            failures.push(format!(
                "{}: byte {at} was written, the first element's is {first}",
                self.name
            ));
        }
        Ok(rows)
    }
}
