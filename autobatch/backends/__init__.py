"""Run plans on a device. `reference` interprets cells op by op with NumPy; other backends are tested against it.

`cpu` compiles cells into matrix products and generated kernels; `cuda` does the same for an NVIDIA GPU. "auto" is
`cuda` if the parameters are on a GPU, and else `cpu`, unless the environment sets

    AUTOBATCH_BACKEND=name     the backend of programs that do not choose one
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
"""The module and the class of each backend; modules are imported on first use."""
NAMES = tuple(CLASSES)
VARIABLE = "AUTOBATCH_BACKEND"


def make_backend(backend: str | Backend, store: Store = HOST) -> Backend:
    """Build the backend of this name; return a `Backend` unchanged.

    Args:
        store: the memory of the device that holds the parameters.

    Raises:
        BackendError: no backend has this name, or it cannot run here; the message says why.
    """
    if not isinstance(backend, str):
        if isinstance(backend, type) or not hasattr(backend, "prepare"):
            raise BackendError(
                f"backend= must be a name or a Backend, got {show(backend)}; the names are {', '.join(NAMES)} and auto."
            )
        return backend
    name = backend
    if backend == "auto":
        name = "cuda" if store is not HOST else os.environ.get(VARIABLE) or "auto"
    if name not in (*NAMES, "auto"):
        where = f" (of {VARIABLE})" if backend == "auto" else ""
        raise BackendError(
            f"unknown backend {name!r}{where}; the backends of this version are {', '.join(NAMES)} and auto."
        )
    module, maker = CLASSES.get(name, CLASSES["cpu"])
    about = {"device": store} if name == "cuda" and store is not HOST else {}
    made: Backend = getattr(import_module(f"autobatch.backends.{module}"), maker)(**about)
    return made
