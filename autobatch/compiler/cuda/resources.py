"""Measure the GPU resources of kernels with NVIDIA's compiler: registers, shared memory, and spilled bytes.

No GPU is required. Each kernel is compiled as a function of its own, so that its figures do not include those of other
kernels.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from autobatch.compiler.cuda.source import ENTRY, entries_text
from autobatch.errors import BackendError

GPUS = {"sm_80": 163 << 10, "sm_90": 227 << 10}
"""The target GPUs, and the maximum shared memory per block, in bytes (CUDA C++ Programming Guide)."""
COMPILER = "nvcc"
MOST_SECONDS = 300

_FUNCTION = re.compile(rf"Compiling entry function '{ENTRY}(\w+)' for '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


class Resources(NamedTuple):
    """The GPU resources of a kernel.

    Attributes:
        registers: registers per thread.
        shared_bytes: static shared memory per block; the size for rows is chosen when the kernel runs.
        spilled_bytes: bytes that each thread stores in memory because registers do not suffice.
        reloaded_bytes: bytes that each thread loads from there.
    """

    registers: int
    shared_bytes: int
    spilled_bytes: int
    reloaded_bytes: int


def has_compiler() -> bool:
    """Return whether NVIDIA's compiler is on the PATH."""
    return shutil.which(COMPILER) is not None


def measure_resources(
    kernels: Mapping[str, str], dtype: str, index_type: str, about: str
) -> dict[str, dict[str, Resources]]:
    """Compile kernels for each of `GPUS`; return the resources of each kernel, by GPU and name.

    Args:
        kernels, dtype, index_type: see `module_text`.
        about: the owner of the kernels, for messages.

    Raises:
        BackendError: the kernels cannot be compiled, or compiling takes longer than `MOST_SECONDS`.

    Cost: about a second for a few kernels.
    """
    targets = [f"-gencode=arch={gpu.replace('sm', 'compute')},code={gpu}" for gpu in GPUS]
    with TemporaryDirectory(prefix="autobatch_") as folder:
        source = Path(folder) / "kernels.cu"
        source.write_text(entries_text(kernels, dtype, index_type), encoding="utf-8")
        options = ["-std=c++17", "-fatbin", "-Xptxas=-v", "-w", "-o", str(source.with_suffix(".fatbin"))]
        try:
            done = subprocess.run(
                [COMPILER, *targets, *options, str(source)], capture_output=True, text=True, timeout=MOST_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise BackendError(
                f"{about}: {COMPILER} takes longer than {MOST_SECONDS} s to compile its kernels."
            ) from error
    said = done.stdout + done.stderr
    if done.returncode:
        errors = [line for line in said.splitlines() if "error" in line] or said.splitlines()
        raise BackendError(
            f"{about}: {COMPILER} cannot compile its kernels: {errors[0] if errors else done.returncode}."
        )
    return parse_resources(said)


def parse_resources(said: str) -> dict[str, dict[str, Resources]]:
    """Read the resources of each kernel, by GPU and name, from the output of the compiler (`-Xptxas -v`).

    The functions that a kernel calls follow it in the output; their spilled bytes are added to those of the kernel.
    """
    found: dict[str, dict[str, Resources]] = {}
    _, *parts = _FUNCTION.split(said)
    for name, gpu, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        used = _USED.search(text)
        assert used is not None, f"the compiler reports no registers of {name} for {gpu}: {text}"
        spills = [tuple(map(int, numbers)) for numbers in _SPILLS.findall(text)]
        stored, loaded = sum(numbers[1] for numbers in spills), sum(numbers[2] for numbers in spills)
        found.setdefault(gpu, {})[name] = Resources(int(used[1]), int(used[2] or 0), stored, loaded)
    return found
