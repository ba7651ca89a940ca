"""Describe the machine of a measurement, and set the number of BLAS threads.

Matrices of dynamic batches are small. On a busy machine, a multithreaded BLAS took 25 times as long for a step of the
demo at dim 64 and batch size 64 (0.68 s instead of 0.027 s), so commands use one thread by default.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

import autobatch as ab
from autobatch.system.processor import cpu_name, usable_cores


def describe_machine() -> dict[str, Any]:
    """Return the processor, the number of cores and software versions, as JSON values."""
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": blas_name(),
        "autobatch": ab.__version__,
    }


def blas_name() -> str:
    """Return the name and version of the BLAS library that NumPy was built with."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def package_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


DEFAULT_THREADS = 1


def use_threads(n_threads: int | str) -> None:
    """Limit the threads of matrix products to `n_threads`; "auto" leaves the libraries' defaults."""
    if isinstance(n_threads, int):
        threadpool_limits(n_threads, user_api="blas")


def threads_in_force() -> int:
    """Return the number of threads of matrix products."""
    return max((int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)
