"""What this machine computes with: the name of its processor, the cores to use, and the instructions it has."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

CPUINFO = Path("/proc/cpuinfo")
BF16 = frozenset({"amx_bf16", "avx512_bf16"})  # either multiplies bf16 numbers and adds up in float32


def cpu_name() -> str:
    """Name the processor as the system does."""
    return _told_by_linux("model name") or platform.processor() or platform.machine()


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def has_bf16() -> bool:
    """Tell whether the processor multiplies bf16 numbers; where the system does not say, it counts as no."""
    return bool(BF16 & set(_told_by_linux("flags").split()))


@cache
def has_avx512() -> bool:
    """Tell whether the processor has the AVX-512 instructions of servers since 2017 (F, CD, BW, DQ and VL)."""
    config: Any = np.show_config(mode="dicts")
    found = config.get("SIMD Extensions", {}).get("found", ())
    return bool({"X86_V4", "AVX512_SKX"} & set(found))  # the names of NumPy since 2.4, and before


def _told_by_linux(what: str) -> str:
    lines = CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.exists() else []
    told = [value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == what]
    return told[0] if told else ""
