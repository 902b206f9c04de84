"""The C interface (capi/include/cake_rmsnorm.h) by ctypes. Knows nothing of PyTorch."""

import ctypes
import os
import pathlib
import sys
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32
from ctypes import c_uint64, c_void_p

ABI_VERSION = 1
CPU = -1

OK, INVALID_ARGUMENT, NOT_PREPARED = 0, 1, 2

NONE, BF16, F16, F32 = 0, 1, 2, 3
OVERWRITE, ACCUMULATE = 0, 1
ORDINARY, ANY = 0, 1
NORM_FIRST, GATE_FIRST = 0, 1


class Error(RuntimeError):
    """A call that the library or the driver could not carry out."""


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("row_stride", c_int64),
        ("group_rows", c_uint64),
        ("group_stride", c_int64),
    ]


class _Sized(ctypes.Structure):
    """A struct whose first field is its size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class Config(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("hidden", c_uint64),
        ("input", c_int32),
        ("weight", c_int32),
        ("eps", c_float),
        ("weight_offset", c_float),
    ]


class Forward(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", c_uint64),
        ("x", Matrix),
        ("residual", Matrix),
        ("h", Matrix),
        ("y", Matrix),
        ("w", c_void_p),
        ("rstd", c_void_p),
    ]


class Backward(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", c_uint64),
        ("dy", Matrix),
        ("x", Matrix),
        ("dh", Matrix),
        ("dx", Matrix),
        ("w", c_void_p),
        ("rstd", c_void_p),
        ("dw", c_void_p),
        ("dw_bf16", c_void_p),
        ("dw_update", c_int32),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
    ]


class GatedConfig(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("hidden", c_uint64),
        ("groups", c_uint64),
        ("weight", c_int32),
        ("order", c_int32),
        ("eps", c_float),
    ]


class GatedForward(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", c_uint64),
        ("x", Matrix),
        ("z", Matrix),
        ("y", Matrix),
        ("w", c_void_p),
        ("rstd", c_void_p),
    ]


class GatedBackward(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", c_uint64),
        ("dy", Matrix),
        ("x", Matrix),
        ("z", Matrix),
        ("dx", Matrix),
        ("dz", Matrix),
        ("w", c_void_p),
        ("rstd", c_void_p),
        ("dw", c_void_p),
        ("dw_update", c_int32),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
    ]


_SIGNATURES = {
    "create": [POINTER(Config), POINTER(c_void_p)],
    "prepare": [c_void_p, c_int32, c_int32, c_int32],
    "workspace_bytes": [c_void_p, c_int32, c_uint64, c_int32, POINTER(c_uint64)],
    "forward": [c_void_p, c_int32, c_void_p, POINTER(Forward)],
    "backward": [c_void_p, c_int32, c_void_p, POINTER(Backward)],
    "matrix_from_shape": [
        c_void_p,
        c_size_t,
        POINTER(c_uint64),
        POINTER(c_int64),
        POINTER(Matrix),
        POINTER(c_uint64),
    ],
    "gated_create": [POINTER(GatedConfig), POINTER(c_void_p)],
    "gated_prepare": [c_void_p, c_int32],
    "gated_workspace_bytes": [c_void_p, c_int32, c_uint64, POINTER(c_uint64)],
    "gated_forward": [c_void_p, c_int32, c_void_p, POINTER(GatedForward)],
    "gated_backward": [c_void_p, c_int32, c_void_p, POINTER(GatedBackward)],
}


def _path():
    """The shared library: CAKE_RMSNORM_LIBRARY, or beside this file."""
    if named := os.environ.get("CAKE_RMSNORM_LIBRARY"):
        return named
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    prefix = "" if sys.platform == "win32" else "lib"
    beside = pathlib.Path(__file__).with_name(f"{prefix}cake_rmsnorm_capi.{suffix}")
    if not beside.exists():
        raise ImportError(
            f"{beside} does not exist, and CAKE_RMSNORM_LIBRARY is not set: build the library with"
            " `cargo build --release -p cake-rmsnorm-capi`, then copy it there or set"
            " CAKE_RMSNORM_LIBRARY to its path"
        )
    return str(beside)


def _load():
    path = _path()
    library = ctypes.CDLL(path)
    library.cake_rmsnorm_abi_version.restype = c_uint32
    if (found := library.cake_rmsnorm_abi_version()) != ABI_VERSION:
        raise ImportError(f"{path} has ABI version {found}: accepted is {ABI_VERSION}")
    library.cake_rmsnorm_last_error.restype = c_char_p
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, f"cake_rmsnorm_{name}")
        function.argtypes, function.restype = arguments, c_int32
    for name in ("destroy", "gated_destroy"):
        function = getattr(library, f"cake_rmsnorm_{name}")
        function.argtypes, function.restype = [c_void_p], None
    return library


library = _load()


def check(status):
    """Raises what a status says: ValueError for a refused argument, Error otherwise."""
    if status != OK:
        message = library.cake_rmsnorm_last_error().decode()
        raise (ValueError if status == INVALID_ARGUMENT else Error)(message)


class _Operator:
    """A handle that ends with this object."""

    def __init__(self, create, destroy, config):
        handle = c_void_p()
        check(create(byref(config), byref(handle)))
        self.handle, self._destroy = handle, destroy

    def __del__(self):
        if destroy := getattr(self, "_destroy", None):
            destroy(self.handle)


class Operator(_Operator):
    """RMSNorm over rows of `hidden` elements."""

    def __init__(self, hidden, input, weight, eps, weight_offset):
        config = Config(
            hidden=hidden, input=input, weight=weight, eps=eps, weight_offset=weight_offset
        )
        super().__init__(
            library.cake_rmsnorm_create, library.cake_rmsnorm_destroy, config
        )

    def prepare(self, device, residual, views):
        check(library.cake_rmsnorm_prepare(self.handle, device, int(residual), views))

    def workspace_bytes(self, device, rows, residual):
        found = c_uint64()
        check(
            library.cake_rmsnorm_workspace_bytes(
                self.handle, device, rows, int(residual), byref(found)
            )
        )
        return found.value

    def forward(self, device, stream, args):
        """A status: the caller may have to prepare, and call again."""
        return library.cake_rmsnorm_forward(self.handle, device, stream, byref(args))

    def backward(self, device, stream, args):
        """As `forward`."""
        return library.cake_rmsnorm_backward(self.handle, device, stream, byref(args))


class GatedOperator(_Operator):
    """RMSNorm with a SiLU gate."""

    def __init__(self, hidden, groups, weight, order, eps):
        config = GatedConfig(hidden=hidden, groups=groups, weight=weight, order=order, eps=eps)
        super().__init__(
            library.cake_rmsnorm_gated_create, library.cake_rmsnorm_gated_destroy, config
        )

    def prepare(self, device):
        check(library.cake_rmsnorm_gated_prepare(self.handle, device))

    def workspace_bytes(self, device, rows):
        found = c_uint64()
        check(
            library.cake_rmsnorm_gated_workspace_bytes(self.handle, device, rows, byref(found))
        )
        return found.value

    def forward(self, device, stream, args):
        """As `Operator.forward`."""
        return library.cake_rmsnorm_gated_forward(self.handle, device, stream, byref(args))

    def backward(self, device, stream, args):
        """As `Operator.forward`."""
        return library.cake_rmsnorm_gated_backward(self.handle, device, stream, byref(args))


def matrix_from_shape(data, shape, strides):
    """A tensor of any number of dimensions, of which the last is contiguous, as a matrix."""
    matrix, rows = Matrix(), c_uint64()
    count = len(shape)
    check(
        library.cake_rmsnorm_matrix_from_shape(
            data,
            count,
            (c_uint64 * count)(*shape),
            (c_int64 * count)(*strides),
            byref(matrix),
            byref(rows),
        )
    )
    return matrix
