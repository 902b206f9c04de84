"""The formulas in FP64, and the bounds of docs/numerics.md."""

import torch

F64 = torch.float64


def norm(x, weight=None, eps=1e-6, weight_offset=0.0):
    """y of FP64 tensors, differentiable."""
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * (weight + weight_offset)


def gated(x, z, weight, eps=1e-6, order="norm_first", groups=1):
    """y of the gated form, differentiable."""
    gate = z * torch.sigmoid(z)
    u = x * gate if order == "gate_first" else x
    parts = u.unflatten(-1, (groups, -1))
    y = norm(parts, eps=eps).flatten(-2) * weight
    return y * gate if order == "norm_first" else y


def ulp(values, dtype):
    """The distance of neighbouring numbers of a type, around FP64 values."""
    bits = {torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}[dtype]
    smallest = torch.finfo(dtype).smallest_normal
    exponent = torch.frexp(values.abs().clamp(min=smallest)).exponent.to(F64)
    return torch.pow(2.0, exponent - bits)


def within(name, found, exact, bound):
    """Fails where a value lies farther from the exact one than its bound."""
    error = (found.to(F64) - exact).abs()
    worst = (error / bound).max().item() if error.numel() else 0.0
    assert not torch.isnan(error).any(), f"{name} is not a number"
    assert worst <= 1.0, f"{name}: {worst} times its bound"
    return worst


def check(x, weight, weight_offset, eps, dy, dh, y, rstd, dx, dw):
    """Every output against FP64, by the bounds of docs/numerics.md ("Accuracy"). x is what is
    normalised; y and the gradients are judged at the same rstd, as the bounds are stated."""
    hidden, kind = x.shape[-1], x.dtype
    x, dy = x.to(F64).reshape(-1, hidden), dy.to(F64).reshape(-1, hidden)
    y, dx = y.reshape(-1, hidden), dx.reshape(-1, hidden)
    rstd = rstd.reshape(-1, 1)
    exact_rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    within("rstd", rstd, exact_rstd, 16 * ulp(exact_rstd, torch.float32))
    r = rstd.to(F64)
    w = torch.ones(hidden, dtype=F64, device=x.device) if weight is None else weight.to(F64)
    # The offset is added in FP32.
    w = (w.to(torch.float32) + weight_offset).to(F64) if weight_offset else w
    normed = x * r
    exact = normed * w
    within("y", y, exact, (2 if kind == torch.float32 else 1) * ulp(exact, kind))
    a = dy * w
    dot = (a * normed).mean(-1, keepdim=True)
    exact = r * (a - normed * dot)
    magnitude = (r * a).abs() + normed.abs() * r * (a * normed).abs().mean(-1, keepdim=True)
    if dh is not None:
        exact = exact + dh.to(F64).reshape(-1, hidden)
        magnitude = magnitude + dh.to(F64).reshape(-1, hidden).abs()
    within("dx", dx, exact, torch.maximum(ulp(exact, kind), magnitude * 2.0**-18))
    if dw is not None:
        terms = dy * normed
        exact, magnitude = terms.sum(0), terms.abs().sum(0)
        bound = torch.maximum(ulp(exact, torch.float32), magnitude * 2.0**-40)
        if dw.dtype == torch.bfloat16:
            bound = bound + (0.5 + 2.0**-17) * ulp(exact, torch.bfloat16)
        if dw.dtype == torch.float16:
            bound = bound + 0.5 * ulp(exact, torch.float16)
        within("dw", dw, exact, bound)


def check_gated(x, z, weight, eps, order, groups, dy, y, rstd, dx, dz, dw):
    """The same for the gated form (BF16 matrices): outputs within one unit, or gradients within 2^-20
    (dw: 2^-21) of the sum of the magnitudes of their terms, at the same rstd."""
    x, z, dy, w = (t.to(F64) for t in (x, z, dy, weight))
    split = lambda t: t.unflatten(-1, (groups, -1))
    join = lambda t: t.flatten(-2)
    s = torch.sigmoid(z)
    g, slope = z * s, s * (1 + z * (1 - s))
    first = order == "norm_first"
    u = x if first else x * g
    exact = torch.rsqrt(split(u).pow(2).mean(-1, keepdim=True) + eps)
    r = rstd.to(F64).unsqueeze(-1)
    within("rstd", r, exact, 24 * ulp(exact, torch.float32))
    normed = join(split(u) * r)
    exact = normed * w * g if first else normed * w
    within("y", y, exact, ulp(exact, torch.bfloat16))
    a = dy * g * w if first else dy * w
    mean = lambda t: split(t).mean(-1, keepdim=True)
    du = join(r * split(a) - r * split(normed) * mean(a * normed))
    terms = join((r * split(a)).abs() + (r * split(normed)).abs() * mean((a * normed).abs()))
    magnitudes = s * (1 + z.abs() * (1 - s))
    if first:
        exact_dx, terms_dx = du, terms
        exact_dz, terms_dz = dy * normed * w * slope, (dy * normed * w).abs() * magnitudes
    else:
        exact_dx, terms_dx = du * g, terms * g.abs()
        exact_dz, terms_dz = du * x * slope, terms * x.abs() * magnitudes
    for name, found, exact, terms in (("dx", dx, exact_dx, terms_dx), ("dz", dz, exact_dz, terms_dz)):
        within(name, found, exact, torch.maximum(ulp(exact, torch.bfloat16), terms * 2.0**-20))
    if dw is not None:
        terms = (dy * g * normed if first else dy * normed).reshape(-1, x.shape[-1])
        exact, magnitude = terms.sum(0), terms.abs().sum(0)
        bound = torch.maximum(ulp(exact, torch.float32), magnitude * 2.0**-21)
        if dw.dtype == torch.bfloat16:
            bound = bound + (0.5 + 2.0**-17) * ulp(exact, torch.bfloat16)
        within("dw", dw, exact, bound)
