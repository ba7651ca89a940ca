"""Describe the machine of a measurement."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

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
