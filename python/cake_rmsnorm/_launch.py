"""Calls of the library on tensors: no gradients here, and nothing is copied."""

import functools

import torch

from . import _library as lib

DTYPES = {torch.bfloat16: lib.BF16, torch.float16: lib.F16, torch.float32: lib.F32}
ORDERS = {"norm_first": lib.NORM_FIRST, "gate_first": lib.GATE_FIRST}

# Operators never change, and are as few as a model has kinds of norms.
operator = functools.lru_cache(maxsize=None)(lib.Operator)
gated_operator = functools.lru_cache(maxsize=None)(lib.GatedOperator)


@functools.lru_cache(maxsize=4096)
def workspace_bytes(op, device, *shape):
    return op.workspace_bytes(device, *shape)


def dtype(name, tensor):
    """The library's number of a tensor's type."""
    if (found := DTYPES.get(tensor.dtype)) is None:
        raise TypeError(f"{name} is {tensor.dtype}: accepted are bfloat16, float16 and float32")
    return found


def like(name, tensor, other_name, other):
    """Checks that a tensor has the shape, type and device of another."""
    for what in ("shape", "dtype", "device"):
        found, accepted = getattr(tensor, what), getattr(other, what)
        if found != accepted:
            raise ValueError(
                f"{name} has {what} {_text(found)}: accepted is that of {other_name},"
                f" {_text(accepted)}"
            )


def _text(value):
    return tuple(value) if isinstance(value, torch.Size) else value


def check_weight(weight, x):
    """Checks a weight of rows like those of x."""
    if weight.shape != x.shape[-1:]:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}: accepted is ({x.shape[-1]},), as x has rows"
        )
    if weight.device != x.device:
        raise ValueError(f"weight is on {weight.device}: accepted is the device of x, {x.device}")
    if not weight.is_contiguous():
        raise ValueError(f"weight has stride {weight.stride(0)}: accepted is 1")


def check_rows(x):
    """Checks that x has rows, on a device that the library knows."""
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(
            f"x has shape {tuple(x.shape)}: accepted is at least one dimension, the last not empty"
        )
    if x.device.type not in ("cpu", "cuda"):
        raise ValueError(f"x is on {x.device}: accepted are CPU and CUDA devices")


def matrix(name, tensor):
    """A tensor in place. Its last dimension is contiguous, the others join to two at most."""
    if tensor.is_contiguous():
        return lib.Matrix(tensor.data_ptr(), tensor.shape[-1])
    try:
        return lib.matrix_from_shape(tensor.data_ptr(), tensor.shape, tensor.stride())
    except ValueError as error:
        raise ValueError(
            f"{name} of shape {tuple(tensor.shape)} with strides {tensor.stride()}: {error}"
        ) from None


def is_matrix(tensor):
    """Whether `matrix` would take a tensor."""
    try:
        return matrix("", tensor) is not None
    except ValueError:
        return False


def address(tensor):
    return None if tensor is None else tensor.data_ptr()


def place(tensor):
    """The library's device and stream for a tensor: PyTorch's current stream."""
    if tensor.device.type == "cpu":
        return lib.CPU, None
    return tensor.device.index, torch.cuda.current_stream(tensor.device).cuda_stream


def launch(call, *prepares):
    """Makes a call, after loading its kernels where they are missing."""
    status = call()
    for prepare in prepares:
        if status != lib.NOT_PREPARED:
            break
        if torch.cuda.is_current_stream_capturing():
            message = lib.library.cake_rmsnorm_last_error().decode()
            raise lib.Error(
                f"{message}. A stream under capture cannot load kernels: run the model once"
                " outside, or call cake_rmsnorm.prepare"
            )
        prepare()
        status = call()
    lib.check(status)


def forward(x, residual, weight, eps, weight_offset, keep_rstd):
    """y; then h of the residual form; then rstd, if it is kept."""
    check_rows(x)
    input_type = dtype("x", x)
    if residual is not None:
        like("residual", residual, "x", x)
    if weight is not None:
        check_weight(weight, x)
    hidden = x.shape[-1]
    weight_type = lib.NONE if weight is None else dtype("weight", weight)
    op = operator(hidden, input_type, weight_type, eps, weight_offset)
    args = lib.Forward(rows=x.numel() // hidden, x=matrix("x", x), w=address(weight))
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    args.y = lib.Matrix(y.data_ptr(), hidden)
    outputs = [y]
    if residual is not None:
        h = torch.empty_like(y)
        args.residual = matrix("residual", residual)
        args.h = lib.Matrix(h.data_ptr(), hidden)
        outputs.append(h)
    if keep_rstd:
        rstd = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
        args.rstd = rstd.data_ptr()
        outputs.append(rstd)
    device, stream = place(x)
    form = residual is not None
    launch(
        lambda: op.forward(device, stream, args),
        lambda: op.prepare(device, form, lib.ORDINARY),
        lambda: op.prepare(device, form, lib.ANY),
    )
    return outputs


def backward(dy, dh, x, weight, rstd, eps, weight_offset, want_dx, want_dw):
    """dx and dw, as far as they are wanted. dw has the weight's type."""
    like("the gradient of y", dy, "x", x)
    if dh is not None:
        like("the gradient of h", dh, "x", x)
    hidden, rows = x.shape[-1], x.numel() // x.shape[-1]
    weight_type = lib.NONE if weight is None else dtype("weight", weight)
    op = operator(hidden, dtype("x", x), weight_type, eps, weight_offset)
    args = lib.Backward(
        rows=rows,
        dy=matrix("the gradient of y", dy),
        x=matrix("x", x),
        w=address(weight),
        rstd=address(rstd),
    )
    if dh is not None:
        args.dh = matrix("the gradient of h", dh)
    outputs = []
    if want_dx:
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        args.dx = lib.Matrix(dx.data_ptr(), hidden)
        outputs.append(dx)
    if want_dw:
        # FP32, or BF16 rounded from it; FP16 is a cast of it.
        narrow = weight.dtype == torch.bfloat16
        kind = torch.bfloat16 if narrow else torch.float32
        dw = torch.empty(hidden, dtype=kind, device=x.device)
        if narrow:
            args.dw_bf16 = dw.data_ptr()
        else:
            args.dw = dw.data_ptr()
        outputs.append(dw)
    device, stream = place(x)
    form = dh is not None
    bytes_needed = workspace_bytes(op, device, rows, form)
    workspace = torch.empty(bytes_needed, dtype=torch.uint8, device=x.device)
    args.workspace, args.workspace_bytes = workspace.data_ptr(), bytes_needed
    launch(
        lambda: op.backward(device, stream, args),
        lambda: op.prepare(device, form, lib.ORDINARY),
        lambda: op.prepare(device, form, lib.ANY),
    )
    if want_dw and weight.dtype == torch.float16:
        outputs[-1] = outputs[-1].to(torch.float16)
    return outputs


def gated_forward(x, z, weight, eps, order, groups, keep_rstd):
    """y; then rstd, if it is kept."""
    check_rows(x)
    _check_bf16(x)
    like("z", z, "x", x)
    check_weight(weight, x)
    hidden, rows = x.shape[-1], x.numel() // x.shape[-1]
    op = gated_operator(hidden, groups, dtype("weight", weight), _order(order), eps)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    args = lib.GatedForward(
        rows=rows,
        x=matrix("x", x),
        z=matrix("z", z),
        y=lib.Matrix(y.data_ptr(), hidden),
        w=weight.data_ptr(),
    )
    outputs = [y]
    if keep_rstd:
        shape = (*x.shape[:-1], groups)
        outputs.append(torch.empty(shape, dtype=torch.float32, device=x.device))
        args.rstd = outputs[-1].data_ptr()
    device, stream = place(x)
    launch(lambda: op.forward(device, stream, args), lambda: op.prepare(device))
    return outputs


def gated_backward(dy, x, z, weight, rstd, eps, order, groups, want_dw):
    """dx and dz; then dw, if it is wanted, of the weight's type."""
    like("the gradient of y", dy, "x", x)
    hidden, rows = x.shape[-1], x.numel() // x.shape[-1]
    op = gated_operator(hidden, groups, dtype("weight", weight), _order(order), eps)
    dx, dz = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    args = lib.GatedBackward(
        rows=rows,
        dy=matrix("the gradient of y", dy),
        x=matrix("x", x),
        z=matrix("z", z),
        dx=lib.Matrix(dx.data_ptr(), hidden),
        dz=lib.Matrix(dz.data_ptr(), hidden),
        w=weight.data_ptr(),
        rstd=address(rstd),
    )
    outputs = [dx, dz]
    device, stream = place(x)
    if want_dw:
        dw = torch.empty(hidden, dtype=torch.float32, device=x.device)
        bytes_needed = workspace_bytes(op, device, rows)
        workspace = torch.empty(bytes_needed, dtype=torch.uint8, device=x.device)
        args.dw = dw.data_ptr()
        args.workspace, args.workspace_bytes = workspace.data_ptr(), bytes_needed
        outputs.append(dw)
    launch(lambda: op.backward(device, stream, args), lambda: op.prepare(device))
    if want_dw:
        outputs[-1] = outputs[-1].to(weight.dtype)
    return outputs


def _order(order):
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}: accepted are 'norm_first' and 'gate_first'")
    return ORDERS[order]


def _check_bf16(x):
    if x.dtype != torch.bfloat16:
        raise TypeError(f"x is {x.dtype}: accepted is bfloat16, in the gated form")
