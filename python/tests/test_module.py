"""RMSNorm in the place of torch.nn.RMSNorm."""

import pytest
import torch
from cake_rmsnorm import RMSNorm, rms_norm
from test_functional import random, same


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [24, (24,), (4, 6), torch.Size([24])])
def test_state_dicts_go_both_ways(affine, shape):
    theirs = torch.nn.RMSNorm(shape, elementwise_affine=affine)
    ours = RMSNorm(shape, elementwise_affine=affine)
    if affine:
        torch.nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    torch.nn.RMSNorm(shape, elementwise_affine=affine).load_state_dict(ours.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert ours.normalized_shape == theirs.normalized_shape
    x = random(5, 4, 6) if shape == (4, 6) else random(5, 24)
    # Both are within 2 units of the exact value, and the roundings of theirs add up to more.
    found, other = ours(x), theirs(x)
    assert (found - other).abs().max() <= 8 * 2.0**-23 * other.abs().max()


def test_parameters():
    norm = RMSNorm(16, dtype=torch.bfloat16)
    assert same(norm.weight.detach(), torch.ones(16, dtype=torch.bfloat16))
    assert RMSNorm(16, elementwise_affine=False).weight is None
    centred = RMSNorm(16, zero_centered=True)
    assert same(centred.weight.detach(), torch.zeros(16))
    assert repr(norm) == "RMSNorm((16,), eps=None, elementwise_affine=True, zero_centered=False)"


def test_zero_centred_weights_are_added_to_one():
    norm = RMSNorm(16, eps=1e-6, zero_centered=True)
    torch.nn.init.normal_(norm.weight)
    x = random(3, 16)
    assert same(norm(x), rms_norm(x, norm.weight, 1e-6, weight_offset=1.0))
    assert not same(norm(x), rms_norm(x, norm.weight, 1e-6))
    plain = RMSNorm(16, elementwise_affine=False, zero_centered=True)
    assert same(plain(x), rms_norm(x))


@pytest.mark.parametrize("shape", [(24,), (4, 6)])
def test_residuals(shape):
    norm = RMSNorm(shape, eps=1e-6)
    x, residual = random(5, *shape, seed=1), random(5, *shape, seed=2)
    y, h = norm(x, residual)
    assert same(h, x + residual)
    assert same(y, norm(h))


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"x has shape \(5, 8\): accepted are those that end in"):
        RMSNorm(16)(torch.ones(5, 8))
    with pytest.raises(ValueError, match="accepted are those that end in"):
        RMSNorm((4, 6))(torch.ones(6))


def test_a_model_trains_to_the_same_bits():
    def train():
        torch.manual_seed(7)
        model = torch.nn.Sequential(
            torch.nn.Linear(12, 48), RMSNorm(48), torch.nn.Tanh(), torch.nn.Linear(48, 12)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        data, losses = random(64, 12, seed=1), []
        for _ in range(20):
            optimizer.zero_grad()
            loss = (model(data) - data).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, [p.detach().clone() for p in model.parameters()]

    (losses, weights), (again, others) = train(), train()
    assert losses == again and losses[-1] < losses[0]
    assert all(same(a, b) for a, b in zip(weights, others))


def test_autocast_takes_what_comes():
    norm = RMSNorm(32, eps=1e-6)
    linear = torch.nn.Linear(16, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = norm(linear(random(4, 16)))
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
    assert norm.weight.grad.dtype == torch.float32
