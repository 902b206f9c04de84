//! The checkpointed step: three calls, in order.

use cake_rmsnorm::backend::cpu::Cpu;
use cake_rmsnorm::backend::null::Null;
use cake_rmsnorm::golden::{Weight, backward_slices, forward_slices};
use cake_rmsnorm::inputs::{Inputs, Spec};
use cake_rmsnorm::plan::DeviceProperties;
use cake_rmsnorm::{
    BackwardArgs, Dtype, Error, ForwardArgs, RmsNorm, RowsView, Step, VectorView, Workspace,
};
use half::bf16;

const ROWS: usize = 37;
const HIDDEN: usize = 64;

/// NaN in every element, at a multiple of 16 bytes.
fn poisoned(bytes: usize) -> Vec<u128> {
    vec![u128::MAX; bytes.div_ceil(16)]
}

fn operator() -> RmsNorm {
    RmsNorm::new(HIDDEN as u64, Dtype::F32, 1e-6).expect("a supported width")
}

/// Memory of a step in the residual form whose recomputed tensors lie elsewhere.
struct Memory {
    inputs: [Vec<u128>; 4],
    w: Vec<u128>,
    /// h, y, rstd of the forward, then of the recomputation.
    forward: [[Vec<u128>; 3]; 2],
    dx: Vec<u128>,
    dw: Vec<u128>,
}

impl Memory {
    fn new(inputs: &Inputs) -> Self {
        let copy = |bytes: &[u8]| {
            let mut memory = poisoned(bytes.len());
            bytemuck::cast_slice_mut(&mut memory)[..bytes.len()].copy_from_slice(bytes);
            memory
        };
        let matrix = |values: &[bf16]| copy(bytemuck::cast_slice(values));
        let optional = |values: &Option<Vec<bf16>>| matrix(values.as_deref().expect("residual"));
        let bytes = 2 * ROWS * HIDDEN;
        let outputs = || [poisoned(bytes), poisoned(bytes), poisoned(4 * ROWS)];
        Self {
            inputs: [
                matrix(&inputs.x),
                optional(&inputs.residual),
                matrix(&inputs.dy),
                optional(&inputs.dh),
            ],
            w: copy(inputs.w.as_bytes()),
            forward: [outputs(), outputs()],
            dx: poisoned(bytes),
            dw: poisoned(4 * HIDDEN),
        }
    }

    fn step(&mut self) -> Step {
        let (rows, hidden) = (ROWS as u64, HIDDEN as u64);
        let matrix = |memory: &mut Vec<u128>| {
            let address = memory.as_mut_ptr().expose_provenance() as u64;
            RowsView::packed(address, rows, hidden)
        };
        let vector = |memory: &mut Vec<u128>, len| {
            VectorView::f32(memory.as_mut_ptr().expose_provenance() as u64, len)
        };
        let [x, residual, dy, dh] = self.inputs.each_mut().map(matrix);
        let w = vector(&mut self.w, hidden);
        let [forward, recomputed] = self.forward.each_mut().map(|[h, y, rstd]| ForwardArgs {
            x,
            residual: Some(residual),
            w: Some(w),
            h: Some(matrix(h)),
            y: matrix(y),
            rstd: Some(vector(rstd, rows)),
        });
        let backward = BackwardArgs {
            dy,
            x: recomputed.h.expect("the residual form"),
            dh: Some(dh),
            w: Some(w),
            rstd: recomputed.rstd,
            dx: Some(matrix(&mut self.dx)),
            dw: Some(vector(&mut self.dw, hidden).into()),
            workspace: Workspace {
                address: 0,
                bytes: 0,
            },
        };
        Step {
            forward,
            recomputed,
            backward,
        }
    }
}

fn inputs() -> Inputs {
    let spec = Spec {
        rows: ROWS,
        hidden: HIDDEN,
        weight: Dtype::F32,
        residual: true,
        seed: 3,
    };
    spec.generate().expect("little memory")
}

#[test]
fn a_step_is_a_forward_twice_and_a_backward() {
    let (op, inputs) = (operator(), inputs());
    let mut memory = Memory::new(&inputs);
    let step = memory.step();
    step.prepare(&op, &Cpu).expect("nothing to load");
    // SAFETY: the memory lives, and nobody else uses it.
    unsafe { step.enqueue(&op, &Cpu) }.expect("a step");

    let w: Weight<'_> = inputs.w.as_golden();
    let forward = forward_slices(&op, &inputs.x, inputs.residual.as_deref(), w).expect("a forward");
    let h = forward.h.expect("the residual form");
    let dh = inputs.dh.as_deref();
    let backward = backward_slices(&op, &inputs.dy, &h, dh, w, &forward.rstd).expect("a backward");
    let bytes = |memory: &[u128], len: usize| bytemuck::cast_slice::<_, u8>(memory)[..len].to_vec();
    for [found_h, found_y, found_rstd] in &memory.forward {
        for (found, golden) in [
            (found_h, bytemuck::cast_slice::<_, u8>(&h)),
            (found_y, bytemuck::cast_slice(&forward.y)),
            (found_rstd, bytemuck::cast_slice(&forward.rstd)),
        ] {
            assert_eq!(bytes(found, golden.len()), golden);
        }
    }
    let dx: &[u8] = bytemuck::cast_slice(&backward.dx);
    assert_eq!(bytes(&memory.dx, dx.len()), dx);
    let dw: &[u8] = bytemuck::cast_slice(&backward.dw);
    assert_eq!(bytes(&memory.dw, dw.len()), dw);
}

#[test]
fn a_refused_call_ends_a_step() {
    let (op, inputs) = (operator(), inputs());
    let mut memory = Memory::new(&inputs);
    let good = memory.step();
    let launches = |step: &Step| {
        let null = Null::new(DeviceProperties::H200);
        step.prepare(&op, &null).expect("nothing to load");
        // SAFETY: nothing runs.
        let result = unsafe { step.enqueue(&op, &null) };
        (result, null.launches())
    };
    assert_eq!(launches(&good), (Ok(()), 3));
    let mut bad = good;
    bad.recomputed.y.address += 1;
    let (result, count) = launches(&bad);
    assert!(
        matches!(result, Err(Error::Misaligned { .. })),
        "{result:?}"
    );
    assert_eq!(count, 1);
}
