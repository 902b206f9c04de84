"""RMSNorm with gradients, as functions."""

import torch
from torch.autograd.function import once_differentiable

from . import _launch, _ops


def rms_norm(x, weight=None, eps=None, residual=None, *, weight_offset=0.0):
    """y = norm(x) * (weight + weight_offset) over the last dimension.

    With `residual`: h = x + residual, rounded to the type of x, is normalised, and (y, h) returned.

    x is BF16, FP16 or FP32, on the CPU or a GPU; y has its type and shape. weight has any of these
    types, whatever that of x, or is None. Its gradient has its type, rounded once (FP16: twice) from
    an FP32 sum. eps is the machine epsilon of the type of x where it is None, as in
    torch.nn.functional.rms_norm. Work goes to PyTorch's current stream. x and residual are read in
    place: their last dimension is contiguous, and the others join to at most two.
    """
    if eps is None:
        eps = torch.finfo(x.dtype).eps
    tensors = (x, residual, weight)
    eps, weight_offset = float(eps), float(weight_offset)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _RmsNorm.apply(x, residual, weight, eps, weight_offset)
    outputs = _ops.forward(x, residual, weight, eps, weight_offset, False)
    return outputs[0] if residual is None else tuple(outputs)


def gated_rms_norm(x, z, weight, eps=1e-6, *, order="norm_first", groups=1):
    """y = norm(x) * weight * silu(z), or with order "gate_first" y = norm(x * silu(z)) * weight.

    x and z are BF16, weight is BF16 or FP32. Rows may be cut into `groups` that are normalised each
    on its own. x and z are read in place: addresses are multiples of 16 bytes, strides of 8 elements.
    """
    eps = float(eps)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, z, weight)):
        return _GatedRmsNorm.apply(x, z, weight, eps, order, groups)
    return _ops.gated_forward(x, z, weight, eps, order, groups, False)[0]


def _in_place_or_packed(gradient, alignment=1):
    """A gradient as it is, or packed where the library cannot read it so (that of a sum is one
    element, repeated). Arguments of the caller's are never copied; who could lay out this one
    differently?"""
    if gradient is None:
        return None
    if torch.compiler.is_compiling():
        return gradient.contiguous()
    aligned = gradient.data_ptr() % alignment == 0 and (
        alignment == 1 or all(stride % 8 == 0 for stride in gradient.stride()[:-1])
    )
    return gradient if aligned and _launch.is_matrix(gradient) else gradient.contiguous()


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, eps, weight_offset):
        *outputs, rstd = _ops.forward(x, residual, weight, eps, weight_offset, True)
        # What was normalised.
        ctx.save_for_backward(outputs[-1] if residual is not None else x, weight, rstd)
        ctx.eps, ctx.weight_offset = eps, weight_offset
        ctx.set_materialize_grads(False)
        return outputs[0] if residual is None else tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh=None):
        x, weight, rstd = ctx.saved_tensors
        needs_x, needs_residual, needs_weight = ctx.needs_input_grad[:3]
        needs_dx = needs_x or needs_residual
        if dy is None:
            # Only h was used, or nothing.
            return dh if needs_x else None, dh if needs_residual else None, None, None, None
        dx = dw = None
        if needs_dx or needs_weight:
            outputs = _ops.backward(
                _in_place_or_packed(dy),
                _in_place_or_packed(dh),
                x,
                weight,
                rstd,
                ctx.eps,
                ctx.weight_offset,
                needs_dx,
                needs_weight,
            )
            dx = outputs[0] if needs_dx else None
            dw = outputs[-1] if needs_weight else None
        return dx if needs_x else None, dx if needs_residual else None, dw, None, None


class _GatedRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, weight, eps, order, groups):
        y, rstd = _ops.gated_forward(x, z, weight, eps, order, groups, True)
        ctx.save_for_backward(x, z, weight, rstd)
        ctx.eps, ctx.order, ctx.groups = eps, order, groups
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, z, weight, rstd = ctx.saved_tensors
        needs_x, needs_z, needs_weight = ctx.needs_input_grad[:3]
        dx, dz, *dw = _ops.gated_backward(
            _in_place_or_packed(dy, 16),
            x,
            z,
            weight,
            rstd,
            ctx.eps,
            ctx.order,
            ctx.groups,
            needs_weight,
        )
        dw = dw[0] if dw else None
        return dx if needs_x else None, dz if needs_z else None, dw, None, None, None
