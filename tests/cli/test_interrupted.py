"""After Ctrl-C during the compilation of cells, the same process continues as if it had not begun."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.compiled import SharedValues
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cpu.compiled_cell import CompiledStage
from helpers.twins.cases import draw_trees_case


@pytest.mark.parametrize("moment", range(0, 12, 3))
def test_a_step_can_be_taken_again(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any stage of a cell: three types have two stages each, and steps after those are tested too."""
    model, trees = draw_trees_case(0, 6, 3)
    expected, _ = ab.batched(model.loss, backend="reference").value_and_grad(trees)
    loss = ab.batched(model.loss, backend=Cpu(poison=True))
    find_shared, refresh, left = SharedValues.__init__, CompiledStage.refresh, [moment]

    def count(function: Any) -> Any:
        def counted(*args: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            return function(*args)

        return counted

    monkeypatch.setattr(SharedValues, "__init__", count(find_shared))
    monkeypatch.setattr(CompiledStage, "refresh", count(refresh))
    with pytest.raises(KeyboardInterrupt):
        loss.value_and_grad(trees)
    for _ in range(2):
        found, _ = loss.value_and_grad(trees)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
