"""Test that CUDA kernels of a model are the same at all widths, because their compilation takes seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autobatch.cli.workload import load_workload
from autobatch.compiler.cuda.source import print_stage
from autobatch.compiler.stage import compile_backward, compile_forward
from autobatch.models import MODELS
from helpers.runs.planned import place_batch
from helpers.zoo import machines, transformer
from helpers.zoo.case import Case

WIDTHS = (11, 16, 32, 5, 4, 2)
"""These include 2 and 5, the numbers of tags and classes in some models."""
NARROWEST = {"tree-transformer": 8}
"""Below these widths models differ, because a head has one element."""
MACHINE_WIDTHS = (11, 16, machines.SLOTS, machines.SHIFTS)


def sources(model: Any, instances: list[Any]) -> set[str]:
    """Return the sources of all kernels of a step with gradients."""
    return {
        text
        for cell in place_batch(model.loss, instances).used
        for compile_stage in (compile_forward, compile_backward)
        for text in print_stage(compile_stage(cell)).texts.values()
    }


def draw(case: Case, module: Any, width: int, monkeypatch: pytest.MonkeyPatch, n: int = 8) -> tuple[Any, list[Any]]:
    """Draw a model of the zoo with another width, and instances."""
    monkeypatch.setattr(module, "DIM", width)
    rng = np.random.default_rng(0)
    return case.make(rng), [case.draw(rng) for _ in range(n)]


@pytest.mark.cases(0, 8)
@pytest.mark.parametrize("name", MODELS)
def test_models_of_all_widths_share_their_sources(name: str) -> None:
    """Powers of two, and the numbers of classes in the data, must not be special."""
    widths = [max(width, NARROWEST.get(name, 0)) for width in WIDTHS]
    workload = load_workload(name, None, widths[0], seed=0)
    models = [workload.spec.build(workload.dataset, width, np.random.default_rng(0)) for width in widths]
    first, *others = [sources(model, workload.first(8)) for model in models]
    assert others == [first] * len(others)


@pytest.mark.slow
@pytest.mark.parametrize("case", machines.CASES, ids=lambda case: case.name)
def test_machines_of_all_widths_share_their_sources(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory may have as many rows as a vector has elements."""
    first, *others = [sources(*draw(case, machines, width, monkeypatch)) for width in MACHINE_WIDTHS]
    assert others == [first] * len(others)


def test_transformers_of_all_widths_share_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over the width divide by a power of two and by another number."""
    case = next(case for case in transformer.CASES if case.name == "transformer")
    first, *others = [sources(*draw(case, transformer, width, monkeypatch)) for width in (12, 16, 6)]
    assert others == [first] * len(others)
