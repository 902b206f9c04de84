//! Lesson 6: a tiny transformer that learns the letters of a text, on the CPU, twice. Both runs give
//! the same losses, to the last bit.
//!
//! ```sh
//! cargo run --release --manifest-path candle/Cargo.toml --example 06_candle_training
//! ```

use cake_rmsnorm_candle::{RmsNorm, rms_norm};
use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::{
    AdamW, Embedding, Linear, Optimizer, VarBuilder, VarMap, embedding, linear_no_bias, loss, ops,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const TEXT: &str = include_str!("../src/lib.rs");
const LETTERS: usize = 128;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const CONTEXT: usize = 32;
const BATCH: usize = 8;
const STEPS: usize = 120;

/// Attention and a feed-forward part. Each adds to the stream of residuals, so each begins with the
/// residual form of the norm: it adds what the part before computed, and normalises the sum.
struct Layer {
    before_attention: RmsNorm,
    qkv: Linear,
    out: Linear,
    before_feed_forward: RmsNorm,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            before_attention: rms_norm(WIDTH, 1e-6, vb.pp("before_attention"))?,
            qkv: linear_no_bias(WIDTH, 3 * WIDTH, vb.pp("qkv"))?,
            out: linear_no_bias(WIDTH, WIDTH, vb.pp("out"))?,
            before_feed_forward: rms_norm(WIDTH, 1e-6, vb.pp("before_feed_forward"))?,
            up: linear_no_bias(WIDTH, 4 * WIDTH, vb.pp("up"))?,
            down: linear_no_bias(4 * WIDTH, WIDTH, vb.pp("down"))?,
        })
    }

    /// The stream, and what is still to be added to it.
    fn forward(&self, x: &Tensor, residual: &Tensor, mask: &Tensor) -> Result<(Tensor, Tensor)> {
        let (y, residual) = self.before_attention.forward_residual(x, residual)?;
        let x = self
            .out
            .forward(&attention(&self.qkv.forward(&y)?, mask)?)?;
        let (y, residual) = self.before_feed_forward.forward_residual(&x, &residual)?;
        let x = self.down.forward(&ops::silu(&self.up.forward(&y)?)?)?;
        Ok((x, residual))
    }
}

fn attention(qkv: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let (batch, tokens, _) = qkv.dims3()?;
    let head = WIDTH / HEADS;
    let part = |index: usize| -> Result<Tensor> {
        let part = qkv.narrow(D::Minus1, index * WIDTH, WIDTH)?;
        let heads = part.reshape((batch, tokens, HEADS, head))?;
        heads.transpose(1, 2)?.contiguous()
    };
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let scores = (q.matmul(&k.t()?)? / (head as f64).sqrt())?.broadcast_add(mask)?;
    let mixed = ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
    mixed.transpose(1, 2)?.reshape((batch, tokens, WIDTH))
}

struct Model {
    letters: Embedding,
    positions: Tensor,
    layers: Vec<Layer>,
    last: RmsNorm,
    head: Linear,
    mask: Tensor,
}

impl Model {
    fn new(vb: VarBuilder<'_>) -> Result<Self> {
        let ahead = |i: usize| {
            if i % CONTEXT > i / CONTEXT {
                f32::NEG_INFINITY
            } else {
                0.0
            }
        };
        let mask: Vec<f32> = (0..CONTEXT * CONTEXT).map(ahead).collect();
        Ok(Self {
            letters: embedding(LETTERS, WIDTH, vb.pp("letters"))?,
            positions: vb.get((CONTEXT, WIDTH), "positions")?,
            layers: (0..LAYERS)
                .map(|i| Layer::new(vb.pp(format!("layer{i}"))))
                .collect::<Result<_>>()?,
            last: rms_norm(WIDTH, 1e-6, vb.pp("last"))?,
            head: linear_no_bias(WIDTH, LETTERS, vb.pp("head"))?,
            mask: Tensor::from_vec(mask, (CONTEXT, CONTEXT), vb.device())?,
        })
    }

    fn forward(&self, letters: &Tensor) -> Result<Tensor> {
        let mut residual = self.letters.forward(letters)?;
        let mut x = self.positions.broadcast_as(residual.shape())?;
        for layer in &self.layers {
            (x, residual) = layer.forward(&x, &residual, &self.mask)?;
        }
        let (y, _) = self.last.forward_residual(&x, &residual)?;
        self.head.forward(&y)
    }
}

/// Variables that start with the same values in every run: candle's own start is random.
fn start(variables: &VarMap) -> Result<usize> {
    let data = variables.data().lock().expect("nobody panicked");
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut count = 0;
    for name in names {
        let (variable, norm) = (
            &data[name],
            name.ends_with("weight") && data[name].rank() == 1,
        );
        let mut value = || {
            if norm {
                1.0
            } else {
                rng.random_range(-0.1f32..0.1)
            }
        };
        let values: Vec<f32> = (0..variable.elem_count()).map(|_| value()).collect();
        count += values.len();
        variable.set(&Tensor::from_vec(values, variable.shape(), &Device::Cpu)?)?;
    }
    Ok(count)
}

/// Trains from the start; the loss of each step.
fn train(announce: bool) -> Result<Vec<f32>> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let model = Model::new(vb)?;
    let parameters = start(&variables)?;
    if announce {
        println!("{parameters} parameters, {STEPS} steps of {BATCH} x {CONTEXT} letters");
    }
    let mut vars: Vec<_> = variables
        .data()
        .lock()
        .expect("nobody panicked")
        .clone()
        .into_iter()
        .collect();
    vars.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut optimizer = AdamW::new_lr(vars.into_iter().map(|(_, var)| var).collect(), 3e-3)?;
    let text: Vec<u32> = TEXT
        .bytes()
        .map(|byte| u32::from(byte) % LETTERS as u32)
        .collect();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let (mut letters, mut next) = (Vec::new(), Vec::new());
        for _ in 0..BATCH {
            let place = rng.random_range(0..text.len() - CONTEXT - 1);
            letters.extend_from_slice(&text[place..place + CONTEXT]);
            next.extend_from_slice(&text[place + 1..place + CONTEXT + 1]);
        }
        let letters = Tensor::from_vec(letters, (BATCH, CONTEXT), &Device::Cpu)?;
        let next = Tensor::from_vec(next, BATCH * CONTEXT, &Device::Cpu)?;
        let logits = model
            .forward(&letters)?
            .reshape((BATCH * CONTEXT, LETTERS))?;
        let loss = loss::cross_entropy(&logits, &next)?;
        optimizer.backward_step(&loss)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    Ok(losses)
}

fn main() -> Result<()> {
    let losses = train(true)?;
    for (step, loss) in losses.iter().enumerate().step_by(20) {
        println!("step {step:3}  loss {loss:.4}");
    }
    let (first, last) = (losses[0], losses[STEPS - 1]);
    println!("step {:3}  loss {last:.4}", STEPS - 1);
    assert!(last < 0.7 * first, "the model learns: {first} to {last}");
    let again = train(false)?;
    let bits = |losses: &[f32]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&losses), bits(&again), "two runs differ");
    println!("a second run gives the same {STEPS} losses, to the last bit");
    Ok(())
}
