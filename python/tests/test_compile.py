"""Under torch.compile the calls are operators without a graph break."""

import torch
from cake_rmsnorm import RMSNorm, _ops, gated_rms_norm
from test_functional import random, same


def both(function, *leaves):
    """Outputs and gradients, eager and compiled. aot_eager runs all of the compiler but for the
    generation of code, which has nothing to do with us and takes a minute."""
    results = []
    for run in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        torch._dynamo.reset()
        copies = [leaf.detach().clone().requires_grad_() for leaf in leaves]
        outputs = run(*copies)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.autograd.backward(list(outputs), [random(*o.shape, dtype=o.dtype) for o in outputs])
        results.append([*outputs, *(copy.grad for copy in copies)])
    return results


def test_plain_and_residual():
    norm = RMSNorm(32, eps=1e-6)
    x, residual = random(6, 32, seed=1), random(6, 32, seed=2)
    for arguments in ((x,), (x, residual)):
        norm.weight.grad = None
        eager, compiled = both(norm, *arguments)
        assert all(same(a, b) for a, b in zip(eager, compiled))


def test_gated():
    x, z = (random(6, 32, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    eager, compiled = both(gated_rms_norm, x, z, random(32, seed=3))
    assert all(same(a, b) for a, b in zip(eager, compiled))


def test_operators_keep_pytorchs_rules():
    x, w, z = random(6, 32), random(32, seed=1), random(6, 32, dtype=torch.bfloat16)
    checks = {"test_schema", "test_faketensor", "test_aot_dispatch_static"}
    rstd = _ops.forward(x, None, w, 1e-6, 0.0, True)[1]
    for operator, args in [
        (_ops._forward, (x, x, w, 1e-6, 0.0, True)),
        (_ops._forward, (x, None, None, 1e-6, 0.0, False)),
        (_ops._backward, (x, x, x, w, rstd, 1e-6, 0.0, True, True)),
        (_ops._backward, (x, None, x, w, rstd, 1e-6, 0.0, False, True)),
        (_ops._gated_forward, (z, z, w, 1e-6, "norm_first", 2, True)),
        (_ops._gated_backward, (z, z, z, w, None, 1e-6, "gate_first", 2, True)),
    ]:
        torch.library.opcheck(operator, args, test_utils=sorted(checks))
