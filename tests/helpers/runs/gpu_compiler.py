"""Compile CUDA C++ for GPUs that need not be present."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from autobatch.compiler.cuda.resources import COMPILER, GPUS, has_compiler

needs_compiler = pytest.mark.skipif(not has_compiler(), reason=f"needs {COMPILER}")


def compile_for_gpus(source: str, folder: Path, *allowed: int) -> str:
    """Compile a source for all of `GPUS`; every warning is an error, except those with the `allowed` numbers.

    Returns:
        The compiler's report of the resources that each kernel needs.
    """
    text = folder / "kernels.cu"
    text.write_text(source)
    gpus = [f"-gencode=arch={gpu.replace('sm', 'compute')},code={gpu}" for gpu in GPUS]
    options = ["-std=c++17", "-Xptxas=-v", "-Werror=all-warnings", *(f"-diag-suppress={number}" for number in allowed)]
    command = [COMPILER, *gpus, *options, "-fatbin", "-o", str(text.with_suffix(".fatbin")), str(text)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
