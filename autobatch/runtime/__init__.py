"""Backends: what runs a plan. `reference` interprets cells op by op and is the oracle for every other.

`cpu` compiles cells into matrix products and generated kernels. "auto" is `cpu`, unless there is

    AUTOBATCH_BACKEND=name     in the environment: the backend for programs that name none
"""

from __future__ import annotations

import os

from autobatch.errors import BackendError
from autobatch.runtime.backend import Backend

NAMES = ("reference", "cpu")
VARIABLE = "AUTOBATCH_BACKEND"


def make_backend(backend: str | Backend) -> Backend:
    """The backend of this name; a `Backend` as it is.

    Raises:
        BackendError: there is none of this name.
    """
    from autobatch.runtime.cpu.backend import Cpu
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
    return Reference() if name == "reference" else Cpu()
