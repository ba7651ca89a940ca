"""Test that placement refuses invalid plans, and uses types as they were when a mini-batch was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import _native
from autobatch.memplan.planner import MemoryPlanner
from autobatch.plan.plan import PlannedTypes
from autobatch.policies import get
from autobatch.schedule.make import make_schedule
from autobatch.trace.record import Recorder
from helpers.runs.planned import place_batch


class Model(ab.Module):
    """Cells that are traced when an instance first needs them."""

    def __init__(self) -> None:
        self.table = ab.Parameter(np.random.default_rng(0).standard_normal((9, 3)))

    @ab.cell
    def leaf(self, word: int) -> Any:
        return ab.lookup(self.table, word)

    @ab.cell
    def join(self, values: list[Any]) -> Any:
        return ab.sum_n(values)

    @ab.cell
    def twice(self, value: Any) -> Any:
        return value + value, value

    @ab.cell
    def scores(self, words: list[int]) -> Any:
        x = ab.stack([ab.lookup(self.table, word) for word in words])
        return ab.sum(x @ x.T)

    def run(self, size: int) -> Any:
        values = [self.leaf(1) for _ in range(size)]
        return self.join(values) if size < 3 else self.twice(self.join(values))[0]

    def score(self, size: int) -> Any:
        return self.scores([1] * size)


def arguments(function: Callable[[int], Any], instances: list[int]) -> list[Any]:
    plan, types = place_batch(function, instances)
    graph, schedule = plan.graph, plan.schedule
    batches = schedule.batch_type, schedule.batch_ptr, schedule.order
    return [graph.words, graph.floats, batches, plan.types, types.layout]


def test_types_that_come_while_a_mini_batch_is_planned_change_nothing() -> None:
    model = Model()
    recorder, planner = Recorder(model.run, model), MemoryPlanner()
    graph = recorder.record([1, 2, 2])
    cells = [planner.plan_cell(node_type, True) for node_type in recorder.types.types]
    types = PlannedTypes(cells, list(recorder.slots.shapes), True)
    schedule = make_schedule(graph, get("agenda"))
    before = planner.place(graph, schedule, types)
    recorder.record([4])
    assert len(recorder.types) > len(cells)
    after = planner.place(graph, schedule, PlannedTypes(cells, types.slot_shapes, True))
    for name in ("row", "base", "dest_base", "dest_ptr", "dest", "adds", "slot_base", "size"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


@pytest.mark.parametrize("part", ["slot_width", "saved_width"])
@pytest.mark.parametrize("width", [2**62, 2**63 - 1, -1])
def test_widths_that_cannot_be_counted_are_refused(part: str, width: int) -> None:
    args = arguments(Model().run, [1, 2, 2])
    args[4] = args[4]._replace(**{part: np.full_like(getattr(args[4], part), width)})
    with pytest.raises(ValueError, match="values must have fewer elements than can be counted"):
        _native.place_values(*args)


@pytest.mark.parametrize("n_rows", [2**31, 2**40])
def test_more_rows_than_can_be_counted_are_refused(n_rows: int) -> None:
    args = arguments(Model().score, [2, 3])
    cut = args[3].part_cut.copy()
    assert cut.size
    cut[:] = n_rows, 0, n_rows, 1
    args[3] = args[3]._replace(part_cut=cut, part_of=np.full_like(args[3].part_of, -1))
    with pytest.raises(ValueError, match="values must have fewer elements than can be counted"):
        _native.place_values(*args)


def test_edges_need_ports() -> None:
    none = np.zeros(0, np.int32)
    args = arguments(Model().run, [1, 2, 2])
    ptr = np.zeros_like(args[3].port_ptr)
    args[3] = args[3]._replace(port_ptr=ptr, port_plain=none, port_group=none)
    tables = args[4].tables._replace(port_ptr=ptr, port_block=none, port_column=none)
    args[4] = args[4]._replace(tables=tables)
    with pytest.raises(ValueError, match="tables must have the ports that edges lead to, got none"):
        _native.place_values(*args)


def test_areas_end_within_64_bits() -> None:
    first, size = np.zeros(2, np.int32), np.array([2**62, 2**62])
    with pytest.raises(ValueError, match="areas must end within 64 bits"):
        _native.give_out(first, size, 0)
    place, end = _native.give_out(first, size - 1, 0)
    assert (place.tolist(), end) == ([0, 2**62 - 1], 2**63 - 2)
