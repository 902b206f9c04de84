//! Operators on the CPU: bits against the golden implementation, gradients against FP64.

use cake_rmsnorm::compare::{Output, compare};
use cake_rmsnorm::gated::{self, GatedRmsNorm};
use cake_rmsnorm::golden::{self, backward_slices, forward_slices};
use cake_rmsnorm::reference::{self, from_elements, from_f32};
use cake_rmsnorm::{Dtype, Element};
use cake_rmsnorm_candle::ops::{GateOrder, Options, gated_rms_norm, rms_norm, rms_norm_residual};
use cake_rmsnorm_candle::rms_norm as layer;
use candle_core::{DType, Device, Module, Result, Tensor, Var, WithDType};
use candle_nn::{VarBuilder, VarMap};
use half::{bf16, f16};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const EPS: f32 = 1e-5;

/// Values between −2 and 2.
fn draw<E: Element>(seed: u64, count: usize) -> Vec<E> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut value = || E::from_f32(rng.random_range(-2.0..2.0));
    (0..count).map(|_| value()).collect()
}

fn variable<E: WithDType>(values: &[E], shape: &[usize]) -> Result<Var> {
    Var::from_slice(values, shape, &Device::Cpu)
}

fn values<E: WithDType>(tensor: &Tensor) -> Result<Vec<E>> {
    tensor.flatten_all()?.to_vec1()
}

/// The same bits, or a message that says where they differ.
fn assert_bits<E: Element>(what: &str, found: &[E], expected: &[E]) {
    let bits = |values: &[E]| bytemuck::cast_slice::<E, u8>(values).to_vec();
    assert_eq!(found.len(), expected.len(), "{what}");
    assert!(bits(found) == bits(expected), "{what} has other bits");
}

/// Sums y times dy, so that dy is the gradient of y.
fn backward(y: &Tensor, dy: &Tensor) -> Result<candle_core::backprop::GradStore> {
    (y.to_dtype(DType::F32)? * dy.to_dtype(DType::F32)?)?
        .sum_all()?
        .backward()
}

fn gradient(of: &Var, store: &candle_core::backprop::GradStore) -> Result<Tensor> {
    store
        .get(of)
        .cloned()
        .ok_or_else(|| candle_core::Error::msg("no gradient"))
}

fn golden_weight<W: Element>(w: &[W]) -> golden::Weight<'_> {
    match <W as Element>::DTYPE {
        Dtype::Bf16 => golden::Weight::Bf16(bytemuck::cast_slice(w)),
        Dtype::F16 => golden::Weight::F16(bytemuck::cast_slice(w)),
        Dtype::F32 => golden::Weight::F32(bytemuck::cast_slice(w)),
    }
}

fn plain<E: Element + WithDType, W: Element + WithDType>(shape: &[usize]) -> Result<()> {
    let hidden = shape[shape.len() - 1];
    let count = shape.iter().product();
    let (x, dy, w) = (
        draw::<E>(1, count),
        draw::<E>(2, count),
        draw::<W>(3, hidden),
    );
    let op = cake_rmsnorm::RmsNorm::builder(hidden as u64)
        .input(<E as Element>::DTYPE)
        .weight(<W as Element>::DTYPE)
        .eps(EPS)
        .build()
        .map_err(candle_core::Error::wrap)?;
    let expected =
        forward_slices(&op, &x, None, golden_weight(&w)).map_err(candle_core::Error::wrap)?;
    let gradients = backward_slices(&op, &dy, &x, None, golden_weight(&w), &expected.rstd);
    let gradients = gradients.map_err(candle_core::Error::wrap)?;

    let (x_var, w_var) = (variable(&x, shape)?, variable(&w, &[hidden])?);
    let y = rms_norm(&x_var, &w_var, EPS)?;
    assert_bits("y", &values::<E>(&y)?, &expected.y);
    let store = backward(&y, &Tensor::from_slice(&dy, shape, &Device::Cpu)?)?;
    let dx = values::<E>(&gradient(&x_var, &store)?)?;
    assert_bits("dx", &dx, &gradients.dx);
    let dw: Vec<W> = gradients.dw.iter().map(|&dw| W::from_f32(dw)).collect();
    assert_bits("dw", &values::<W>(&gradient(&w_var, &store)?)?, &dw);

    let w: Vec<f64> = from_elements(&w);
    let (x, dy, rstd) = (
        from_elements(&x),
        from_elements(&dy),
        from_f32(&expected.rstd),
    );
    let exact = reference::backward(&dy, &x, None, &w, &rstd, hidden);
    let exact = exact.map_err(candle_core::Error::wrap)?.input;
    let report = compare(Output::Dx, &dx, &exact.dx, Some(&exact.terms), None);
    assert!(report.map_err(candle_core::Error::wrap)?.ok());
    Ok(())
}

#[test]
fn plain_has_the_golden_bits() -> Result<()> {
    for shape in [&[3, 5, 64][..], &[7, 1000], &[333], &[2, 1, 4, 24]] {
        plain::<f32, f32>(shape)?;
        plain::<bf16, f32>(shape)?;
        plain::<bf16, bf16>(shape)?;
        plain::<f16, f16>(shape)?;
        plain::<f32, bf16>(shape)?;
    }
    Ok(())
}

/// Derivatives by central differences of the formulas in FP64.
#[test]
fn gradients_are_those_of_finite_differences() -> Result<()> {
    const ROWS: usize = 3;
    const HIDDEN: usize = 17;
    const STEP: f64 = 1e-6;
    let x = draw::<f32>(4, ROWS * HIDDEN);
    let (dy, w) = (draw::<f32>(5, x.len()), draw::<f32>(6, HIDDEN));
    let loss = |x: &[f64], w: &[f64]| {
        let forward = reference::forward(x, w, HIDDEN, f64::from(EPS)).expect("shapes fit");
        let terms = forward.y.iter().zip(&dy).map(|(y, dy)| y * f64::from(*dy));
        terms.sum::<f64>()
    };
    let (x64, w64) = (from_f32(&x), from_f32(&w));
    let moved = |values: &[f64], index: usize, by: f64| {
        let mut values = values.to_vec();
        values[index] += by;
        values
    };
    let (x_var, w_var) = (variable(&x, &[ROWS, HIDDEN])?, variable(&w, &[HIDDEN])?);
    let y = rms_norm(&x_var, &w_var, EPS)?;
    let store = backward(&y, &Tensor::from_slice(&dy, (ROWS, HIDDEN), &Device::Cpu)?)?;
    let close = |what: &str, found: f32, up: f64, down: f64| {
        let expected = (up - down) / (2.0 * STEP);
        let error = (f64::from(found) - expected).abs();
        assert!(error < 1e-5, "{what}: {found}, expected {expected}");
    };
    for (i, &dx) in values::<f32>(&gradient(&x_var, &store)?)?
        .iter()
        .enumerate()
    {
        let at = |by| loss(&moved(&x64, i, by), &w64);
        close("dx", dx, at(STEP), at(-STEP));
    }
    for (i, &dw) in values::<f32>(&gradient(&w_var, &store)?)?
        .iter()
        .enumerate()
    {
        let at = |by| loss(&x64, &moved(&w64, i, by));
        close("dw", dw, at(STEP), at(-STEP));
    }
    Ok(())
}

#[test]
fn the_residual_form_has_the_golden_bits() -> Result<()> {
    const SHAPE: (usize, usize) = (9, 96);
    let count = SHAPE.0 * SHAPE.1;
    let op = cake_rmsnorm::RmsNorm::builder(SHAPE.1 as u64)
        .input(Dtype::F32)
        .weight(Dtype::F32)
        .weight_offset(1.0)
        .build()
        .map_err(candle_core::Error::wrap)?;
    let [x, residual, dy, dh] = [7, 8, 9, 10].map(|seed| draw::<f32>(seed, count));
    let w = draw::<f32>(11, SHAPE.1);
    let weight = golden::Weight::F32(&w);
    let expected = forward_slices(&op, &x, Some(&residual), weight);
    let expected = expected.map_err(candle_core::Error::wrap)?;
    let h = expected.h.as_deref().unwrap_or_default();
    let gradients = backward_slices(&op, &dy, h, Some(&dh), weight, &expected.rstd);
    let gradients = gradients.map_err(candle_core::Error::wrap)?;

    let shape = [SHAPE.0, SHAPE.1];
    let (x, residual) = (variable(&x, &shape)?, variable(&residual, &shape)?);
    let w = variable(&w, &shape[1..])?;
    let options = Options {
        eps: 1e-6,
        weight_offset: 1.0,
    };
    let (y, sum) = rms_norm_residual(&x, &residual, &w, options)?;
    assert_bits("y", &values::<f32>(&y)?, &expected.y);
    assert_bits("h", &values::<f32>(&sum)?, h);
    let dy = Tensor::from_slice(&dy, SHAPE, &Device::Cpu)?;
    let dh = Tensor::from_slice(&dh, SHAPE, &Device::Cpu)?;
    let loss = ((&y * dy)?.sum_all()? + (&sum * dh)?.sum_all()?)?;
    let store = loss.backward()?;
    // In FP32 candle's addition of the two gradients of h is the kernels' last operation.
    assert_bits("dx", &values::<f32>(&gradient(&x, &store)?)?, &gradients.dx);
    let of_residual = values::<f32>(&gradient(&residual, &store)?)?;
    assert_bits("gradient of the residual", &of_residual, &gradients.dx);
    assert_bits("dw", &values::<f32>(&gradient(&w, &store)?)?, &gradients.dw);
    Ok(())
}

#[test]
fn the_gated_form_has_the_golden_bits() -> Result<()> {
    const SHAPE: (usize, usize, usize) = (5, 3, 40);
    let count = SHAPE.0 * SHAPE.1 * SHAPE.2;
    let [x, z, dy] = [12, 13, 14].map(|seed| draw::<bf16>(seed, count));
    let w = draw::<f32>(15, SHAPE.2);
    for order in [GateOrder::NormFirst, GateOrder::GateFirst] {
        let op = GatedRmsNorm::new(order, SHAPE.2 as u64, Dtype::F32, EPS);
        let op = op.map_err(candle_core::Error::wrap)?;
        let weight = golden::Weight::F32(&w);
        let expected = gated::forward_slices(&op, &x, &z, weight);
        let expected = expected.map_err(candle_core::Error::wrap)?;
        let rstd = Some(&expected.rstd[..]);
        let gradients = gated::backward_slices(&op, &dy, &x, &z, weight, rstd);
        let gradients = gradients.map_err(candle_core::Error::wrap)?;

        let shape = [SHAPE.0, SHAPE.1, SHAPE.2];
        let (x, z) = (variable(&x, &shape)?, variable(&z, &shape)?);
        let w = variable(&w, &shape[2..])?;
        let y = gated_rms_norm(&x, &z, &w, EPS, order)?;
        assert_bits("y", &values::<bf16>(&y)?, &expected.y);
        let store = backward(&y, &Tensor::from_slice(&dy, SHAPE, &Device::Cpu)?)?;
        assert_bits(
            "dx",
            &values::<bf16>(&gradient(&x, &store)?)?,
            &gradients.dx,
        );
        assert_bits(
            "dz",
            &values::<bf16>(&gradient(&z, &store)?)?,
            &gradients.dz,
        );
        assert_bits("dw", &values::<f32>(&gradient(&w, &store)?)?, &gradients.dw);
    }
    Ok(())
}

/// Wherever rows lie, and whether they are read in place or copied, nothing changes.
#[test]
fn layouts_do_not_matter() -> Result<()> {
    let all = variable(&draw::<bf16>(16, 6 * 7 * 80), &[6, 7, 80])?;
    let w = variable(&draw::<bf16>(17, 40)[..32], &[32])?;
    let narrow = |tensor: &Tensor| tensor.narrow(2, 8, 32);
    let odd = |tensor: &Tensor| tensor.narrow(2, 3, 32);
    let turned = |tensor: &Tensor| tensor.transpose(0, 1)?.narrow(2, 8, 32);
    let strided = |tensor: &Tensor| {
        let pairs = tensor.reshape((6, 7, 40, 2))?;
        pairs.narrow(2, 0, 32)?.narrow(3, 1, 1)?.squeeze(3)
    };
    let once = |tensor: &Tensor| {
        tensor
            .narrow(0, 0, 1)?
            .narrow(2, 8, 32)?
            .broadcast_as((6, 7, 32))
    };
    type View<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
    let views: [View<'_>; 5] = [&narrow, &odd, &turned, &strided, &once];
    for (index, view) in views.into_iter().enumerate() {
        let run = |copied: bool| -> Result<Vec<Vec<bf16>>> {
            let mut x = view(&all)?;
            if copied {
                x = x.force_contiguous()?;
            }
            let y = rms_norm(&x, &w, EPS)?;
            let (sum, h) = rms_norm_residual(&x, &x, &w, EPS)?;
            let gate = view(&all)?.affine(0.5, 0.25)?;
            let gated = gated_rms_norm(&x, &gate, &w, EPS, GateOrder::NormFirst)?;
            // A gradient that is no packed matrix either.
            let loss = (y.narrow(1, 1, 5)?.sqr()?.sum_all()? + (sum + gated)?.sqr()?.sum_all()?)?;
            let store = (loss + h.sum_all()?)?.backward()?;
            let (dx, dw) = (gradient(&all, &store)?, gradient(&w, &store)?);
            [&y, &h, &dx, &dw].map(values::<bf16>).into_iter().collect()
        };
        assert!(run(false)? == run(true)?, "view {index}");
    }
    Ok(())
}

#[test]
fn the_layer_loads_and_stands_in_for_candle_s() -> Result<()> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let ours = layer(48, 1e-5, vb.pp("norm"))?;
    assert_eq!(values::<f32>(ours.weight())?, [1.0; 48]);
    let weight = Tensor::from_slice(&draw::<f32>(18, 48), 48, &Device::Cpu)?;
    variables.data().lock().expect("no panic")["norm.weight"].set(&weight)?;
    // The same variable under the same name.
    let theirs = candle_nn::rms_norm(48, 1e-5, vb.pp("norm"))?;
    let x = Tensor::from_slice(&draw::<f32>(19, 5 * 48), (5, 48), &Device::Cpu)?;
    let difference = (ours.forward(&x)? - theirs.forward(&x)?)?
        .abs()?
        .max_all()?;
    assert!(difference.to_scalar::<f32>()? < 1e-5);
    let centred = cake_rmsnorm_candle::RmsNorm::new((weight - 1.0)?, 1e-5);
    let difference = (centred.with_weight_offset(1.0).forward(&x)? - theirs.forward(&x)?)?;
    assert!(difference.abs()?.max_all()?.to_scalar::<f32>()? < 1e-5);
    Ok(())
}

#[test]
fn only_what_is_tracked_is_computed() -> Result<()> {
    let x = draw::<f32>(20, 64);
    let (x_var, w) = (variable(&x, &[2, 32])?, draw::<f32>(21, 32));
    let w = Tensor::from_slice(&w, 32, &Device::Cpu)?;
    let store = rms_norm(&x_var, &w, EPS)?.sqr()?.sum_all()?.backward()?;
    assert!(store.get(&x_var).is_some() && store.get(&w).is_none());
    let (x, w) = (x_var.detach(), Var::from_tensor(&w)?);
    let store = rms_norm(&x, &w, EPS)?.sqr()?.sum_all()?.backward()?;
    assert!(store.get(&w).is_some() && store.get(&x).is_none());
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_by_name() -> Result<()> {
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu);
    let x = zeros(&[4, 16], DType::F32)?;
    let message = |result: Result<Tensor>| {
        result
            .map(|_| "accepted".to_owned())
            .unwrap_or_else(|e| e.to_string())
    };
    let narrow = message(rms_norm(&x, &zeros(&[15], DType::F32)?, EPS));
    assert!(
        narrow.contains("shape mismatch") && narrow.contains("rms-norm"),
        "{narrow}"
    );
    let wide = message(rms_norm(
        &x.to_dtype(DType::F64)?,
        &zeros(&[16], DType::F32)?,
        EPS,
    ));
    assert!(wide.contains("F64") && wide.contains("rms-norm"), "{wide}");
    let w = zeros(&[16], DType::F32)?;
    let other = rms_norm_residual(&x, &zeros(&[4, 16], DType::BF16)?, &w, EPS);
    assert!(message(other.map(|(y, _)| y)).contains("dtype mismatch"));
    let gated = message(gated_rms_norm(&x, &x, &w, EPS, GateOrder::NormFirst));
    assert!(gated.contains("FP32, accepted is BF16"), "{gated}");
    let eps = message(rms_norm(&x, &w, -1.0));
    assert!(eps.contains("eps"), "{eps}");
    Ok(())
}
