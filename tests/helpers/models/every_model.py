"""The stages of every model: those with a twin in `helpers.twins.cases`, and those of the zoo."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
import pytest

from autobatch.compiler.stage import StageProgram, compile_backward, compile_forward
from helpers.runs.planned import place_batch
from helpers.twins.cases import CASES, MORE
from helpers.zoo import cases
from helpers.zoo.case import Case

Drawn = tuple[Any, list[Any]]


def _draw(case: Case) -> Drawn:
    rng = np.random.default_rng(1)
    model = case.make(rng)
    return model, [case.draw(rng) for _ in range(4)]


MODELS: dict[str, Callable[[], Drawn]] = {
    **{case.name: partial(case.draw, seed=3, n_instances=4, dim=5) for case in (*CASES, *MORE)},
    **{case.name: partial(_draw, case) for case in cases.CASES},
}
"""Functions that draw a model and instances, by name."""
assert len(MODELS) == len(CASES) + len(MORE) + len(cases.CASES), "names differ"

LITERATURE = (
    "tree-lstm", "lattice-lstm", "bilstm-tagger, 1 layers", "child-sum tree-lstm", "n-ary tree-lstm", "tree-gru",
    "mv-rnn", "seq2seq with dot attention, tied", "seq2seq with additive attention",
)  # fmt: skip
"""Models with published cells: LSTM, GRU, their tree and lattice variants, and MV-RNN."""


def models(names: Collection[str], quick: Collection[str]) -> pytest.MarkDecorator:
    """Parametrize a test by the names of models, of which all but the `quick` ones are slow."""
    assert set(quick) <= set(names) <= set(MODELS)
    params = [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("name", params)


def stages_of(name: str) -> list[StageProgram]:
    """Return the stages of the cells of a model, forward and backward."""
    model, instances = MODELS[name]()
    return stages_of_cells(model.loss, instances)


def stages_of_cells(function: Any, instances: list[Any]) -> list[StageProgram]:
    """Return the stages of the cells that a function calls, forward and backward."""
    cells = place_batch(function, instances, training=True).used
    return [compile_stage(cell) for cell in cells for compile_stage in (compile_forward, compile_backward)]
