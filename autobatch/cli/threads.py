"""How many threads a matrix product uses.

BLAS libraries read their thread count from the environment when NumPy loads them. Changing it later takes
`threadpoolctl`, which is used where it is installed and not required.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from autobatch.errors import BackendError

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def use_threads(n_threads: int | None) -> None:
    """Let matrix products use `n_threads` threads; None leaves them as they are.

    Raises:
        BackendError: the number in force is another and cannot be changed here.
    """
    if n_threads is None or n_threads == threads_in_force():
        return
    pools = _threadpoolctl()
    if pools is None:
        raise BackendError(
            f"cannot set {n_threads} BLAS threads: {threads_in_force()} are in force and threadpoolctl, which could "
            f"change that, is not installed; install it, or set OMP_NUM_THREADS={n_threads} before the command."
        )
    pools.threadpool_limits(n_threads, user_api="blas")


def threads_in_force() -> int:
    """Tell how many threads matrix products use: as measured, or else as the environment asks."""
    pools = _threadpoolctl()
    if pools is not None:
        counts = [pool["num_threads"] for pool in pools.threadpool_info() if pool["user_api"] == "blas"]
        if counts:
            return int(max(counts))
    asked = [os.environ[name] for name in VARIABLES if os.environ.get(name, "").isdecimal()]
    return int(asked[0]) if asked else usable_cores()


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threadpoolctl() -> Any:
    try:
        return importlib.import_module("threadpoolctl")
    except ImportError:
        return None
