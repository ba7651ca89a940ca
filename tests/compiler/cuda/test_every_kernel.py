"""Test that all models' kernels compile for GPUs, and that those of the literature's cells do not spill registers."""

from __future__ import annotations

from pathlib import Path

import pytest

from autobatch.compiler.cuda.resources import GPUS, Resources, measure_resources
from autobatch.compiler.cuda.source import REALS, module_text, print_stage
from helpers.models.every_model import LITERATURE, MODELS, models, stages_of
from helpers.runs.gpu_compiler import compile_for_gpus, needs_compiler
from helpers.runs.ways import each

PLACE = "int32"
NEVER_READ = 550  # warning about variables that are set but never read, such as unused results of loops


def kernels_of(name: str) -> dict[str, str]:
    return {kernel: text for stage in stages_of(name) for kernel, text in print_stage(stage).texts.items()}


@pytest.mark.cases(0, 5)
@needs_compiler
@models(MODELS, quick=())
@each("dtype", REALS)
def test_kernels_compile_without_a_warning(name: str, dtype: str, tmp_path: Path) -> None:
    compile_for_gpus(module_text(kernels_of(name), dtype, PLACE), tmp_path, NEVER_READ)


@pytest.mark.cases(0, 4)
@needs_compiler
@models(LITERATURE, quick=())
@each("dtype", REALS)
def test_the_cells_of_the_literature_fit_in_registers(name: str, dtype: str) -> None:
    kernels = kernels_of(name)
    found = measure_resources(kernels, dtype, PLACE, name)
    assert list(found) == list(GPUS)
    for resources in found.values():
        assert resources.keys() == kernels.keys()
        spilled = {kernel: own for kernel, own in resources.items() if own.spilled_bytes or own.reloaded_bytes}
        assert spilled == dict[str, Resources]()
