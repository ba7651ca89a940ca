"""Load generated source as a function: compiled, with file and machine code in the user's cache, or as plain Python.

A file's name is a digest of everything that the machine code depends on: the source, the functions that it calls, and
the versions of Python and Numba. So no file is overwritten with other contents, and processes may write the same file
at the same time. Without a cache that can be written, functions are compiled for this process alone.

    AUTOBATCH_JIT=0     runs generated source as plain Python: slow, for debugging
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from inspect import getsource
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from autobatch.compiler.numba import intrinsics, scoped, support
from autobatch.compiler.numba.inlined import Inlined
from autobatch.compiler.numba.scoped import plain_get, plain_put
from autobatch.compiler.numba.vectormath import FUNCTIONS
from autobatch.jit.internals import is_on_disk, make_callback
from autobatch.jit.later import Task, waits_for
from autobatch.ops import error_function
from autobatch.system.cache import cache_folder
from autobatch.system.files import write_whole
from autobatch.system.owners import PUBLIC, make_own, read_own

TYPES = ("int64", "int32", "float64", "bool_")
HELPERS = ("part", "larger", "plus", "power", "collect", "may_store", "send")
PLAIN: Mapping[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.exp(min(x, 0)) / (1 + np.exp(-abs(x))) if x == x else x,
    "softplus": lambda x: np.logaddexp(x, 0),
    "erf": lambda x: type(x)(error_function.erf_of(np, x)),
    "ndtr": lambda x: type(x)(error_function.ndtr_of(np, x)),
    "gelu": lambda x: type(x)(error_function.gelu_of(np, x)),
    "gelu_tanh": lambda x: type(x)(error_function.gelu_tanh_of(np, x)),
}
FAST_MATH = {"contract"}  # `support.plus` also lets LLVM reorder sums along axes


def is_jitted() -> bool:
    """Whether generated source is compiled."""
    return os.environ.get("AUTOBATCH_JIT", "1") != "0"


def load_plain(source: str, dtype: np.dtype[Any]) -> Callable[..., None]:
    """Load the function `kernel` of a source as plain Python; it takes arrays where compiled code takes addresses.

    Args:
        source: see `autobatch.compiler.numba.source`.
        dtype: the model's float type.
    """
    helpers = {name: getattr(support, name).python for name in HELPERS}
    helpers |= {"get": plain_get, "put": plain_put, "array_at": _plain_array}
    types = {"real": dtype.type, "place": np.int64} | {name: getattr(np, name) for name in TYPES}
    names = {"INF": np.inf, "NAN": np.nan, "sqrt": np.sqrt, **types, **PLAIN, **helpers}
    exec(compile(source, "<generated kernel>", "exec"), names)
    kernel: Callable[..., None] = names["kernel"]
    return kernel


def _plain_array(array: Any, dtype: Any) -> Any:
    """`array_at` in plain Python: the array itself, or the floats whose bits an array of ints holds."""
    return array.view(dtype) if dtype is np.float64 and isinstance(array, np.ndarray) and array.dtype == int else array


@cache
def load(source: str, dtype: str, place: str) -> Any:
    """Compile the function `kernel` of a source, to be called by its `address` with three ints.

    Args:
        source: see `autobatch.compiler.numba.source`.
        dtype: the model's float type.
        place: the type of destinations.
    """
    callback = _make_kernel(source, dtype, place).callback
    callback.compile()
    return callback


def is_compiled(source: str, dtype: str, place: str) -> bool:
    """Whether `load` finds the machine code; if not, a helper is asked for it."""
    kernel = _make_kernel(source, dtype, place)
    if kernel.is_kept and is_on_disk(kernel.callback):
        return True
    return not waits_for(Task(__name__, "load", (source, dtype, place)))


class _Kernel(NamedTuple):
    """A generated function: its callback, and whether the machine code of that is kept on disk."""

    callback: Any
    is_kept: bool


@cache
def _make_kernel(source: str, dtype: str, place: str) -> _Kernel:
    import numba

    functions = FUNCTIONS[dtype]
    imports = [f"from {f.python.__module__} import {f.__name__} as {name}" for name, f in functions.items()]
    text = _HEAD.format(
        dtype=dtype,
        place=place,
        types=", ".join(TYPES),
        helpers=", ".join(HELPERS),
        functions="\n".join(imports),
    ) + source  # fmt: skip
    called = [*(getattr(support, name) for name in HELPERS), *functions.values()]
    digests = [f.digest() for f in called if isinstance(f, Inlined)]
    sources = getsource(scoped), getsource(intrinsics)
    about = [text, *digests, *sources, sys.version, numba.__version__, str(sorted(FAST_MATH))]
    digest = sha256("\n".join(about).encode()).hexdigest()[:24]
    path = _keep(text, digest)
    kernel = _make_module(text, digest, path).kernel
    options: dict[str, Any] = {"error_model": "numpy", "boundscheck": False, "fastmath": FAST_MATH}
    is_kept = path is not None
    return _Kernel(make_callback(kernel, is_kept, **options), is_kept)


_HEAD = """from math import sqrt
import numpy as np
from numpy import {types}
from autobatch.compiler.numba.intrinsics import make_array_at
from autobatch.compiler.numba.scoped import make_get, make_put
from autobatch.compiler.numba.support import {helpers}
{functions}
array_at, get, put = make_array_at(), make_get(), make_put()
INF, NAN, real, place = np.inf, np.nan, np.{dtype}, np.{place}
"""


def _keep(text: str, digest: str) -> Path | None:
    """Write a module to the cache unless a complete one is there; None if there is no cache that can be written."""
    folder = cache_folder()
    if folder is None:
        return None
    path = folder / "kernels" / f"k{digest}.py"
    try:
        if not _holds(path, text.encode()):
            make_own(path.parent)
            write_whole(path, text.encode(), PUBLIC[1])
    except OSError as error:
        _warn(path, error)
        return None
    return path


def _holds(path: Path, content: bytes) -> bool:
    try:
        return read_own(path) == content
    except FileNotFoundError:
        return False


def _warn(path: Path, error: OSError) -> None:
    why = error.strerror or error
    warnings.warn(f"cannot keep compiled kernels in {str(path.parent)!r} ({why}); going on without.", stacklevel=3)


def _make_module(text: str, digest: str, path: Path | None) -> Any:
    """Make a module from its text; Numba's cache finds it by its name and its path."""
    module = ModuleType(f"autobatch_kernel_{digest}")
    exec(compile(text, f"<kernel {digest}>" if path is None else str(path), "exec"), vars(module))
    sys.modules[module.__name__] = module
    return module
