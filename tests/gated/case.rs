//! Shapes with their data, run on any backend.

use crate::common::{HostMemory, Memory};
use cake_rmsnorm::backend::Backend;
use cake_rmsnorm::backend::cpu::Cpu;
use cake_rmsnorm::backend::sim::Sim;
use cake_rmsnorm::gated::{
    GateOrder, GatedBackwardArgs, GatedForwardArgs, GatedRmsNorm, HeadsView,
};
use cake_rmsnorm::plan::Spacing;
use cake_rmsnorm::{Dtype, Update, VectorView, Workspace};
use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What to make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    pub order: GateOrder,
    pub weight: Dtype,
    pub tokens: u64,
    pub heads: u64,
    pub hidden: u64,
    pub groups: u64,
    /// Whether rows have gaps between them, other ones in each tensor.
    pub gaps: bool,
    /// Whether the backward is given the forward's rstd.
    pub keep_rstd: bool,
    pub dw: Option<Update>,
}

impl Shape {
    /// Packed rows of one head and one group; dw overwritten, rstd recomputed.
    pub fn plain(order: GateOrder, weight: Dtype, rows: u64, hidden: u64) -> Self {
        Self {
            order,
            weight,
            tokens: rows,
            heads: 1,
            hidden,
            groups: 1,
            gaps: false,
            keep_rstd: false,
            dw: Some(Update::Overwrite),
        }
    }

    pub fn op(&self) -> GatedRmsNorm {
        GatedRmsNorm::with_groups(self.order, self.hidden, self.groups, self.weight, 1e-6)
            .expect("a supported shape")
    }

    /// How the rows of all tensors lie.
    pub fn spacing(&self) -> Spacing {
        if self.gaps && self.heads > 1 && self.tokens > 1 {
            Spacing::Any
        } else {
            Spacing::Even
        }
    }

    /// Strides of tensor number `tensor`.
    fn strides(&self, tensor: u64) -> (u64, u64) {
        if !self.gaps {
            return (self.heads * self.hidden, self.hidden);
        }
        let head = self.hidden + 8 * (1 + tensor % 3);
        (self.heads * head + 8 * (tensor % 4), head)
    }

    fn elements(&self, tensor: u64) -> usize {
        (self.tokens * self.strides(tensor).0) as usize
    }
}

/// A shape with its data.
pub struct Case {
    pub shape: Shape,
    pub op: GatedRmsNorm,
    /// dy, x and z, as they lie in memory.
    inputs: [Vec<u16>; 3],
    w: Vec<u8>,
    /// What dw holds before.
    old_dw: Vec<f32>,
}

/// Bytes that a forward and a backward wrote.
#[derive(PartialEq, Eq, Debug)]
pub struct Outputs {
    pub y: Vec<u8>,
    pub rstd: Vec<u8>,
    pub dx: Vec<u8>,
    pub dz: Vec<u8>,
    pub dw: Vec<u8>,
}

/// What rows hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Ordinary rows, and among them huge, tiny and zero ones.
    Rows,
    /// Besides, gates and elements that are zero, infinite or not a number.
    Special,
}

fn bits(value: f32) -> u16 {
    bf16::from_f32(value).to_bits()
}

impl Case {
    pub fn new(shape: Shape, kind: Kind, seed: u64) -> Self {
        let seed = seed ^ (shape.hidden << 32) ^ (shape.tokens << 8) ^ shape.heads;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let rows = shape.tokens * shape.heads;
        let mut inputs: [Vec<u16>; 3] =
            std::array::from_fn(|tensor| vec![bits(f32::NAN); shape.elements(tensor as u64)]);
        for row in 0..rows {
            // Sums of dw nearly cancel: the second half of the rows repeats the first with most of
            // dy negated, so that their bits show in which order they were added.
            let repeated = row >= rows.div_ceil(2);
            let huge = match rng.random_range(0..12) {
                0 => 1e30f32,
                1 => 1e-36,
                2 => 0.0,
                3 => 40.0,
                _ => 1.0,
            };
            for (tensor, input) in inputs.iter_mut().enumerate() {
                let start = |row: u64| {
                    let (token, head) = shape.strides(tensor as u64);
                    ((row / shape.heads) * token + (row % shape.heads) * head) as usize
                };
                let here = start(row);
                let width = shape.hidden as usize;
                if repeated {
                    let from = start(row - rows.div_ceil(2));
                    input.copy_within(from..from + width, here);
                    if tensor == 0 {
                        for (i, dy) in input[here..here + width].iter_mut().enumerate() {
                            *dy ^= if i % 5 == 0 { 0 } else { 0x8000 };
                        }
                    }
                    continue;
                }
                for value in &mut input[here..here + width] {
                    let sum: f32 = (0..4).map(|_| rng.random_range(-1.0f32..1.0)).sum();
                    *value = bits(match tensor {
                        0 => sum,
                        1 => sum * huge,
                        _ => sum * 3.0,
                    });
                    if kind == Kind::Special && rng.random_range(0..97) == 0 {
                        let specials = [
                            0.0,
                            -0.0,
                            f32::INFINITY,
                            f32::NEG_INFINITY,
                            f32::NAN,
                            100.0,
                            -100.0,
                            -87.5,
                            -1e30,
                            1e-40,
                        ];
                        *value = bits(specials[rng.random_range(0..specials.len())]);
                    }
                }
            }
        }
        let weights: Vec<f32> = (0..shape.hidden)
            .map(|_| rng.random_range(0.25f32..2.0))
            .collect();
        let w = match shape.weight {
            Dtype::F32 => bytemuck::cast_slice(&weights).to_vec(),
            _ => {
                let bits: Vec<u16> = weights.iter().map(|&w| bits(w)).collect();
                bytemuck::cast_slice(&bits).to_vec()
            }
        };
        let old_dw = (0..shape.hidden)
            .map(|_| rng.random_range(-1e-3f32..1e-3))
            .collect();
        Self {
            op: shape.op(),
            shape,
            inputs,
            w,
            old_dw,
        }
    }

    /// Forward and backward on `backend`, whose memory `memory` gives out.
    pub fn run(
        &self,
        backend: &dyn Backend,
        memory: &dyn Fn(&str, usize) -> Box<dyn Memory>,
    ) -> Outputs {
        let shape = &self.shape;
        let input = |name: &str, bytes: &[u8]| {
            let buffer = memory(name, bytes.len());
            buffer.write(bytes);
            buffer
        };
        let [dy, x, z] = [0, 1, 2].map(|tensor| {
            let name = ["dy", "x", "z"][tensor];
            input(name, bytemuck::cast_slice(&self.inputs[tensor]))
        });
        let w = input("w", &self.w);
        let [y, dx, dz] = [3, 4, 5].map(|tensor| memory("output", 2 * shape.elements(tensor)));
        let statistics = shape.tokens * shape.heads * shape.groups;
        let rstd = memory("rstd", 4 * statistics as usize);
        let dw = match shape.dw {
            Some(Update::Accumulate) => input("dw", bytemuck::cast_slice(&self.old_dw)),
            _ => memory("dw", 4 * shape.hidden as usize),
        };

        let view = |buffer: &dyn Memory, tensor: u64| {
            let (token, head) = shape.strides(tensor);
            HeadsView::packed(buffer.address(), shape.tokens, shape.heads, shape.hidden)
                .with_strides(token as i64, head as i64)
        };
        let weight = VectorView {
            address: w.address(),
            dtype: shape.weight,
            len: shape.hidden,
        };
        let rstd_view = VectorView::f32(rstd.address(), statistics);
        let forward = GatedForwardArgs {
            x: view(&*x, 1),
            z: view(&*z, 2),
            w: weight,
            y: view(&*y, 3),
            rstd: Some(rstd_view),
        };
        assert_eq!(Spacing::of(&forward), shape.spacing());
        // SAFETY: the buffers live until the results are read.
        unsafe { backend.gated_forward(&self.op, &forward) }.expect("forward");
        let rows = shape.tokens * shape.heads;
        let plan = self
            .op
            .backward_plan(rows, shape.dw.is_some(), backend.properties());
        let bytes = plan.expect("a plan").workspace_bytes;
        let workspace = memory("workspace", bytes as usize);
        let backward = GatedBackwardArgs {
            dy: view(&*dy, 0),
            x: view(&*x, 1),
            z: view(&*z, 2),
            w: weight,
            rstd: shape.keep_rstd.then_some(rstd_view),
            dx: view(&*dx, 4),
            dz: view(&*dz, 5),
            dw: shape
                .dw
                .map(|update| (VectorView::f32(dw.address(), shape.hidden), update)),
            workspace: Workspace {
                address: workspace.address(),
                bytes,
            },
        };
        // SAFETY: as above.
        unsafe { backend.gated_backward(&self.op, &backward) }.expect("backward");
        Outputs {
            y: y.read(),
            rstd: rstd.read(),
            dx: dx.read(),
            dz: dz.read(),
            dw: dw.read(),
        }
    }

    /// On the golden implementation.
    pub fn golden(&self) -> Outputs {
        self.run(&Cpu, &|_, bytes| Box::new(HostMemory::new(bytes)))
    }

    /// The kernels, under the simulator.
    pub fn simulated(&self, sim: &Sim) -> Outputs {
        // The simulator's buffers start with unknown bytes; gaps of outputs must stay as they were.
        self.run(sim, &|name, bytes| {
            let buffer = sim.alloc(name, bytes);
            if name == "output" || name == "dw" || name == "rstd" {
                buffer.write(&vec![0xff; bytes]).expect("fits");
            }
            Box::new(buffer)
        })
    }

    /// Asserts that the simulated kernels wrote the golden bytes, gaps included.
    pub fn check(&self, sim: &Sim) {
        let (golden, simulated) = (self.golden(), self.simulated(sim));
        let shape = self.shape;
        assert!(golden.rstd == simulated.rstd, "{shape:?}: rstd");
        assert!(golden.y == simulated.y, "{shape:?}: y");
        assert!(golden.dx == simulated.dx, "{shape:?}: dx");
        assert!(golden.dz == simulated.dz, "{shape:?}: dz");
        assert!(golden.dw == simulated.dw, "{shape:?}: dw");
    }
}
