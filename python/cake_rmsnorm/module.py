"""RMSNorm as a module."""

import numbers

import torch

from .functional import rms_norm


class RMSNorm(torch.nn.Module):
    """In the place of torch.nn.RMSNorm: same arguments, parameters and state_dict.

    With `zero_centered` the weight starts at 0 and 1 is added to it (in FP32), as in Gemma. `forward`
    takes a residual too, and returns (y, x + residual) then. y has the type of x, whatever the
    weight's.
    """

    def __init__(
        self,
        normalized_shape,
        eps=None,
        elementwise_affine=True,
        device=None,
        dtype=None,
        *,
        zero_centered=False,
    ):
        super().__init__()
        if isinstance(normalized_shape, numbers.Integral):
            normalized_shape = (normalized_shape,)
        self.normalized_shape = tuple(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.zero_centered = zero_centered
        if elementwise_affine:
            weight = torch.empty(self.normalized_shape, device=device, dtype=dtype)
            self.weight = torch.nn.Parameter(weight)
        else:
            self.register_parameter("weight", None)
        self.reset_parameters()

    def reset_parameters(self):
        """Makes the norm one that multiplies by 1."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered else 1.0)

    def forward(self, x, residual=None):
        dims = len(self.normalized_shape)
        if tuple(x.shape[x.dim() - dims :]) != self.normalized_shape:
            raise ValueError(
                f"x has shape {tuple(x.shape)}: accepted are those that end in"
                f" {self.normalized_shape}"
            )
        shape, weight = x.shape, self.weight
        if dims != 1:
            # Rows of all normalised dimensions; a view, or an error of PyTorch's.
            rows = (*shape[:-dims], -1)
            x, residual = x.view(rows), None if residual is None else residual.view(rows)
            weight = None if weight is None else weight.view(-1)
        offset = 1.0 if self.zero_centered and weight is not None else 0.0
        outputs = rms_norm(x, weight, self.eps, residual, weight_offset=offset)
        if dims == 1:
            return outputs
        if residual is None:
            return outputs.view(shape)
        return tuple(output.view(shape) for output in outputs)

    def extra_repr(self):
        return (
            f"{self.normalized_shape}, eps={self.eps},"
            f" elementwise_affine={self.elementwise_affine}, zero_centered={self.zero_centered}"
        )
