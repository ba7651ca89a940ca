"""Tests of compiled code and matrix products, for other code targets and with other routines of OpenBLAS.

Each target has its own process and caches. Targets that this processor cannot run are skipped;
`compiler/test_kernels.py` compiles for other processors.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding
import pytest

ROOT = Path(__file__).parents[2]
COMPILED = (
    "blas", "compiler/test_vectormath.py", "compiler/test_kernels.py", "compiler/test_first_programs.py",
    "native/test_steps.py",
    "optim/test_optim_rows.py", "ops/test_accuracy.py", "backends/test_cpu.py", "backends/test_precision.py",
    "backends/test_weights.py",
)  # fmt: skip
MULTIPLIED = (
    "blas", "backends/test_cpu.py", "backends/test_precision.py", "engine/test_threads.py", "backends/test_weights.py",
    "nn/test_layers.py", "whole/test_twins.py",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A simulated processor: its environment, the required features of this one, and the tests to run."""

    environment: dict[str, str]
    needs: frozenset[str]
    tests: tuple[str, ...]


def code_for(processor: str, *needs: str) -> Target:
    """Return a code target by LLVM's name, with its own instructions instead of this processor's."""
    environment = {"AUTOBATCH_CPU": processor}
    if "avx512f" not in needs:
        environment["AUTOBATCH_DISABLE_CPU_FEATURES"] = "avx512" if "avx2" in needs else "avx2"
    return Target(environment, frozenset(needs), COMPILED)


def routines_for(core: str, *needs: str) -> Target:
    """Return a target with the routines of OpenBLAS for a processor."""
    return Target({"OPENBLAS_CORETYPE": core}, frozenset(needs), MULTIPLIED)


AVX2 = "avx2", "fma", "bmi2"
AVX512 = *AVX2, "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"
TARGETS = {
    "generic code": code_for("generic"),
    "code without AVX-512": code_for("haswell", *AVX2),
    "code for Sapphire Rapids": code_for("sapphirerapids", *AVX512, "avx512bf16", "avx512fp16"),
    "OpenBLAS for Haswell": routines_for("Haswell", *AVX2),
    "OpenBLAS for SkylakeX": routines_for("SkylakeX", *AVX512),
}


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_the_suite_passes(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    absent = target.needs - {one for one, has in llvmlite.binding.get_host_cpu_features().items() if has}
    if absent:
        pytest.skip(f"this processor cannot run it: it has no {', '.join(sorted(absent))}")
    environment = {**os.environ, **target.environment, "AUTOBATCH_CACHE": str(tmp_path / "cache")}
    environment.pop("AUTOBATCH_BACKEND", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{one}" for one in target.tests)],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
