"""The processor: its name, usable cores and instruction sets."""

from __future__ import annotations

import math
import os
import platform
from functools import cache
from pathlib import Path

from autobatch._native import find_features

CPUINFO = Path("/proc/cpuinfo")
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cpu_name() -> str:
    """Return the name of the processor as the system reports it."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def usable_cores() -> int:
    """Count the cores that this process may use: its CPU affinity, capped by its container's quota, at least 1."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, quota_of_cores())))


@cache
def quota_of_cores() -> float:
    """Return the smallest CPU quota of this process's control group and its ancestors, in cores; `inf` if unlimited."""
    least = math.inf
    for line in _lines(OWN_CGROUPS):
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            root = CGROUPS if controllers == "" else CGROUPS / "cpu"
            own = root / path.lstrip("/")
            for folder in (own, *own.parents):
                least = min(least, _quota_in(folder))
                if folder == root:
                    break
    return least


def _quota_in(folder: Path) -> float:
    """Return the CPU quota of a control group (v1 or v2) in cores; `inf` if unlimited."""
    # Version 2 has quota and period in one file, version 1 has a file for each.
    lines = [*_lines(folder / "cpu.max"), *_lines(folder / "cpu.cfs_quota_us"), *_lines(folder / "cpu.cfs_period_us")]
    words = " ".join(lines).split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or words[1] == "0":
        return math.inf  # "max", -1, or no such file
    return int(words[0]) / int(words[1])


def _lines(path: Path) -> list[str]:
    """Read the lines of a file; return an empty list if it is missing or unreadable."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def has_avx512() -> bool:
    """Return whether the processor has the AVX-512 instructions of servers since 2017 (F, CD, BW, DQ and VL)."""
    return find_features()[0]


def has_bf16() -> bool:
    """Return whether the processor multiplies vectors of bf16 numbers (AVX512_BF16)."""
    return find_features()[1]


def has_amx() -> bool:
    """Return whether the processor multiplies tiles of bf16 numbers (AMX)."""
    return find_features()[2]


def _cpu_info(field: str) -> str:
    """Return the first value of a field in /proc/cpuinfo, or ""."""
    lines = CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.exists() else []
    values = [value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == field]
    return values[0] if values else ""
