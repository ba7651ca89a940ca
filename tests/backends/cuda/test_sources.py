"""Test that handwritten kernels compile for GPUs, if NVIDIA's compiler is available."""

from __future__ import annotations

from pathlib import Path

import pytest

from autobatch.compiler.cuda.source import INDEX_TYPES, REALS, module_text
from autobatch.devices.gpu import TO_BF16
from helpers.runs.device_kernels import MODULES, Module
from helpers.runs.gpu_compiler import compile_for_gpus, needs_compiler


@pytest.mark.slow
@needs_compiler
def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    """They must compile without warnings."""
    sources = [Module("\n".join(module.text for module in MODULES.values()), ()).source(dtype) for dtype in REALS]
    sweeps = [module_text({}, dtype, index_type) for dtype, index_type in zip(REALS, INDEX_TYPES, strict=True)]
    for source in [*sources, *sweeps, TO_BF16]:
        compile_for_gpus(source, tmp_path)
