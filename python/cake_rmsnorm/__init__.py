"""RMSNorm for PyTorch: forward and backward with the same bits on every GPU and on the CPU."""

import torch

from . import _launch, _library
from ._library import Error
from .functional import gated_rms_norm, rms_norm
from .module import RMSNorm

__all__ = ["Error", "RMSNorm", "gated_rms_norm", "prepare", "prepare_gated", "rms_norm"]
__version__ = "0.1.0"


def prepare(hidden, dtype, weight_dtype=None, *, device="cuda", residual=False, any_views=False):
    """Loads the kernels for rows of `hidden` elements on a GPU, as the first call outside a graph's
    capture does by itself. `any_views`: also those for rows in groups and for addresses that are no
    multiples of 16 bytes."""
    views = _library.ANY if any_views else _library.ORDINARY
    weight = _library.NONE if weight_dtype is None else _launch.DTYPES[weight_dtype]
    op = _launch.operator(hidden, _launch.DTYPES[dtype], weight, 1e-6, 0.0)
    op.prepare(_ordinal(device), residual, views)


def prepare_gated(hidden, weight_dtype, *, device="cuda", order="norm_first", groups=1):
    """As `prepare`, for `gated_rms_norm`."""
    weight, number = _launch.DTYPES[weight_dtype], _launch.ORDERS[order]
    _launch.gated_operator(hidden, groups, weight, number, 1e-6).prepare(_ordinal(device))


def _ordinal(device):
    device = torch.device(device)
    if device.type == "cpu":
        return _library.CPU
    return torch.cuda.current_device() if device.index is None else device.index
