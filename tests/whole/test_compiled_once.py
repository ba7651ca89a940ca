"""What is compiled for one width and float type of a model serves the others: counted, and read off the sources."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.workload import load_workload
from autobatch.compiler.numba.inlined import Built, Inlined
from autobatch.compiler.numba.loading import load
from autobatch.compiler.numba.sources import write_sources
from autobatch.compiler.stage import compile_backward, compile_forward
from autobatch.models import MODELS
from helpers.runs.planned import place_batch
from helpers.zoo import machines, transformer
from helpers.zoo.case import Case

WIDTHS = (11, 16, 32, 5, 4, 2)
"""Also 2 tags and 5 classes, of which some models have as many."""
NARROWEST = {"tree-transformer": 8}
"""Below these widths models are another case: a head of one element."""
MACHINE_WIDTHS = (11, 16, machines.SLOTS, machines.SHIFTS)
TURING = next(case for case in machines.CASES if case.name == "neural turing machine")


def sources(model: Any, instances: list[Any]) -> set[str]:
    """The sources of all kernels of a step with gradients."""
    return {
        kernel.text
        for cell in place_batch(model.loss, instances).used
        for compile_stage in (compile_forward, compile_backward)
        for kernel in write_sources(compile_stage(cell)).kernels
        if kernel is not None
    }


def draw(case: Case, module: Any, width: int, monkeypatch: pytest.MonkeyPatch, n: int = 8) -> tuple[Any, list[Any]]:
    """A model of the zoo of another width, and instances."""
    monkeypatch.setattr(module, "DIM", width)
    rng = np.random.default_rng(0)
    return case.make(rng), [case.draw(rng) for _ in range(n)]


@pytest.mark.cases(0, 8)
@pytest.mark.parametrize("name", MODELS)
def test_models_of_all_widths_share_their_sources(name: str) -> None:
    """Widths that are powers of two, and as many as the data have classes, are no other case."""
    widths = [max(width, NARROWEST.get(name, 0)) for width in WIDTHS]
    workload = load_workload(name, None, widths[0], seed=0)
    models = [workload.spec.build(workload.dataset, width, np.random.default_rng(0)) for width in widths]
    first, *others = [sources(model, workload.first(8)) for model in models]
    assert others == [first] * len(others)


@pytest.mark.slow
@pytest.mark.parametrize("case", machines.CASES, ids=lambda case: case.name)
def test_machines_of_all_widths_share_their_sources(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory may have as many rows as vectors have elements."""
    first, *others = [sources(*draw(case, machines, width, monkeypatch)) for width in MACHINE_WIDTHS]
    assert others == [first] * len(others)


def test_transformers_of_all_widths_share_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over the width divide by a power of two, and by another number."""
    case = next(case for case in transformer.CASES if case.name == "transformer")
    first, *others = [sources(*draw(case, transformer, width, monkeypatch)) for width in (12, 16, 6)]
    assert others == [first] * len(others)


@pytest.mark.slow
def test_a_new_width_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are counted where they are loaded, so that those kept on disk count too."""
    counts = []
    for width in MACHINE_WIDTHS:
        model, tapes = draw(TURING, machines, width, monkeypatch)
        ab.batched(model.loss, policy="agenda", backend="cpu").value_and_grad(tapes)
        counts.append((load.cache_info().misses, len(signatures())))
    assert counts == [counts[0]] * len(counts)


@pytest.mark.slow
def test_another_float_type_compiles_the_arithmetic_alone() -> None:
    """What else kernels call is that of the first type."""
    folder = Path(__file__).parent
    path = [str(folder), str(folder.parent), *sys.path]  # a process of its own has loaded nothing before
    call = "import json, test_compiled_once as t; print(json.dumps(t.functions_of_another_float_type()))"
    done = subprocess.run(
        [sys.executable, "-c", call],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    new = json.loads(done.stdout.splitlines()[-1])
    assert new, "no arithmetic was compiled: what is counted?"
    assert not [name for name, types in new if "float64" not in types]


def functions_of_another_float_type() -> list[tuple[str, str]]:
    """The functions that a training step in float64 needs after one in float32."""
    known: set[tuple[str, str]] = set()
    new: set[tuple[str, str]] = set()
    for dtype in ("float32", "float64"):
        rng = np.random.default_rng(0)
        model, tapes = TURING.make(rng), [TURING.draw(rng) for _ in range(8)]
        optimizer = ab.optim.Adam(model.astype(dtype), lr=1e-3)
        _, gradients = ab.batched(model.loss, policy="agenda", backend="cpu").value_and_grad(tapes)
        ab.optim.clip_by_norm(gradients, 5.0)
        optimizer.step(gradients)
        found = signatures()
        new, known = found - known, found
    return sorted(new)


def signatures() -> set[tuple[str, str]]:
    """The functions that are compiled or loaded in this process, and the types of their arguments."""
    found = [one for one in gc.get_objects() if issubclass(type(one), Inlined) and "compiled" in vars(one)]
    return {
        (f"{one.python.__module__}.{one.__name__}", str(types))
        for one in found
        if not isinstance(one, Built)
        for types in one.compiled.signatures
    }
