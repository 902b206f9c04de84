//! RMSNorm in burn as a backend extension with a backward of its own, on the CPU backend `Flex`.
//! Outputs and gradients have the golden bits; a training loop run twice ends with the same weights.
//!
//! ```sh
//! cargo run --release --manifest-path examples/burn/Cargo.toml
//! ```
//!
//! Tensors are copied out of burn and into it again: its backends do not lend their memory.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension, try_read_sync,
};
use burn::tensor::{Device, Tensor, TensorData};
use cake_rmsnorm::golden::{Weight, backward_slices, forward_slices};
use cake_rmsnorm::{Dtype, RmsNorm};

/// What is added to burn's backends.
#[backend_extension(Flex, Autodiff)]
pub trait RmsNormOps: Backend {
    /// norm(x)·w over the last dimension; FP32.
    fn rms_norm(x: FloatTensor<Self>, w: FloatTensor<Self>, eps: f32) -> FloatTensor<Self>;
}

impl RmsNormOps for Flex {
    fn rms_norm(x: FloatTensor<Self>, w: FloatTensor<Self>, eps: f32) -> FloatTensor<Self> {
        forward::<Self>(x, w, eps).0
    }
}

impl<B: RmsNormOps, C: CheckpointStrategy> RmsNormOps for Autodiff<B, C> {
    fn rms_norm(x: FloatTensor<Self>, w: FloatTensor<Self>, eps: f32) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Norm;

        impl<B: Backend> Backward<B, 2> for Norm {
            /// x, w and rstd of the forward; eps.
            type State = (FloatTensor<B>, FloatTensor<B>, Vec<f32>, f32);

            fn backward(
                self,
                ops: Ops<Self::State, 2>,
                grads: &mut Gradients,
                _: &mut Checkpointer,
            ) {
                let (x, w, rstd, eps) = ops.state;
                let dy = grads.consume::<B>(&ops.node);
                let (dx, dw) = backward::<B>(dy, x, w, &rstd, eps);
                let [of_x, of_w] = ops.parents;
                if let Some(node) = of_x {
                    grads.register::<B>(node.id, dx);
                }
                if let Some(node) = of_w {
                    grads.register::<B>(node.id, dw);
                }
            }
        }

        let ((x, x_node), (w, w_node)) = (x.into_parts(), w.into_parts());
        let (y, rstd) = forward::<B>(x.clone(), w.clone(), eps);
        match Norm
            .prepare::<C>([x_node, w_node])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prepared) => prepared.finish((x, w, rstd, eps), y),
            OpsKind::UnTracked(prepared) => prepared.finish(y),
        }
    }
}

/// The operator on burn's tensors.
pub fn rms_norm<const D: usize>(x: Tensor<D>, w: Tensor<1>, eps: f32) -> Tensor<D> {
    let y = <Dispatch as RmsNormOps>::rms_norm(x.into_dispatch(), w.into_dispatch(), eps);
    Tensor::from_dispatch(y)
}

fn forward<B: Backend>(
    x: FloatTensor<B>,
    w: FloatTensor<B>,
    eps: f32,
) -> (FloatTensor<B>, Vec<f32>) {
    let (shape, device) = (x.shape(), x.device());
    let (x, w) = (values::<B>(x), values::<B>(w));
    let forward = forward_slices(&operator(w.len(), eps), &x, None, Weight::F32(&w));
    let forward = forward.expect("x is whole rows of w's length");
    let y = B::float_from_data(TensorData::new(forward.y, shape), &device);
    (y, forward.rstd)
}

fn backward<B: Backend>(
    dy: FloatTensor<B>,
    x: FloatTensor<B>,
    w: FloatTensor<B>,
    rstd: &[f32],
    eps: f32,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let (x_shape, w_shape, device) = (x.shape(), w.shape(), x.device());
    let (dy, x, w) = (values::<B>(dy), values::<B>(x), values::<B>(w));
    let op = operator(w.len(), eps);
    let gradients = backward_slices(&op, &dy, &x, None, Weight::F32(&w), rstd);
    let gradients = gradients.expect("shapes are the forward's");
    let dx = B::float_from_data(TensorData::new(gradients.dx, x_shape), &device);
    let dw = B::float_from_data(TensorData::new(gradients.dw, w_shape), &device);
    (dx, dw)
}

fn operator(hidden: usize, eps: f32) -> RmsNorm {
    let op = RmsNorm::builder(hidden as u64)
        .input(Dtype::F32)
        .weight(Dtype::F32);
    op.eps(eps)
        .build()
        .expect("hidden size and eps are supported")
}

/// The elements, in order.
fn values<B: Backend>(tensor: FloatTensor<B>) -> Vec<f32> {
    let data = try_read_sync(B::float_into_data(tensor)).expect("a CPU backend answers at once");
    vec(data.expect("the tensor was computed"))
}

fn vec(data: TensorData) -> Vec<f32> {
    data.try_into_vec().expect("FP32")
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn main() {
    const SHAPE: [usize; 3] = [4, 5, 96];
    let count = SHAPE.iter().product::<usize>();
    let number = |i: usize| (i * 7919 % 2003) as f32 / 1001.0 - 1.0;
    let x: Vec<f32> = (0..count).map(number).collect();
    let dy: Vec<f32> = x.iter().rev().copied().collect();
    let w: Vec<f32> = (0..SHAPE[2]).map(|i| 1.0 + 0.1 * number(i)).collect();

    let device = Device::flex().autodiff();
    let tensor =
        |values: &[f32]| Tensor::<3>::from_data(TensorData::new(values.to_vec(), SHAPE), &device);
    let weight =
        |values: Vec<f32>| Tensor::<1>::from_data(TensorData::new(values, [SHAPE[2]]), &device);

    // The golden bits, forwards and backwards.
    let (xt, wt) = (tensor(&x).require_grad(), weight(w.clone()).require_grad());
    let y = rms_norm(xt.clone(), wt.clone(), 1e-6);
    let op = operator(SHAPE[2], 1e-6);
    let expected = forward_slices(&op, &x, None, Weight::F32(&w)).expect("shapes fit");
    assert_eq!(bits(&vec(y.clone().into_data())), bits(&expected.y));
    let gradients = (y * tensor(&dy)).sum().backward();
    let golden =
        backward_slices(&op, &dy, &x, None, Weight::F32(&w), &expected.rstd).expect("shapes fit");
    let of_x = xt.grad(&gradients).expect("x is tracked");
    let of_w = wt.grad(&gradients).expect("w is tracked");
    assert_eq!(bits(&vec(of_x.into_data())), bits(&golden.dx));
    assert_eq!(bits(&vec(of_w.into_data())), bits(&golden.dw));
    println!("y, dx and dw have the golden bits");

    // w learns what another weight does; twice.
    let target = rms_norm(tensor(&x), weight(w), 1e-6);
    let train = || {
        let mut learned = weight(vec![0.5; SHAPE[2]]);
        for _ in 0..100 {
            let w = learned.clone().require_grad();
            let loss = (rms_norm(tensor(&x), w.clone(), 1e-6) - target.clone())
                .powi_scalar(2)
                .sum();
            let dw = w.grad(&loss.backward()).expect("w is tracked");
            learned = Tensor::from_inner(learned.inner() - dw * (0.2 / 20.0));
        }
        vec(learned.into_data())
    };
    let (first, second) = (train(), train());
    assert_eq!(bits(&first), bits(&second));
    println!("100 steps twice: the same weights, w[0] = {}", first[0]);
}
