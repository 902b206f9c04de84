"""The calls as operators that torch.compile sees from outside only. In eager mode the plain
functions are called: an operator's dispatch costs more than they do."""

from typing import List, Optional

import torch
from torch import Tensor

from . import _launch


@torch.library.custom_op("cake_rmsnorm::forward", mutates_args=())
def _forward(
    x: Tensor,
    residual: Optional[Tensor],
    weight: Optional[Tensor],
    eps: float,
    weight_offset: float,
    keep_rstd: bool,
) -> List[Tensor]:
    return _launch.forward(x, residual, weight, eps, weight_offset, keep_rstd)


@_forward.register_fake
def _(x, residual, weight, eps, weight_offset, keep_rstd):
    outputs = [x.new_empty(x.shape) for _ in range(1 if residual is None else 2)]
    if keep_rstd:
        outputs.append(x.new_empty(x.shape[:-1], dtype=torch.float32))
    return outputs


@torch.library.custom_op("cake_rmsnorm::backward", mutates_args=())
def _backward(
    dy: Tensor,
    dh: Optional[Tensor],
    x: Tensor,
    weight: Optional[Tensor],
    rstd: Optional[Tensor],
    eps: float,
    weight_offset: float,
    want_dx: bool,
    want_dw: bool,
) -> List[Tensor]:
    return _launch.backward(dy, dh, x, weight, rstd, eps, weight_offset, want_dx, want_dw)


@_backward.register_fake
def _(dy, dh, x, weight, rstd, eps, weight_offset, want_dx, want_dw):
    outputs = [x.new_empty(x.shape)] if want_dx else []
    return outputs + ([weight.new_empty(weight.shape)] if want_dw else [])


@torch.library.custom_op("cake_rmsnorm::gated_forward", mutates_args=())
def _gated_forward(
    x: Tensor, z: Tensor, weight: Tensor, eps: float, order: str, groups: int, keep_rstd: bool
) -> List[Tensor]:
    return _launch.gated_forward(x, z, weight, eps, order, groups, keep_rstd)


@_gated_forward.register_fake
def _(x, z, weight, eps, order, groups, keep_rstd):
    outputs = [x.new_empty(x.shape)]
    if keep_rstd:
        outputs.append(x.new_empty((*x.shape[:-1], groups), dtype=torch.float32))
    return outputs


@torch.library.custom_op("cake_rmsnorm::gated_backward", mutates_args=())
def _gated_backward(
    dy: Tensor,
    x: Tensor,
    z: Tensor,
    weight: Tensor,
    rstd: Optional[Tensor],
    eps: float,
    order: str,
    groups: int,
    want_dw: bool,
) -> List[Tensor]:
    return _launch.gated_backward(dy, x, z, weight, rstd, eps, order, groups, want_dw)


@_gated_backward.register_fake
def _(dy, x, z, weight, rstd, eps, order, groups, want_dw):
    outputs = [x.new_empty(x.shape), x.new_empty(x.shape)]
    return outputs + ([weight.new_empty(weight.shape)] if want_dw else [])


def forward(*args):
    return (_forward if torch.compiler.is_compiling() else _launch.forward)(*args)


def backward(*args):
    return (_backward if torch.compiler.is_compiling() else _launch.backward)(*args)


def gated_forward(*args):
    return (_gated_forward if torch.compiler.is_compiling() else _launch.gated_forward)(*args)


def gated_backward(*args):
    return (_gated_backward if torch.compiler.is_compiling() else _launch.gated_backward)(*args)
