"""Backends run plans. `reference` interprets cells op by op with NumPy; every other backend is tested against it.

`cpu` compiles cells into matrix products and generated kernels, and `cuda` does the same for an NVIDIA GPU. "auto" is
`cuda` where the parameters are on a GPU, and else `cpu`, unless the environment has

    AUTOBATCH_BACKEND=name     the backend for programs that name none
"""

from __future__ import annotations

import os
from importlib import import_module

from autobatch.arguments import show
from autobatch.backends.base import Backend
from autobatch.devices.store import HOST, Store
from autobatch.errors import BackendError

CLASSES = {
    "reference": ("reference", "Reference"),
    "cpu": ("cpu.backend", "Cpu"),
    "cuda": ("cuda.backend", "Cuda"),
}
"""The module and the class of each backend; it is imported when it is asked for."""
NAMES = tuple(CLASSES)
VARIABLE = "AUTOBATCH_BACKEND"


def make_backend(backend: str | Backend, store: Store = HOST) -> Backend:
    """Make the backend of this name; return a `Backend` unchanged.

    Args:
        store: the memory of the device on which the parameters are.

    Raises:
        BackendError: no backend has this name, or it cannot run here; says why.
    """
    if not isinstance(backend, str):
        if isinstance(backend, type) or not hasattr(backend, "prepare"):
            raise BackendError(
                f"backend={show(backend)} is neither a name nor a Backend; give one of {', '.join(NAMES)}."
            )
        return backend
    name = backend
    if backend == "auto":
        name = "cuda" if store is not HOST else os.environ.get(VARIABLE) or "auto"
    if name not in (*NAMES, "auto"):
        where = f" (of {VARIABLE})" if backend == "auto" else ""
        raise BackendError(
            f"there is no backend {name!r}{where} in this version; there are {', '.join(NAMES)} and auto."
        )
    module, maker = CLASSES.get(name, CLASSES["cpu"])
    about = {"device": store} if name == "cuda" and store is not HOST else {}
    made: Backend = getattr(import_module(f"autobatch.backends.{module}"), maker)(**about)
    return made
