"""Describe the machine that figures were measured on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.system.processor import cpu_name, usable_cores


def describe_machine() -> dict[str, Any]:
    """Name processor, cores and the versions that matter, for JSON."""
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
    """Name the BLAS library that NumPy was built with, and its version."""
    config: Any = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def package_version(package: str) -> str | None:
    """Tell which version of a package is installed; None if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
