"""Backends run plans. `reference` interprets cells op by op with NumPy; every other backend is tested against it.

`cpu` compiles cells into matrix products and generated kernels, and `cuda` does the same for an NVIDIA GPU. "auto" is
`cpu`, unless the environment has

    AUTOBATCH_BACKEND=name     the backend for programs that name none
"""

from __future__ import annotations

import os
from collections.abc import Callable

from autobatch.errors import BackendError
from autobatch.runtime.backend import Backend

NAMES = ("reference", "cpu", "cuda")
VARIABLE = "AUTOBATCH_BACKEND"


def make_backend(backend: str | Backend) -> Backend:
    """Make the backend of this name; return a `Backend` unchanged.

    Raises:
        BackendError: no backend has this name, or it cannot run here; says why.
    """
    from autobatch.runtime.cpu.backend import Cpu
    from autobatch.runtime.cuda.backend import Cuda
    from autobatch.runtime.interpreter.reference import Reference

    if not isinstance(backend, str):
        if isinstance(backend, type) or not hasattr(backend, "prepare"):
            raise BackendError(f"backend={backend!r} is neither a name nor a Backend; give one of {', '.join(NAMES)}.")
        return backend
    name = os.environ.get(VARIABLE) or "auto" if backend == "auto" else backend
    if name not in (*NAMES, "auto"):
        where = f" (of {VARIABLE})" if backend == "auto" else ""
        raise BackendError(
            f"there is no backend {name!r}{where} in this version; there are {', '.join(NAMES)} and auto."
        )
    makers: dict[str, Callable[[], Backend]] = {"reference": Reference, "cuda": Cuda}
    return makers.get(name, Cpu)()
