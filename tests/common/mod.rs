//! Cases that run on the simulator and on the golden implementation.

use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cpu::Cpu;
use cake_rmsnorm::backend::sim::{Sim, SimBuffer};
use cake_rmsnorm::plan::Alignment;
use cake_rmsnorm::{BackwardArgs, Dtype, ForwardArgs, RmsNorm, RowsView, VectorView, Workspace};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// One shape with its data.
pub struct Case {
    pub op: RmsNorm,
    pub rows: u64,
    pub residual: bool,
    /// Elements between rows of every matrix.
    pub stride: u64,
    /// Whether every second row lies in the second half of a matrix: two rows a group.
    pub grouped: bool,
    /// Whether dx is written over dy.
    pub in_place: bool,
    x: Vec<u16>,
    dy: Vec<u16>,
    extra: Vec<u16>,
    w: Vec<u8>,
}

/// What a forward and a backward wrote.
#[derive(PartialEq, Eq, Debug)]
pub struct Outputs {
    pub h: Vec<u16>,
    pub y: Vec<u16>,
    pub rstd: Vec<u32>,
    pub dx: Vec<u16>,
    pub dw: Vec<u32>,
}

const POISON: u8 = 0xff;

fn bf16(value: f32) -> u16 {
    half::bf16::from_f32(value).to_bits()
}

/// Makes the second half of the rows repeat the first with most of dy negated: sums of dw nearly
/// cancel, so that their bits show in which order they were added.
fn mirror(x: &mut [u16], dy: &mut [u16], extra: &mut [u16], stride: usize) {
    let rows = x.len() / stride;
    let (half, rest) = (rows / 2 * stride, rows.div_ceil(2) * stride);
    x.copy_within(..half, rest);
    extra.copy_within(..half, rest);
    dy.copy_within(..half, rest);
    for (i, dy) in dy[rest..].iter_mut().enumerate() {
        if i % 5 != 0 {
            *dy ^= 0x8000;
        }
    }
}

impl Case {
    /// Ordinary rows with outlier, huge, tiny and zero rows among them, the second half of them
    /// mirroring the first; gaps between rows hold NaN.
    pub fn new(hidden: u64, rows: u64, weight: Dtype, residual: bool, gap: u64, seed: u64) -> Self {
        let op = RmsNorm::new(hidden, weight, 1e-6).expect("a supported shape");
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ (hidden << 32) ^ rows);
        let stride = hidden + gap;
        let mut matrix = |extreme: bool| {
            let mut values = vec![bf16(f32::NAN); (rows * stride) as usize];
            for row in values.chunks_mut(stride as usize) {
                let scale = match rng.random_range(0..12) {
                    0 if extreme => 1e30f32,
                    1 if extreme => 1e-36,
                    2 if extreme => 0.0,
                    3 => 40.0,
                    _ => 1.0,
                };
                for value in &mut row[..hidden as usize] {
                    let sum: f32 = (0..4).map(|_| rng.random_range(-1.0f32..1.0)).sum();
                    *value = bf16(sum * scale);
                }
            }
            values
        };
        let (mut x, mut dy, mut extra) = (matrix(true), matrix(false), matrix(true));
        mirror(&mut x, &mut dy, &mut extra, stride as usize);
        let weights: Vec<f32> = (0..hidden)
            .map(|_| rng.random_range(0.25f32..2.0))
            .collect();
        let w = match weight {
            Dtype::F32 => bytemuck::cast_slice(&weights).to_vec(),
            _ => {
                let bits: Vec<u16> = weights.iter().map(|&w| bf16(w)).collect();
                bytemuck::cast_slice(&bits).to_vec()
            }
        };
        Self {
            op,
            rows,
            residual,
            stride,
            grouped: false,
            in_place: false,
            x,
            dy,
            extra,
            w,
        }
    }

    /// The same memory as rows in groups of two; T is even.
    #[allow(dead_code)] // not every test has groups
    pub fn in_groups(self) -> Self {
        assert!(self.rows.is_multiple_of(2));
        Self {
            grouped: true,
            ..self
        }
    }

    /// The same with dx written over dy.
    #[allow(dead_code)] // not every test does
    pub fn in_place(self) -> Self {
        Self {
            in_place: true,
            ..self
        }
    }

    /// How the matrices lie.
    #[allow(dead_code)] // not every test plans
    pub fn alignment(&self) -> Alignment {
        if self.stride.is_multiple_of(8) || self.rows < 2 {
            Alignment::Vector
        } else {
            Alignment::Element
        }
    }

    /// Forward and backward on `backend`, whose memory `memory` gives out.
    pub fn run(
        &self,
        backend: &dyn Backend,
        memory: &dyn Fn(&str, usize) -> Box<dyn Memory>,
    ) -> Outputs {
        let input = |name: &str, bytes: &[u8]| {
            let buffer = memory(name, bytes.len());
            buffer.write(bytes);
            buffer
        };
        let matrix_bytes = (self.rows * self.stride * 2) as usize;
        let output = |name: &str, bytes: usize| memory(name, bytes);
        let x = input("x", bytemuck::cast_slice(&self.x));
        let dy = input("dy", bytemuck::cast_slice(&self.dy));
        let extra = input("residual", bytemuck::cast_slice(&self.extra));
        let w = input("w", &self.w);
        let h = output("h", matrix_bytes);
        let y = output("y", matrix_bytes);
        let dx = if self.in_place {
            input("dy, then dx", bytemuck::cast_slice(&self.dy))
        } else {
            output("dx", matrix_bytes)
        };
        let rstd = output("rstd", 4 * self.rows as usize);
        let dw = output("dw", 4 * self.op.hidden() as usize);

        let view = |buffer: &dyn Memory| {
            let packed = RowsView::packed(buffer.address(), self.rows, self.op.hidden());
            let stride = self.stride as i64;
            if self.grouped {
                let half = self.rows as i64 / 2 * stride;
                packed.with_stride(half).with_groups(2, stride)
            } else {
                packed.with_stride(stride)
            }
        };
        let weight = VectorView {
            address: w.address(),
            dtype: self.op.weight().expect("a weight"),
            len: self.op.hidden(),
        };
        let rstd_view = VectorView::f32(rstd.address(), self.rows);
        let forward = ForwardArgs {
            x: view(&*x),
            residual: self.residual.then(|| view(&*extra)),
            w: Some(weight),
            h: self.residual.then(|| view(&*h)),
            y: view(&*y),
            rstd: Some(rstd_view),
        };
        // SAFETY: the buffers live until the results are read.
        unsafe { backend.forward(&self.op, &forward) }.expect("forward");
        let bytes = self
            .op
            .workspace_bytes(self.rows, self.residual, backend.properties());
        let bytes = bytes.expect("a plan");
        let workspace = output("workspace", bytes as usize);
        let backward = BackwardArgs {
            dy: view(if self.in_place { &*dx } else { &*dy }),
            x: if self.residual { view(&*h) } else { view(&*x) },
            dh: self.residual.then(|| view(&*extra)),
            w: Some(weight),
            rstd: Some(rstd_view),
            dx: Some(view(&*dx)),
            dw: Some(VectorView::f32(dw.address(), self.op.hidden()).into()),
            workspace: Workspace {
                address: workspace.address(),
                bytes,
            },
        };
        // SAFETY: as above.
        unsafe { backend.backward(&self.op, &backward) }.expect("backward");
        let u16s = |buffer: &dyn Memory| bytemuck::pod_collect_to_vec(&buffer.read());
        let u32s = |buffer: &dyn Memory| bytemuck::pod_collect_to_vec(&buffer.read());
        Outputs {
            h: u16s(&*h),
            y: u16s(&*y),
            rstd: u32s(&*rstd),
            dx: u16s(&*dx),
            dw: u32s(&*dw),
        }
    }

    /// On the golden implementation.
    pub fn golden(&self) -> Outputs {
        self.run(&Cpu, &|_, bytes| Box::new(HostMemory::new(bytes)))
    }

    /// The kernels, under the simulator.
    pub fn simulated(&self, sim: &Sim) -> Outputs {
        self.run(sim, &|name, bytes| Box::new(sim.alloc(name, bytes)))
    }

    /// Asserts that the simulated kernels wrote the golden bytes, gaps included.
    pub fn check(&self, sim: &Sim, what: &str) {
        let (golden, simulated) = (self.golden(), self.simulated(sim));
        let shape = format!(
            "{what}: T={} H={} {:?} residual={} stride={}",
            self.rows,
            self.op.hidden(),
            self.op.weight(),
            self.residual,
            self.stride
        );
        assert!(golden.h == simulated.h, "{shape}: h");
        assert!(golden.y == simulated.y, "{shape}: y");
        assert!(golden.rstd == simulated.rstd, "{shape}: rstd");
        assert!(golden.dx == simulated.dx, "{shape}: dx");
        assert!(golden.dw == simulated.dw, "{shape}: dw");
    }
}

/// Memory of a backend.
pub trait Memory {
    fn address(&self) -> u64;
    fn write(&self, bytes: &[u8]);
    fn read(&self) -> Vec<u8>;
}

impl Memory for SimBuffer {
    fn address(&self) -> u64 {
        SimBuffer::address(self)
    }

    fn write(&self, bytes: &[u8]) {
        SimBuffer::write(self, bytes).expect("fits");
    }

    fn read(&self) -> Vec<u8> {
        SimBuffer::read(self).expect("known")
    }
}

/// Poisoned host memory, 16-byte aligned.
pub struct HostMemory(std::cell::UnsafeCell<Vec<u128>>, usize);

impl HostMemory {
    pub fn new(bytes: usize) -> Self {
        Self(
            vec![u128::from_ne_bytes([POISON; 16]); bytes.div_ceil(16)].into(),
            bytes,
        )
    }
}

impl Memory for HostMemory {
    fn address(&self) -> u64 {
        // SAFETY: a pointer is taken, no reference kept.
        unsafe { (*self.0.get()).as_mut_ptr().expose_provenance() as u64 }
    }

    fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.1);
        // SAFETY: as long as the buffer; nobody else accesses it now.
        unsafe {
            (*self.0.get())
                .as_mut_ptr()
                .cast::<u8>()
                .copy_from(bytes.as_ptr(), bytes.len());
        }
    }

    fn read(&self) -> Vec<u8> {
        // SAFETY: initialised; nobody else accesses it now.
        let words: &[u128] = unsafe { &*self.0.get() };
        bytemuck::cast_slice::<u128, u8>(words)[..self.1].to_vec()
    }
}
