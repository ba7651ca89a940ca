"""What a figure was measured on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.threads import usable_cores


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


def cpu_name() -> str:
    """Name the processor as the system does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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
