"""Test that the work of a step depends only on the types in its mini-batch, not on types met earlier."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.ir.typetable import TypeTable
from autobatch.plan.plan import PlannedTypes
from helpers.runs.recorded import planned_types, types_of


class Shapes(ab.Module):
    """Cells that take arrays of any shape."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.w, self.table = ab.Parameter(rng.standard_normal(4)), ab.Parameter(rng.standard_normal((5, 3)))

    @ab.cell
    def score(self, x: Any) -> Any:
        return ab.sum(ab.tanh(x @ self.w))

    @ab.cell
    def words(self, ids: Any) -> Any:
        return ab.sum(ab.lookup(self.table, ids) * self.table[0])

    @ab.cell
    def both(self, x: Any, y: Any) -> Any:
        return ab.log(ab.sum(x * x) + 1.0), ab.sum(x) * ab.sum(y)


def arrays(shapes: Shapes, n: int) -> Any:
    return shapes.score(np.ones((n, 4)))


def ids(shapes: Shapes, n: int) -> Any:
    return shapes.words(np.arange(n) % 5)


def several(shapes: Shapes, n: int) -> Any:
    """Call several cells, with new shapes, an op outside cells, and an output that no loss depends on."""
    return (
        shapes.score(np.ones((n, 4))) + ab.sum(np.ones(n) * shapes.w[0]) + shapes.both(np.ones(n), np.ones((2, n)))[1]
    )


def count_calls(function: Callable[..., Any], *args: Any) -> int:
    profile = cProfile.Profile()
    profile.enable()
    function(*args)
    profile.disable()
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined, no-any-return]


@pytest.mark.cases(3)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("program", [arrays, ids, several])
def test_a_step_costs_the_same_after_any_number_of_shapes(
    program: Callable[[Shapes, int], Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOBATCH_COMPILE_WAIT", "0")
    shapes = Shapes()
    run = ab.batched(lambda n: program(shapes, n), module=shapes, backend=backend)
    costs: dict[str, list[int]] = {"training": [], "inference": [], "new": [], "recorded": []}
    graphs = run.record_all([2, 3])
    for start, stop in pairwise((1, 15, 30, 60)):
        for n in range(start + 1, stop):
            run.value_and_grad([n])
        for _ in range(2):  # the first run registers the types met meanwhile
            run([2, 3])
            run.value_and_grad([2, 3])
            run.value_and_grad(graphs)
        costs["training"].append(count_calls(run.value_and_grad, [2, 3]))
        costs["inference"].append(count_calls(run, [2, 3]))
        costs["recorded"].append(count_calls(run.value_and_grad, graphs))
        costs["new"].append(count_calls(run.value_and_grad, [stop]))
    for kind, (first, *others) in costs.items():
        assert max(others) <= 1.3 * first, (kind, costs[kind])


def test_what_is_known_of_types_is_that_of_all_at_once() -> None:
    """Properties are appended for new types. They equal properties computed for all types at once."""
    shapes = Shapes()
    run = ab.batched(lambda n: several(shapes, n) + ids(shapes, n), module=shapes, backend="reference")
    for n in range(1, 6):
        run([n])
        run.value_and_grad([n])
        run.recorder.types.arrays()
        for training in (True, False):
            _look_at(planned_types(run, training))
    table = TypeTable()
    for node_type in types_of(run):
        table.put(node_type)
    _check_equal(run.recorder.types.arrays(), table.arrays())
    assert run.recorder.types.state == table.state
    for training in (True, False):
        found = planned_types(run, training)
        made = PlannedTypes(found.cells, found.slot_shapes, training)
        for one, other in zip(_look_at(found), _look_at(made), strict=True):
            _check_equal(one, other)


def _look_at(planned: PlannedTypes) -> list[Any]:
    """Return all properties of planned types."""
    stacks: Any = planned.stacks
    return [
        planned.tables, planned.flows, [planned.saved_width], [planned.traces], [planned.row_parameters], [stacks],
        [planned.slot_widths],
    ]  # fmt: skip


def _check_equal(one: Any, other: Any) -> None:
    for x, y in zip(one, other, strict=True):
        assert np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y
        assert not isinstance(x, np.ndarray) or x.dtype == y.dtype
