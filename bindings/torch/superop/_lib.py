"""The shared objects: libsuperop and the adapter, found and loaded once."""

import contextlib
import ctypes
import os

import torch  # its libraries must be open before the adapter looks for them


def _folders():
    """Where the adapter may lie: $SUPEROP_LIBRARY_DIR first, then the package."""
    there = os.environ.get("SUPEROP_LIBRARY_DIR")
    if there:
        yield from (there, os.path.join(there, "bindings", "torch"))
    yield os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")


def _load():
    tried = []
    for folder in _folders():
        path = os.path.join(folder, "libsuperop_torch.so")
        if os.path.exists(path):
            return ctypes.CDLL(path)
        tried.append(path)
    raise ImportError("superop: no libsuperop_torch.so in " + ", ".join(tried))


lib = _load()
for _name, _result, _args in (
    ("sop_torch_line", ctypes.c_char_p, [ctypes.c_int32]),
    ("sop_torch_load", ctypes.c_char_p, []),
    ("sop_torch_register", ctypes.c_char_p, [ctypes.c_int32]),
    ("sop_torch_plans", ctypes.c_int64, []),
    ("sop_torch_load_plugin", ctypes.c_char_p, [ctypes.c_int32, ctypes.c_char_p]),
    ("sop_torch_trace", None, [ctypes.c_void_p]),
):
    _f = getattr(lib, _name)
    _f.restype, _f.argtypes = _result, _args

_why = lib.sop_torch_load()
if _why:
    raise ImportError("superop: " + _why.decode())


def lines():
    """The adapter's table of operators, as text (src/lines.c draws a line)."""
    i = 0
    while (line := lib.sop_torch_line(i)) is not None:
        yield line.decode()
        i += 1


def register():
    """Put the adapter's kernels under the schemas, which are there by now."""
    why = lib.sop_torch_register(torch.cuda.device_count())
    if why:
        raise ImportError(f"superop: {why.decode()} could not be registered")


def plans():
    """Shapes whose plan is kept."""
    return lib.sop_torch_plans()


def load_plugin(path, device="cpu"):
    """Rows of your own, from a shared object, for this device: from now on the first to be chosen, each
    under the operator that it names. Before calls from other threads."""
    device = torch.device(device)
    if device.type == "cpu":
        index = -1
    else:
        index = torch.cuda.current_device() if device.index is None else device.index
    why = lib.sop_torch_load_plugin(index, os.path.abspath(path).encode())
    if why:
        raise RuntimeError("superop: " + why.decode())


_SEEN = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)


@contextlib.contextmanager
def rows():
    """A list of (operator, row) of every call that this thread makes inside."""
    seen = []
    hear = _SEEN(lambda op, row: seen.append((op.decode(), row.decode())))
    lib.sop_torch_trace(hear)
    try:
        yield seen
    finally:
        lib.sop_torch_trace(None)
