"""Generated source as a function: compiled, with file and machine code kept in the user's cache, or plain Python.

The name of a file is a digest of all that the machine code depends on: the source, the functions that it calls, and the
versions of Python and Numba. So nothing is ever overwritten, and processes that write the same file write the same.
Where there is no cache, or none that can be written, functions are compiled for this process alone.

    AUTOBATCH_JIT=0     runs generated source as plain Python: slow, for looking for errors
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from inspect import getsource
from pathlib import Path
from typing import Any

import numpy as np

from autobatch._jit import Compiled
from autobatch.cache import cache_folder
from autobatch.checkpoint import write_whole
from autobatch.kernels import scoped, support
from autobatch.kernels.scoped import plain_get, plain_put
from autobatch.vectormath import FUNCTIONS

HELPERS = ("part", "larger", "power", "collect", "may_store", "send")
PLAIN: Mapping[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.exp(min(x, 0)) / (1 + np.exp(-abs(x))) if x == x else x,
    "softplus": lambda x: np.logaddexp(x, 0),
}
LIBERTIES = {"reassoc", "contract", "nsz"}  # of fast-math: those that keep NaN and infinity


def is_jitted() -> bool:
    """Whether generated source is compiled."""
    return os.environ.get("AUTOBATCH_JIT", "1") != "0"


def load(source: str, dtype: np.dtype[Any], jitted: bool) -> Callable[..., None]:
    """Make the function `kernel` of a source.

    Args:
        source: see `autobatch.kernels.source`.
        dtype: the model's float type.
        jitted: compile it; if not, it runs as plain Python.
    """
    return _load_compiled(source, dtype.name) if jitted else _load_plain(source, dtype)


def _load_plain(source: str, dtype: np.dtype[Any]) -> Callable[..., None]:
    helpers = {name: getattr(support, name).python for name in HELPERS} | {"get": plain_get, "put": plain_put}
    names = {"real": dtype.type, "INF": np.inf, "NAN": np.nan, "sqrt": np.sqrt, **PLAIN, **helpers}
    exec(compile(source, "<generated kernel>", "exec"), names)
    kernel: Callable[..., None] = names["kernel"]
    return kernel


@cache
def _load_compiled(source: str, dtype: str) -> Callable[..., None]:
    import numba

    functions = FUNCTIONS[dtype]
    text = _HEAD.format(
        dtype=dtype,
        helpers=", ".join(HELPERS),
        functions=", ".join(f"{f.__name__} as {name}" for name, f in functions.items()),
    ) + source  # fmt: skip
    called = [*(getattr(support, name) for name in HELPERS), *functions.values()]
    digests = [f.digest() for f in called if isinstance(f, Compiled)]
    about = [text, *digests, getsource(scoped), sys.version, numba.__version__, str(sorted(LIBERTIES))]
    digest = sha256("\n".join(about).encode()).hexdigest()[:24]
    path = _keep(text, digest)
    names: dict[str, Any] = {}
    if path is None:
        exec(compile(text, f"<kernel {digest}>", "exec"), names)
    else:
        names = _import(path, digest)
    kernel: Callable[..., None] = numba.njit(
        cache=path is not None, nogil=True, error_model="numpy", boundscheck=False, fastmath=LIBERTIES
    )(names["kernel"])
    return kernel


_HEAD = """from math import sqrt
import numpy as np
from autobatch.kernels.scoped import make_get, make_put
from autobatch.kernels.support import {helpers}
from autobatch.vectormath import {functions}
get, put = make_get(), make_put()
INF, NAN, real = np.inf, np.nan, np.{dtype}
"""


def _keep(text: str, digest: str) -> Path | None:
    """Write a module to the cache unless it is there; None if there is no cache that can be written."""
    folder = cache_folder()
    if folder is None:
        return None
    path = folder / "kernels" / f"k{digest}.py"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
    except OSError as error:
        warnings.warn(
            f"cannot keep compiled kernels in {str(path.parent)!r} ({error}); going on without.", stacklevel=2
        )
        return None
    return path


def _import(path: Path, digest: str) -> dict[str, Any]:
    name = f"autobatch_kernel_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "it is a .py file"
    assert spec.loader is not None, "it is a .py file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return vars(module)
