"""Kernels compile for GPUs, where NVIDIA's compiler is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from autobatch.compiler.cuda.support import PLACES, module_text
from autobatch.runtime.cuda.gpu import TO_BF16
from device_kernels import MODULES, Module

GPUS, DTYPES = ("sm_80", "sm_90"), ("float32", "float64")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    """Without a warning."""
    sources = [Module("\n".join(module.text for module in MODULES.values()), ()).source(dtype) for dtype in DTYPES]
    sweeps = [module_text({}, dtype, place) for dtype, place in zip(DTYPES, PLACES, strict=True)]
    for number, source in enumerate([*sources, *sweeps, TO_BF16]):
        text = tmp_path / f"{number}.cu"
        text.write_text(source)
        gpus = [f"-gencode=arch={gpu.replace('sm', 'compute')},code={gpu}" for gpu in GPUS]
        command = ["nvcc", *gpus, "-std=c++17", "-Werror=all-warnings", "-fatbin", "-o", f"{text}.fatbin", str(text)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
