"""The C interface by ctypes alone, without PyTorch."""

import array
import importlib.util
import os
import pathlib
import struct
import subprocess
import sys

import pytest

# Without the package's __init__, which needs PyTorch.
PATH = pathlib.Path(__file__).resolve().parents[1] / "cake_rmsnorm" / "_library.py"
SPEC = importlib.util.spec_from_file_location("library_alone", PATH)
lib = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lib)


def address(values):
    return values.buffer_info()[0]


def call(rows=3, hidden=8, **changes):
    x = array.array("f", [(i * 7 % 11) - 5.0 for i in range(rows * hidden)])
    w = array.array("f", [1.0 + i for i in range(hidden)])
    y = array.array("f", [float("nan")] * (rows * hidden))
    rstd = array.array("f", [float("nan")] * rows)
    args = lib.Forward(
        rows=rows,
        x=lib.Matrix(address(x), hidden),
        y=lib.Matrix(address(y), hidden),
        w=address(w),
        rstd=address(rstd),
    )
    for name, value in changes.items():
        setattr(args, name, value)
    return args, (x, w, y, rstd)


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def test_a_forward_and_a_backward():
    op = lib.Operator(8, lib.F32, lib.F32, 0.0, 0.0)
    args, (x, w, y, rstd) = call()
    op.prepare(lib.CPU, False, lib.ANY)
    lib.check(op.forward(lib.CPU, None, args))
    for row in range(3):
        mean = sum(v * v for v in x[row * 8 : row * 8 + 8]) / 8
        assert rstd[row] == pytest.approx(mean**-0.5, rel=16 * 2.0**-23)
        for i in range(8):
            # Two roundings at the same rstd (docs/numerics.md): the operations themselves.
            assert y[row * 8 + i] == f32(f32(x[row * 8 + i] * rstd[row]) * w[i])
    dw = array.array("f", [float("nan")] * 8)
    backward = lib.Backward(
        rows=3, dy=args.y, x=args.x, w=args.w, rstd=args.rstd, dw=address(dw)
    )
    lib.check(op.backward(lib.CPU, None, backward))
    for i in range(8):
        exact = sum(y[row * 8 + i] * x[row * 8 + i] * rstd[row] for row in range(3))
        assert dw[i] == pytest.approx(exact, rel=2.0**-23)
    assert op.workspace_bytes(lib.CPU, 3, False) == 0


def test_structs_have_the_sizes_of_the_library():
    # Each would be refused otherwise.
    op = lib.Operator(8, lib.F32, lib.F32, 0.0, 0.0)
    gated = lib.GatedOperator(8, 1, lib.F32, lib.NORM_FIRST, 0.0)
    for function, args in (
        (op.forward, lib.Forward()),
        (op.backward, lib.Backward()),
        (gated.forward, lib.GatedForward()),
        (gated.backward, lib.GatedBackward()),
    ):
        # The message is the last call's.
        status = function(lib.CPU, None, args)
        message = lib.library.cake_rmsnorm_last_error().decode()
        assert status == lib.OK or "struct_size" not in message, message
    args, _ = call(struct_size=7)
    with pytest.raises(ValueError, match="args.struct_size is 7: accepted is 160"):
        lib.check(op.forward(lib.CPU, None, args))


def test_refusals_are_named():
    with pytest.raises(ValueError, match="hidden size 0 is not supported: accepted are 1 to"):
        lib.Operator(0, lib.F32, lib.F32, 0.0, 0.0)
    with pytest.raises(ValueError, match="config.weight is 9: accepted are"):
        lib.Operator(8, lib.F32, 9, 0.0, 0.0)
    op = lib.Operator(8, lib.F32, lib.F32, 0.0, 0.0)
    args, (_, _, y, _) = call(w=None)
    with pytest.raises(ValueError, match="w is missing"):
        lib.check(op.forward(lib.CPU, None, args))
    assert all(value != value for value in y), "nothing is written"


def test_a_gpu_needs_a_library_with_cuda():
    op = lib.Operator(8, lib.F32, lib.F32, 0.0, 0.0)
    args, _ = call()
    with pytest.raises(lib.Error, match="not built with CUDA|CUDA driver"):
        lib.check(op.forward(63, None, args))


def test_shapes_become_matrices():
    matrix = lib.matrix_from_shape(4096, (2, 5, 4, 64), (3840, 768, 64, 1))
    assert (matrix.row_stride, matrix.group_rows, matrix.group_stride) == (64, 4, 768)
    with pytest.raises(ValueError, match="the last dimension has stride 2: accepted is 1"):
        lib.matrix_from_shape(4096, (2, 4), (8, 2))


@pytest.mark.parametrize(
    "path, words",
    [("/nowhere/library.so", "/nowhere/library.so"), ("", "CAKE_RMSNORM_LIBRARY is not set")],
)
def test_a_missing_library_is_named(path, words):
    code = f"import runpy; runpy.run_path({str(PATH)!r})"
    environment = {**os.environ, "CAKE_RMSNORM_LIBRARY": path}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert found.returncode != 0
    assert words in found.stderr.decode()
