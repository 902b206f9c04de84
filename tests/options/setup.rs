//! One call with options, and the plain call that says the same.

use super::common::{HostMemory, Memory};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cpu::Cpu;
use cake_rmsnorm::backend::sim::Sim;
use cake_rmsnorm::plan::{self, BackwardForm, DeviceProperties, ForwardForm};
use cake_rmsnorm::{
    BackwardArgs, Dtype, ForwardArgs, RmsNorm, RowsView, VectorView, WeightGradient, Workspace,
};
use half::{bf16, f16};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How the rows of [tokens, heads, H] lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// At one distance, with this many elements between rows.
    Padded(u64),
    /// The heads of a token behind each other, tokens apart: a slice of something wider.
    Interleaved,
    /// [heads, tokens, H].
    Transposed,
}

impl Layout {
    fn view(self, setup: &Setup, address: u64) -> RowsView {
        let Setup {
            hidden,
            tokens,
            heads,
            input,
            ..
        } = *setup;
        let view = RowsView::packed(address, tokens * heads, hidden).with_dtype(input);
        match self {
            Layout::Padded(gap) => view.with_stride((hidden + gap) as i64),
            Layout::Interleaved => view.with_groups(heads, ((heads + 1) * hidden) as i64),
            Layout::Transposed => {
                let head = (tokens * hidden) as i64;
                view.with_stride(head).with_groups(heads, hidden as i64)
            }
        }
    }

    /// Elements from one row's start to the next of its token, and from one token's to the next.
    fn strides(self, setup: &Setup) -> (u64, u64) {
        let Setup {
            hidden,
            tokens,
            heads,
            ..
        } = *setup;
        match self {
            Layout::Padded(gap) => (hidden + gap, heads * (hidden + gap)),
            Layout::Interleaved => (hidden, (heads + 1) * hidden),
            Layout::Transposed => (tokens * hidden, hidden),
        }
    }

    fn start(self, setup: &Setup, row: u64) -> usize {
        let (head, token) = self.strides(setup);
        (row / setup.heads * token + row % setup.heads * head) as usize
    }

    fn elements(self, setup: &Setup) -> usize {
        let rows = setup.tokens * setup.heads;
        let ends = (0..rows).map(|row| self.start(setup, row) + setup.hidden as usize);
        ends.max().unwrap_or(0)
    }
}

/// What of dw is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dw {
    None,
    Overwritten,
    Accumulated,
    AccumulatedAndBf16,
    OverwrittenAndBf16,
    Bf16,
}

impl Dw {
    pub const ALL: [Dw; 6] = [
        Dw::None,
        Dw::Overwritten,
        Dw::Accumulated,
        Dw::AccumulatedAndBf16,
        Dw::OverwrittenAndBf16,
        Dw::Bf16,
    ];

    fn accumulates(self) -> bool {
        matches!(self, Dw::Accumulated | Dw::AccumulatedAndBf16)
    }

    fn output(self, f32: VectorView, bf16: VectorView) -> Option<WeightGradient> {
        match self {
            Dw::None => None,
            Dw::Overwritten => Some(f32.into()),
            Dw::Accumulated => Some(WeightGradient::accumulate(f32)),
            Dw::AccumulatedAndBf16 => Some(WeightGradient::accumulate(f32).and_bf16(bf16)),
            Dw::OverwrittenAndBf16 => Some(WeightGradient::overwrite(f32).and_bf16(bf16)),
            Dw::Bf16 => Some(bf16.into()),
        }
    }
}

/// Which input the outputs take the place of: in the forward y takes that of x, or h that of x,
/// or h that of the residual and y that of x; in the backward dx that of dy, x or dh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    No,
    First,
    Second,
    Residual,
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub hidden: u64,
    pub tokens: u64,
    pub heads: u64,
    pub input: Dtype,
    pub weight: Option<Dtype>,
    pub offset: f32,
    pub residual: bool,
    /// Of inputs, and of outputs that take no input's place.
    pub inputs: Layout,
    pub outputs: Layout,
    pub dx: bool,
    pub dw: Dw,
    /// Whether rstd is kept.
    pub rstd: bool,
    pub in_place: InPlace,
    pub seed: u64,
}

/// The bytes of everything that was written, gaps included.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    h: Vec<u8>,
    y: Vec<u8>,
    rstd: Vec<u8>,
    dx: Vec<u8>,
    dw: Vec<u8>,
    dw_bf16: Vec<u8>,
}

type Alloc<'a> = &'a dyn Fn(&str, usize) -> Box<dyn Memory>;

/// A value of a type.
fn encode(value: f32, dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        Dtype::F32 => value.to_le_bytes().to_vec(),
    }
}

impl Setup {
    fn rows(&self) -> u64 {
        self.tokens * self.heads
    }

    fn operator(&self) -> RmsNorm {
        let builder = RmsNorm::builder(self.hidden).input(self.input);
        let builder = match self.weight {
            Some(weight) => builder.weight(weight).weight_offset(self.offset),
            None => builder.no_weight(),
        };
        builder.build().expect("an operator")
    }

    /// Rows in the layout, NaN between them; the same values in every layout.
    fn matrix(&self, name: u64, layout: Layout) -> Vec<u8> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ name);
        let size = self.input.bytes() as usize;
        let mut bytes = encode(f32::NAN, self.input).repeat(layout.elements(self));
        for row in 0..self.rows() {
            let scale = match rng.random_range(0..14) {
                0 => 0.0,
                1 if self.input != Dtype::F16 => 1e30,
                2 if self.input != Dtype::F16 => 1e-36,
                3 => 40.0,
                _ => 1.0,
            };
            let start = layout.start(self, row);
            for column in 0..self.hidden as usize {
                let value = encode(rng.random_range(-1f32..1.0) * scale, self.input);
                let at = (start + column) * size;
                bytes[at..at + size].copy_from_slice(&value);
            }
        }
        bytes
    }

    fn weights(&self) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ 99);
        let mut weight = |_| match rng.random_range(0..20) {
            0 => -0.0,
            _ => rng.random_range(-1f32..2.0),
        };
        (0..self.hidden).map(&mut weight).collect()
    }

    fn old_dw(&self) -> Vec<u8> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ 77);
        let old = |_| rng.random_range(-1f32..1.0) * 2f32.powi(rng.random_range(-20..8));
        (0..self.hidden)
            .map(old)
            .flat_map(f32::to_le_bytes)
            .collect()
    }

    fn run(&self, backend: &dyn Backend, alloc: Alloc<'_>) -> Written {
        let op = self.operator();
        let filled = |name: &str, bytes: &[u8]| {
            let memory = alloc(name, bytes.len());
            memory.write(bytes);
            memory
        };
        let input = |name: &str, number| filled(name, &self.matrix(number, self.inputs));
        let output = |name: &str| {
            let bytes = self.outputs.elements(self) * self.input.bytes() as usize;
            (alloc(name, bytes), self.outputs)
        };
        let view = |memory: &dyn Memory, layout: Layout| layout.view(self, memory.address());
        let (x, residual) = (input("x", 1), input("residual", 2));
        let (dy, dh) = (input("dy", 3), input("dh", 4));
        let w = self.weights();
        let w: Vec<u8> = match self.weight {
            None => vec![],
            Some(dtype) => w.iter().flat_map(|&w| encode(w, dtype)).collect(),
        };
        let w = filled("w", &w);
        let w = self.weight.map(|dtype| VectorView {
            address: w.address(),
            dtype,
            len: self.hidden,
        });

        // A copy of x is worked on in place, for the backward reads x.
        let (x_copy, residual_copy) = (input("x copy", 1), input("residual copy", 2));
        let place = |memory| (memory, self.inputs);
        let (h, y, x_read, residual_read) = match (self.in_place, self.residual) {
            (InPlace::No, _) => (output("h"), output("y"), x, residual),
            (InPlace::First, _) => (output("h"), place(x_copy), x, residual),
            (InPlace::Second, true) => (place(x_copy), output("y"), x, residual),
            (InPlace::Second, false) => (output("h"), place(x_copy), x, residual),
            (InPlace::Residual, _) => (place(residual_copy), place(x_copy), x, residual),
        };
        let source = |memory: &dyn Memory, replaced: Option<&(Box<dyn Memory>, Layout)>| {
            replaced.map_or(view(memory, self.inputs), |(memory, layout)| {
                view(&**memory, *layout)
            })
        };
        let x_replaced = match (self.in_place, self.residual) {
            (InPlace::No, _) => None,
            (InPlace::Second, true) => Some(&h),
            _ => Some(&y),
        };
        let residual_replaced = (self.in_place == InPlace::Residual).then_some(&h);
        let rstd = alloc("rstd", 4 * self.rows() as usize);
        let kept = self
            .rstd
            .then(|| VectorView::f32(rstd.address(), self.rows()));
        let forward = ForwardArgs {
            x: source(&*x_read, x_replaced),
            residual: self
                .residual
                .then(|| source(&*residual_read, residual_replaced)),
            w,
            h: self.residual.then(|| view(&*h.0, h.1)),
            y: view(&*y.0, y.1),
            rstd: kept,
        };
        // SAFETY: the buffers live until the results are read.
        unsafe { backend.forward(&op, &forward) }.expect("forward");
        let y_bytes = y.0.read();
        let h_bytes = if self.residual { h.0.read() } else { vec![] };

        let x = if self.residual {
            h
        } else {
            (x_read, self.inputs)
        };
        let dx = match self.in_place {
            _ if !self.dx => None,
            InPlace::No => Some(output("dx")),
            InPlace::First => None,
            InPlace::Second => None,
            InPlace::Residual => None,
        };
        let (dy_view, x_view) = (view(&*dy, self.inputs), view(&*x.0, x.1));
        let dh_view = self.residual.then(|| view(&*dh, self.inputs));
        let dx_view = match (self.in_place, &dx) {
            _ if !self.dx => None,
            (InPlace::No, Some((memory, layout))) => Some(view(&**memory, *layout)),
            (InPlace::Second, _) => Some(x_view),
            (InPlace::Residual, _) => dh_view,
            _ => Some(dy_view),
        };
        let dw = alloc("dw", 4 * self.hidden as usize);
        if self.dw.accumulates() {
            dw.write(&self.old_dw());
        }
        let dw_bf16 = alloc("dw_bf16", 2 * self.hidden as usize);
        let mut backward = BackwardArgs {
            dy: dy_view,
            x: x_view,
            dh: dh_view,
            w,
            rstd: kept,
            dx: dx_view,
            dw: self.dw.output(
                VectorView::f32(dw.address(), self.hidden),
                VectorView::bf16(dw_bf16.address(), self.hidden),
            ),
            workspace: Workspace {
                address: 0,
                bytes: 0,
            },
        };
        let form = BackwardForm::of(&backward);
        let plan = plan::backward(&op, self.rows(), form, backend.properties()).expect("a plan");
        let workspace = alloc("workspace", plan.workspace_bytes as usize);
        backward.workspace = Workspace {
            address: workspace.address(),
            bytes: plan.workspace_bytes,
        };
        // SAFETY: as above.
        unsafe { backend.backward(&op, &backward) }.expect("backward");
        let dx_bytes = match (self.in_place, dx) {
            _ if !self.dx => vec![],
            (InPlace::No, Some((memory, _))) => memory.read(),
            (InPlace::Second, _) => x.0.read(),
            (InPlace::Residual, _) => dh.read(),
            _ => dy.read(),
        };
        let wide = !matches!(self.dw, Dw::None | Dw::Bf16);
        let narrow = !matches!(self.dw, Dw::None | Dw::Overwritten | Dw::Accumulated);
        Written {
            h: h_bytes,
            y: y_bytes,
            rstd: if self.rstd { rstd.read() } else { vec![] },
            dx: dx_bytes,
            dw: if wide { dw.read() } else { vec![] },
            dw_bf16: if narrow { dw_bf16.read() } else { vec![] },
        }
    }

    pub fn golden(&self) -> Written {
        self.run(&Cpu, &|_, bytes| Box::new(HostMemory::new(bytes)))
    }

    pub fn simulated(&self, sim: &Sim) -> Written {
        self.run(sim, &|name, bytes| Box::new(sim.alloc(name, bytes)))
    }

    /// Asserts that the simulated kernels wrote the golden bytes.
    pub fn check(&self, sim: &Sim) {
        let (golden, simulated) = (self.golden(), self.simulated(sim));
        assert!(golden.h == simulated.h, "{self:?}: h");
        assert!(golden.y == simulated.y, "{self:?}: y");
        assert!(golden.rstd == simulated.rstd, "{self:?}: rstd");
        assert!(golden.dx == simulated.dx, "{self:?}: dx");
        assert!(golden.dw == simulated.dw, "{self:?}: dw");
        assert!(golden.dw_bf16 == simulated.dw_bf16, "{self:?}: dw_bf16");
    }

    /// The kernels that the call launches.
    pub fn kernels(&self, device: &DeviceProperties) -> Vec<&'static str> {
        let op = self.operator();
        let memory = Layout::view;
        let (input, output) = (
            memory(self.inputs, self, 256),
            memory(self.outputs, self, 256),
        );
        let forward = ForwardForm {
            residual: self.residual,
            ..ForwardForm::of(&ForwardArgs {
                x: input,
                residual: None,
                w: None,
                h: None,
                y: if self.in_place == InPlace::No {
                    output
                } else {
                    input
                },
                rstd: None,
            })
        };
        let dx = match self.in_place {
            InPlace::No => RowsView {
                address: 1 << 40,
                ..output
            },
            _ => input,
        };
        let backward = BackwardForm::of(&BackwardArgs {
            dy: input,
            x: input,
            dh: self.residual.then_some(input),
            w: None,
            rstd: self.rstd.then(|| VectorView::f32(256, self.rows())),
            dx: self.dx.then_some(dx),
            dw: self.dw.output(
                VectorView::f32(256, self.hidden),
                VectorView::bf16(256, self.hidden),
            ),
            workspace: Workspace {
                address: 0,
                bytes: 0,
            },
        });
        let forward = plan::forward(&op, self.rows(), forward, device).expect("a plan");
        let backward = plan::backward(&op, self.rows(), backward, device).expect("a plan");
        let launches = [
            forward.launch,
            backward.statistics,
            backward.main,
            backward.reduce,
        ];
        launches
            .into_iter()
            .flatten()
            .map(|launch| launch.kernel.name)
            .collect()
    }

    /// Asserts that the golden bytes are those of the plain call: everything wanted and in its own
    /// place, in packed rows, with an FP32 weight that has the offset in it.
    pub fn check_against_plain(&self) {
        let plain = Plain::of(self);
        let written = self.golden();
        let (moved, layout) = (self.in_place != InPlace::No, |moved: bool| {
            if moved { self.inputs } else { self.outputs }
        });
        let h_moved = matches!(self.in_place, InPlace::Second | InPlace::Residual);
        let y_moved = moved && !(self.in_place == InPlace::Second && self.residual);
        // dx over x lies where h was stored.
        let dx_layout = match self.in_place {
            InPlace::Second if self.residual => layout(h_moved),
            _ => layout(moved),
        };
        if self.residual {
            self.same_rows("h", &written.h, layout(h_moved), &plain.h);
        }
        self.same_rows("y", &written.y, layout(y_moved), &plain.y);
        if self.dx {
            self.same_rows("dx", &written.dx, dx_layout, &plain.dx);
        }
        let bytes = |values: &[f32]| -> Vec<u8> {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
        if self.rstd {
            assert!(written.rstd == bytes(&plain.rstd), "{self:?}: rstd");
        }
        if !written.dw.is_empty() && !self.dw.accumulates() {
            assert!(written.dw == bytes(&plain.dw), "{self:?}: dw");
        }
        if !written.dw_bf16.is_empty() {
            let dw: Vec<f32> = if written.dw.is_empty() {
                plain.dw
            } else {
                written
                    .dw
                    .chunks(4)
                    .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                    .collect()
            };
            let narrow = |&dw: &f32| match dw.is_nan() {
                true => 0x7fffu16.to_le_bytes(),
                false => bf16::from_f32(dw).to_le_bytes(),
            };
            let narrow: Vec<u8> = dw.iter().flat_map(narrow).collect();
            assert!(written.dw_bf16 == narrow, "{self:?}: dw_bf16");
        }
    }

    /// Rows in a layout against packed rows; what is between them was not written.
    fn same_rows(&self, name: &str, bytes: &[u8], layout: Layout, packed: &[u8]) {
        let size = self.input.bytes() as usize;
        let row_bytes = self.hidden as usize * size;
        let mut rest = bytes.to_vec();
        for row in 0..self.rows() {
            let at = layout.start(self, row) * size;
            let expected = &packed[row as usize * row_bytes..][..row_bytes];
            assert!(
                bytes[at..at + row_bytes] == *expected,
                "{self:?}: {name}, row {row}"
            );
            rest[at..at + row_bytes].fill(0);
        }
        let nan = encode(f32::NAN, self.input);
        let between = rest.chunks(size).all(|gap| {
            gap == nan || gap.iter().all(|&byte| byte == 0xff) || gap.iter().all(|&byte| byte == 0)
        });
        assert!(between, "{self:?}: {name} was written between rows");
    }
}

/// What the plain call gives.
struct Plain {
    h: Vec<u8>,
    y: Vec<u8>,
    rstd: Vec<f32>,
    dx: Vec<u8>,
    dw: Vec<f32>,
}

impl Plain {
    fn of(setup: &Setup) -> Self {
        match setup.input {
            Dtype::Bf16 => Self::typed::<bf16>(setup),
            Dtype::F16 => Self::typed::<f16>(setup),
            Dtype::F32 => Self::typed::<f32>(setup),
        }
    }

    fn typed<E: cake_rmsnorm::Element>(setup: &Setup) -> Self {
        use cake_rmsnorm::golden::{Weight, backward_slices, forward_slices};
        let builder = RmsNorm::builder(setup.hidden).input(setup.input);
        let op = builder.weight(Dtype::F32).build().expect("an operator");
        let matrix = |name| -> Vec<E> {
            bytemuck::pod_collect_to_vec(&setup.matrix(name, Layout::Padded(0)))
        };
        let (x, residual, dy, dh) = (matrix(1), matrix(2), matrix(3), matrix(4));
        let w: Vec<f32> = match setup.weight {
            None => vec![1.0; setup.hidden as usize],
            Some(dtype) => {
                let stored = setup.weights().into_iter().map(|w| match dtype {
                    Dtype::Bf16 => bf16::from_f32(w).to_f32(),
                    Dtype::F16 => f16::from_f32(w).to_f32(),
                    Dtype::F32 => w,
                });
                stored
                    .map(|w| {
                        if setup.offset == 0.0 {
                            w
                        } else {
                            w + setup.offset
                        }
                    })
                    .collect()
            }
        };
        let residual = setup.residual.then_some(&residual[..]);
        let forward = forward_slices(&op, &x, residual, Weight::F32(&w)).expect("forward");
        let x = forward.h.as_ref().unwrap_or(&x);
        let dh = setup.residual.then_some(&dh[..]);
        let backward = backward_slices(&op, &dy, x, dh, Weight::F32(&w), &forward.rstd);
        let backward = backward.expect("backward");
        let bytes = |values: &[E]| bytemuck::cast_slice(values).to_vec();
        Self {
            h: forward.h.as_deref().map(bytes).unwrap_or_default(),
            y: bytes(&forward.y),
            rstd: forward.rstd,
            dx: bytes(&backward.dx),
            dw: backward.dw,
        }
    }
}
