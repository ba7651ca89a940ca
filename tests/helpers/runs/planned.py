"""Record, plan and place mini-batches with the functions of these stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from autobatch.graph.rewrite import DEFAULT, rewrite
from autobatch.memplan.planner import MemoryPlanner
from autobatch.plan.plan import Plan, PlannedCell, PlannedTypes
from autobatch.policies import get
from autobatch.schedule.make import make_schedule
from autobatch.trace.record import Recorder


class Placed(NamedTuple):
    """The plan of a mini-batch, and all types known so far."""

    plan: Plan
    cells: PlannedTypes

    @property
    def used(self) -> list[PlannedCell]:
        """Return the types of the mini-batch's nodes."""
        return [self.cells.cells[kind] for kind in sorted(set(self.plan.graph.type_id.tolist()))]


def place_batch(
    function: Callable[[Any], Any],
    instances: Iterable[Any],
    training: bool = True,
    policy: str = "agenda",
    rewrites: Sequence[str] = DEFAULT,
    planner: MemoryPlanner | None = None,
) -> Placed:
    """Record a function or a module's method over instances; rewrite, schedule and place the graph."""
    recorder, planner = Recorder(function, getattr(function, "__self__", None)), planner or MemoryPlanner()
    graph, _ = rewrite(recorder.record(instances), rewrites)
    cells = [planner.plan_cell(node_type, training) for node_type in recorder.types.types]
    planned = PlannedTypes(cells, list(recorder.slots.shapes), training)
    return Placed(planner.place(graph, make_schedule(graph, get(policy)), planned), planned)


def assert_same_plan(found: Plan, expected: Plan) -> None:
    """Compare all parts of two plans."""
    np.testing.assert_array_equal(found.graph.words, expected.graph.words)
    np.testing.assert_array_equal(found.graph.floats, expected.graph.floats)
    for part in ("batch_type", "batch_ptr", "order"):
        np.testing.assert_array_equal(getattr(found.schedule, part), getattr(expected.schedule, part))
    for field in fields(Plan):
        if field.name not in ("graph", "schedule", "types", "tables"):
            one, other = getattr(found, field.name), getattr(expected, field.name)
            np.testing.assert_array_equal(one, other, err_msg=field.name)
            assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
