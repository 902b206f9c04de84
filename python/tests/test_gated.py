"""gated_rms_norm on the CPU."""

import pytest
import reference
import torch
from cake_rmsnorm import _launch, gated_rms_norm
from test_functional import random, same

BF16 = torch.bfloat16


def inputs(*shape, weight_type=torch.float32):
    x, z, dy = (random(*shape, dtype=BF16, seed=seed) for seed in range(3))
    return x, z, random(shape[-1], dtype=weight_type, seed=3), dy


def run(x, z, weight, dy, **options):
    leaves = [t.detach().requires_grad_() for t in (x, z, weight)]
    y = gated_rms_norm(*leaves, 1e-5, **options)
    y.backward(dy)
    return [y.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("order", ["norm_first", "gate_first"])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("weight_type", [torch.float32, BF16])
def test_fp64(order, groups, weight_type):
    x, z, weight, dy = inputs(30, 64, weight_type=weight_type)
    y, dx, dz, dw = run(x, z, weight, dy, order=order, groups=groups)
    assert dw.dtype == weight_type
    again, rstd = _launch.gated_forward(x, z, weight, 1e-5, order, groups, True)
    assert same(again, y)
    eps = float(torch.tensor(1e-5))
    reference.check_gated(x, z, weight, eps, order, groups, dy, y, rstd, dx, dz, dw)


@pytest.mark.parametrize("order", ["norm_first", "gate_first"])
def test_the_reference_has_the_gradients_of_its_formula(order):
    """What check_gated writes out is the derivative of what reference.gated says."""
    x, z, weight, dy = (t.to(torch.float64) for t in inputs(5, 16))
    leaves = [t.requires_grad_() for t in (x, z, weight)]
    torch.autograd.gradcheck(lambda *leaves: reference.gated(*leaves, 1e-5, order, 2), leaves)
    y = reference.gated(*leaves, 1e-5, order, 2)
    y.backward(dy)
    u = x * z * torch.sigmoid(z) if order == "gate_first" else x
    rstd = torch.rsqrt(u.unflatten(-1, (2, -1)).pow(2).mean(-1) + 1e-5)
    plain = [t.detach() for t in (y, rstd, x.grad, z.grad, weight.grad)]
    inputs_alone = [t.detach() for t in (x, z, weight)]
    reference.check_gated(*inputs_alone, 1e-5, order, 2, dy, *plain)


def test_heads_in_a_wider_buffer():
    x, z, weight, dy = inputs(6, 4, 32)
    buffer = torch.full((6, 10, 32), float("nan"), dtype=BF16)
    buffer[:, 2:6], buffer[:, 6:] = x, z
    packed, strided = run(x, z, weight, dy), run(buffer[:, 2:6], buffer[:, 6:], weight, dy)
    mixed = run(x, buffer[:, 6:], weight, dy)
    for a, b, c in zip(packed, strided, mixed):
        assert same(a, b) and same(a, c)


def test_the_weight_need_not_learn():
    x, z, weight, dy = inputs(6, 32)
    whole = run(x, z, weight, dy)
    x, z = x.requires_grad_(), z.requires_grad_()
    gated_rms_norm(x, z, weight, 1e-5).backward(dy)
    assert same(x.grad, whole[1]) and same(z.grad, whole[2]) and weight.grad is None
    x.grad = None
    gated_rms_norm(x, z, weight, 1e-5).sum().backward()
    with torch.no_grad():
        assert same(gated_rms_norm(x, z, weight, 1e-5), whole[0])


X, W = torch.ones(4, 16, dtype=BF16), torch.ones(16)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: gated_rms_norm(X.float(), X, W), TypeError, "x is torch.float32: accepted is bf"),
        (lambda: gated_rms_norm(X, X[:2], W), ValueError, "z has shape"),
        (lambda: gated_rms_norm(X, X, W[:8]), ValueError, "weight has shape"),
        (lambda: gated_rms_norm(X, X, W.half()), ValueError, "w is FP16, accepted is BF16"),
        (lambda: gated_rms_norm(X, X, W, groups=3), ValueError, "rows of 16 elements in 3 groups"),
        (lambda: gated_rms_norm(X, X, W, order="last"), ValueError, "order is 'last': accepted"),
        (
            lambda: gated_rms_norm(torch.ones(4, 20, dtype=BF16)[:, :16], X, W),
            ValueError,
            "x has a stride of 20: accepted are multiples of 8",
        ),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()
