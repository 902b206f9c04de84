"""rms_norm on the CPU: bits, gradients, layouts, refusals."""

import array

import pytest
import reference
import torch
from cake_rmsnorm import _launch, rms_norm
from cake_rmsnorm import _library as lib

TYPES = [torch.bfloat16, torch.float16, torch.float32]


def random(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def golden(x, residual, weight, eps, offset, dy, dh):
    """Both passes by direct calls of the C interface on packed copies."""
    hidden, rows = x.shape[-1], x.numel() // x.shape[-1]
    weight_type = lib.NONE if weight is None else _launch.DTYPES[weight.dtype]
    op = lib.Operator(hidden, _launch.DTYPES[x.dtype], weight_type, eps, offset)
    x, dy = x.detach().contiguous(), dy.contiguous()
    y, h, dx = (torch.full(x.shape, float("nan"), dtype=x.dtype) for _ in range(3))
    rstd, dw = torch.full((rows,), float("nan")), torch.full((hidden,), float("nan"))
    w = None if weight is None else weight.detach().contiguous()
    at = lambda tensor: lib.Matrix(tensor.data_ptr(), hidden)
    args = lib.Forward(rows=rows, x=at(x), y=at(y), rstd=rstd.data_ptr())
    backward = lib.Backward(rows=rows, dy=at(dy), x=at(x), dx=at(dx), rstd=rstd.data_ptr())
    if residual is not None:
        residual, dh = residual.detach().contiguous(), dh.contiguous()
        args.residual, args.h = at(residual), at(h)
        backward.x, backward.dh = at(h), at(dh)
    if w is not None:
        args.w = backward.w = w.data_ptr()
        backward.dw = dw.data_ptr()
    lib.check(op.forward(lib.CPU, None, args))
    lib.check(op.backward(lib.CPU, None, backward))
    return y, h, rstd, dx, None if w is None else dw


CASES = [
    # shape, weight's type, residual, offset
    ((5, 64), torch.float32, False, 0.0),
    ((3, 4, 96), torch.bfloat16, True, 0.0),
    ((130, 33), torch.float16, False, 1.0),
    ((2, 3, 4, 256), torch.float32, True, 1.0),
    ((7, 1000), None, True, 0.0),
    ((1, 5000), torch.bfloat16, False, 1.0),
    ((17, 1), torch.float32, True, 0.0),
    ((40,), torch.float32, False, 0.0),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape, weight_type, with_residual, offset", CASES)
def test_golden_bits_and_fp64(shape, weight_type, with_residual, offset, dtype):
    eps = 1e-5
    x = random(*shape, dtype=dtype, seed=1).requires_grad_()
    residual = random(*shape, dtype=dtype, seed=2).requires_grad_() if with_residual else None
    weight = None
    if weight_type is not None:
        weight = random(shape[-1], dtype=weight_type, seed=3).requires_grad_()
    dy, dh = random(*shape, dtype=dtype, seed=4), random(*shape, dtype=dtype, seed=5)
    y = rms_norm(x, weight, eps, residual, weight_offset=offset)
    y, h = y if with_residual else (y, None)
    torch.autograd.backward([y, h] if with_residual else [y], [dy, dh] if with_residual else [dy])

    golden_y, golden_h, rstd, golden_dx, golden_dw = golden(
        x, residual, weight, eps, offset, dy, dh
    )
    assert same(y, golden_y)
    assert same(x.grad, golden_dx)
    if with_residual:
        assert same(h, golden_h)
        assert same(h, x.detach() + residual.detach())
        assert same(residual.grad, golden_dx)
    if weight is not None:
        assert same(weight.grad, golden_dw.to(weight_type))
    normalised = h if with_residual else x
    reference.check(
        normalised.detach(),
        None if weight is None else weight.detach(),
        offset,
        # As the library stores it.
        float(torch.tensor(eps)),
        dy,
        dh if with_residual else None,
        y.detach(),
        rstd,
        x.grad,
        None if weight is None else weight.grad,
    )


def test_the_reference_has_the_gradients_of_its_formula():
    """FP64, by finite differences: what the tests compare with is the derivative."""
    x, weight = random(3, 7).to(torch.float64), random(7, seed=1).to(torch.float64)
    inputs = (x.requires_grad_(), weight.requires_grad_())
    torch.autograd.gradcheck(lambda x, w: reference.norm(x, w, 1e-5, 1.0), inputs)


@pytest.mark.parametrize("wanted", ["x", "weight"])
def test_gradients_by_finite_differences(wanted):
    """The gradient in FP32 along a direction v against (L(x + e·v) - L(x - e·v)) / 2e of our own
    forward. The tolerance follows from e: y is within 2 ulp, so L within Σ|dy|·2 ulp(y) and the
    quotient within that over e; the rest is the quotient's own truncation, which FP64 gives."""
    e, eps = 2.0**-6, 1e-5
    x, weight = random(6, 48, seed=1), random(48, seed=2)
    dy = random(6, 48, seed=3)
    direction = random(*(x if wanted == "x" else weight).shape, seed=4)
    # So that x ± e·v are FP32 numbers.
    x, weight, direction = ((t * 256).round() / 256 for t in (x, weight, direction))

    def moved(step):
        moved_x = x + step * direction if wanted == "x" else x
        moved_w = weight + step * direction if wanted == "weight" else weight
        return moved_x, moved_w

    def loss(step, norm):
        y = norm(*moved(step))
        return (dy.to(torch.float64) * y.to(torch.float64)).sum().item(), y

    ours = lambda x, w: rms_norm(x, w, eps)
    exact = lambda x, w: reference.norm(x.to(torch.float64), w.to(torch.float64), eps)
    (up, y), (down, _) = loss(e, ours), loss(-e, ours)
    quotient = (up - down) / (2 * e)
    exact_quotient = (loss(e, exact)[0] - loss(-e, exact)[0]) / (2 * e)
    x.requires_grad_()
    weight.requires_grad_()
    rms_norm(x, weight, eps).backward(dy)
    gradient = (x if wanted == "x" else weight).grad
    along = (gradient.to(torch.float64) * direction.to(torch.float64)).sum().item()

    y = y.to(torch.float64)
    rounding = (dy.abs() * 2 * reference.ulp(y, torch.float32)).sum().item() / e
    double = x.detach().to(torch.float64).requires_grad_()
    double_w = weight.detach().to(torch.float64).requires_grad_()
    reference.norm(double, double_w, eps).backward(dy.to(torch.float64))
    exact_gradient = (double if wanted == "x" else double_w).grad
    truncation = abs(exact_quotient - (exact_gradient * direction).sum().item())
    assert abs(quotient - along) <= rounding + truncation + abs(along) * 2.0**-20
    # The test sees an error of a thousandth.
    assert rounding + truncation < abs(along) * 1e-3


@pytest.mark.parametrize("dtype", TYPES)
def test_torch_in_fp64(dtype):
    """torch.nn.functional.rms_norm and its gradient in FP64: within the bounds of docs/numerics.md,
    plus what an rstd within 16 units (2^-19) moves each term by."""
    x, weight = random(9, 200, dtype=dtype, seed=1), random(200, dtype=dtype, seed=2)
    dy = random(9, 200, dtype=dtype, seed=3)

    def run(norm, x, weight, dy):
        x, weight = (t.detach().clone().requires_grad_() for t in (x, weight))
        y = norm(x, weight)
        y.backward(dy)
        return [t.to(torch.float64) for t in (y.detach(), x.grad, weight.grad)]

    x64, weight64, dy64 = (t.to(torch.float64) for t in (x, weight, dy))
    theirs = lambda x, w: torch.nn.functional.rms_norm(x, w.shape, w, float(torch.tensor(1e-5)))
    exact_y, exact_dx, exact_dw = run(theirs, x64, weight64, dy64)
    y, dx, dw = run(lambda x, w: rms_norm(x, w, 1e-5), x, weight, dy)
    unit = lambda values: reference.ulp(values, dtype)
    reference.within("y", y, exact_y, 2 * unit(exact_y) + exact_y.abs() * 2.0**-19)
    rstd = torch.rsqrt(x64.pow(2).mean(-1, keepdim=True) + 1e-5)
    normed, a = x64 * rstd, dy64 * weight64
    terms = (rstd * a).abs() + normed.abs() * rstd * (a * normed).abs().mean(-1, keepdim=True)
    # rstd occurs three times in a term.
    bound = unit(exact_dx) + terms * (2.0**-18 + 3 * 2.0**-19)
    reference.within("dx", dx, exact_dx, bound)
    terms = (dy64 * normed).abs().sum(0)
    reference.within("dw", dw, exact_dw, unit(exact_dw) + terms * 2.0**-19)


def test_eps_is_the_machine_epsilon_unless_given():
    for dtype in TYPES:
        x = random(4, 32, dtype=dtype, scale=2.0**-8)
        assert same(rms_norm(x), rms_norm(x, eps=torch.finfo(dtype).eps))
    x = random(4, 32, scale=2.0**-8)
    theirs = torch.nn.functional.rms_norm(x, (32,))
    assert (rms_norm(x) - theirs).abs().max() <= 4 * 2.0**-23 * theirs.abs().max()


def test_strided_tensors_are_read_in_place():
    buffer = torch.full((4, 6, 3 * 40), float("nan"), dtype=torch.bfloat16)
    q = buffer[..., 40:80].unflatten(-1, (2, 20))
    q.copy_(random(4, 6, 2, 20, dtype=torch.bfloat16, seed=1))
    weight = random(20, seed=2)
    for view in (q, q.transpose(0, 1)[2:4].transpose(0, 1)[1], q[:, 1], q[0, 0, 0].expand(5, 20)):
        packed = view.clone(memory_format=torch.contiguous_format)
        results = []
        for tensor in (view, packed):
            # A view of q is no leaf: its gradient is that of a detached one.
            tensor = tensor.detach().requires_grad_()
            w = weight.clone().requires_grad_()
            y = rms_norm(tensor, w, 1e-6)
            y.backward(random(*view.shape, dtype=torch.bfloat16, seed=3))
            results.append((y, tensor.grad, w.grad))
        for strided, whole in zip(*results):
            assert same(strided, whole)


def test_nothing_is_copied(monkeypatch):
    x = random(8, 2, 64)[:, 1].requires_grad_()
    weight = random(64, seed=1).requires_grad_()
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    monkeypatch.setattr(torch.Tensor, "clone", None)
    rms_norm(x, weight, 1e-6).backward(random(16, 64, seed=2)[::2])


def test_gradients_of_sums_are_packed():
    # A gradient of stride 0 in the last dimension cannot be read in place, and is no argument.
    x = random(3, 16).requires_grad_()
    rms_norm(x, eps=1e-6).sum().backward()
    repeated, x.grad = x.grad, None
    rms_norm(x, eps=1e-6).backward(torch.ones(3, 16))
    assert same(repeated, x.grad)


def test_gradients_by_need():
    x, residual = random(6, 32, seed=1), random(6, 32, seed=2)
    weight, dy, dh = random(32, seed=3), random(6, 32, seed=4), random(6, 32, seed=5)

    def gradients(needs, outputs):
        leaves = [t.clone().requires_grad_(need) for t, need in zip((x, residual, weight), needs)]
        y, h = rms_norm(leaves[0], leaves[2], 1e-6, leaves[1])
        chosen = [(t, g) for t, g, use in zip((y, h), (dy, dh), outputs) if use]
        torch.autograd.backward(*map(list, zip(*chosen)))
        return [leaf.grad for leaf in leaves]

    whole = gradients((True, True, True), (True, True))
    for needs in [(True, False, False), (False, True, False), (False, False, True)]:
        for found, expected, need in zip(gradients(needs, (True, True)), whole, needs):
            assert (found is None) == (not need)
            assert not need or same(found, expected)
    # h alone: its gradient goes through.
    dx, dresidual, dw = gradients((True, True, True), (False, True))
    assert same(dx, dh) and same(dresidual, dh) and dw is None
    # y alone.
    dx, _, dw = gradients((True, True, True), (True, False))
    added = golden(x, residual, weight, 1e-6, 0.0, dy, torch.zeros_like(dh))
    assert same(dx, added[3]) and same(dw, added[4])


def test_no_rows():
    x, weight = torch.empty(0, 16, requires_grad=True), torch.ones(16, requires_grad=True)
    y = rms_norm(x, weight)
    y.backward(torch.empty(0, 16))
    assert y.shape == (0, 16) and x.grad.shape == (0, 16)
    assert same(weight.grad, torch.zeros(16))


def test_without_gradients_nothing_is_kept():
    x, weight = random(4, 32), torch.ones(32, requires_grad=True)
    with torch.no_grad():
        assert rms_norm(x, weight).grad_fn is None
    assert rms_norm(x, weight.detach()).grad_fn is None


def test_second_derivatives_are_refused():
    x = random(4, 8).requires_grad_()
    (dx,) = torch.autograd.grad(rms_norm(x).pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


X = torch.ones(4, 8)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: rms_norm(X.double()), TypeError, "x is torch.float64: accepted are bfloat16"),
        (lambda: rms_norm(X.T, eps=1e-6), ValueError, "x of shape .*last dimension has stride 8"),
        (
            lambda: rms_norm(torch.ones(3, 4, 5, 8).transpose(0, 2), eps=1e-6),
            ValueError,
            "leading dimensions .* do not join to two",
        ),
        (lambda: rms_norm(X, torch.ones(9)), ValueError, r"weight has shape \(9,\): accepted is"),
        (lambda: rms_norm(X, torch.ones(16)[::2]), ValueError, "weight has stride 2: accepted is 1"),
        (lambda: rms_norm(X, torch.ones(8).double()), TypeError, "weight is torch.float64"),
        (
            lambda: rms_norm(X, None, 1e-6, X[:2]),
            ValueError,
            r"residual has shape \(2, 8\): accepted is that of x",
        ),
        (lambda: rms_norm(X, None, 1e-6, X.half()), ValueError, "residual has dtype torch.float16"),
        (lambda: rms_norm(X, eps=-1.0), ValueError, "eps = -1 is not accepted"),
        (lambda: rms_norm(X, weight_offset=1.0), ValueError, "weight offset of 1 is not accepted"),
        (lambda: rms_norm(torch.tensor(1.0)), ValueError, r"x has shape \(\)"),
        (lambda: rms_norm(torch.ones(2, 70000)), ValueError, "hidden size 70000 is not supported"),
        (lambda: rms_norm(X.to("meta")), ValueError, "x is on meta: accepted are CPU and CUDA"),
        (lambda: rms_norm(X, torch.ones(8, device="meta")), ValueError, "weight is on meta"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()
