"""Test plans: every value is where its readers look for it, and a checker notices if it is not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import policies
from autobatch.backends.cpu.backend import Cpu
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite import DEFAULT, PASSES, rewrite
from autobatch.ir.typetable import NodeType
from autobatch.memplan.planner import MemoryPlanner
from autobatch.ops.shaping import expand
from autobatch.plan.plan import Plan, PlannedCell, PlannedTypes
from autobatch.plan.plan_check import check_plan
from autobatch.policies import get
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import Schedule
from autobatch.trace.record import Recorder
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.planned import Placed, place_batch


class Sums(ab.Module):
    """Leaves that a variadic cell sums and a plain one joins."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.table = ab.Parameter(rng.standard_normal((9, 4)))
        self.join_weight = ab.Linear(8, 4, rng=rng)

    @ab.cell
    def leaf(self, word: int) -> Any:
        x = ab.lookup(self.table, word)
        return x, 2.0 * x

    @ab.cell
    def total(self, leaves: list[Any]) -> Any:
        return ab.sum_n(leaves, shape=((4,), (4,)))

    @ab.cell
    def join(self, left: Any, right: Any) -> Any:
        return self.join_weight(ab.concat((left[0], right[1])))

    def run(self, words: list[int]) -> Any:
        leaves = [self.leaf(word) for word in words]
        return ab.sum(self.join(self.total(leaves), self.total(leaves[1:])))


INSTANCES = [[1, 2, 3], [4], [5, 6, 7, 8, 0], [], [2, 2]]


def make_plan(policy: str = "agenda", training: bool = True) -> Placed:
    return place_batch(Sums().run, [words or [3] for words in INSTANCES], training, policy)


@pytest.mark.parametrize("policy", ["unbatched", "depth", "agenda"])
def test_plans_pass_the_checker(policy: str) -> None:
    for training in (False, True):
        check_plan(*make_plan(policy, training))


EVERY_POLICY = [*policies.names(), "score+backward", "score+both+compact", "critical+both+compact"]


@pytest.mark.parametrize("training", [pytest.param(False, marks=pytest.mark.slow), True])
def test_plans_of_random_programs_pass_the_checker_under_every_policy(training: bool) -> None:
    """Random cells over random graphs with folded sums: many ports read sums, some of one value several times."""
    n_added = dict.fromkeys(EVERY_POLICY, 0)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=True)
        recorder, planner = Recorder(model.loss, model), MemoryPlanner()
        graph, _ = rewrite(recorder.record(draw_instances(rng, model, n=5)), PASSES if seed % 2 else DEFAULT)
        cells = [planner.plan_cell(node_type, training) for node_type in recorder.types.types]
        planned = PlannedTypes(cells, list(recorder.slots.shapes), training)
        for policy in EVERY_POLICY:
            plan = planner.place(graph, make_schedule(graph, get(policy)), planned)
            check_plan(plan, planned)
            n_added[policy] += int(plan.adds.sum())
    assert set(n_added) == set(EVERY_POLICY)
    assert min(n_added.values()) > 0


def test_rows_are_in_schedule_order_so_a_batch_reads_contiguous_rows() -> None:
    plan, _ = make_plan("depth")
    for (kind, start, end, _), (batch_type, nodes) in zip(plan.batches, plan.schedule, strict=True):
        assert kind == batch_type
        np.testing.assert_array_equal(plan.row[nodes], np.arange(start, end))


def test_every_edge_and_output_has_one_destination() -> None:
    plan, _ = make_plan()
    assert plan.dest.size == plan.graph.n_edges + plan.graph.n_outputs
    assert plan.dest.dtype == np.int32


def test_inference_has_no_gradients_and_keeps_nothing() -> None:
    training, _ = make_plan(training=True)
    inference, planned = make_plan(training=False)
    assert inference.gradient_offset == 0
    assert inference.size < training.size / 2
    assert not planned.saved_width.any()


def test_a_port_that_the_body_does_not_use_has_no_place() -> None:
    """`join` reads one value of each pair, so half of the pairs' values are never written for it."""
    _, planned = make_plan()
    join = next(cell for cell in planned.cells if cell.type.name == "join")
    assert join.layout.input_width == (8,)


def other(values: Any, at: int, value: Any) -> Any:
    """Return a copy with another number at one place."""
    changed = values.copy()
    changed[at] = value
    return changed


def reversed_data(plan: Plan) -> Any:
    """Return the int attributes of a plan, with the rows of each block reversed."""
    return np.concatenate([plan.int_data[block][::-1].ravel() for block in range(plan.block_rows.size)])


def lengthened(plan: Plan) -> Any:
    """Return the segments of a plan, with the first one of each group lengthened."""
    segments = plan.segments.copy()
    for first, end in zip(plan.segment_base[:-1].tolist(), plan.segment_base[1:].tolist(), strict=True):
        segments[first + 1 : end - 1] += 1
    return segments


CORRUPTIONS: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "a destination moved": lambda plan: {"dest": np.where(np.arange(plan.dest.size) == 5, plan.dest[0], plan.dest)},
    "a destination outside": lambda plan: {"dest": np.where(np.arange(plan.dest.size) == 5, plan.size, plan.dest)},
    "two destinations exchanged": lambda plan: {"dest": plan.dest[np.r_[-1, 1 : plan.dest.size - 1, 0]]},
    "two nodes in one row": lambda plan: {"node_at": np.r_[plan.node_at[:1], plan.node_at[:1], plan.node_at[2:]]},
    "two rows exchanged": lambda plan: {"row": plan.row[np.r_[1, 0, 2 : plan.row.size]]},
    "an output elsewhere": lambda plan: {"slot_base": plan.slot_base + 1},
    "a segment longer": lambda plan: {"segments": lengthened(plan)},
    "blocks elsewhere": lambda plan: {"base": plan.base + 1},
    "saved values over gradients": lambda plan: {"saved_base": plan.saved_base - plan.gradient_offset},
    "saved values over others": lambda plan: {"saved_base": np.full_like(plan.saved_base, plan.saved_base[0])},
    "saved values outside": lambda plan: {"saved_base": plan.saved_base + plan.size},
    "data of another node": lambda plan: {"ints": reversed_data(plan)},
}  # fmt: skip


def test_the_checker_refuses_a_corrupted_plan() -> None:
    for corruption in CORRUPTIONS:
        plan, planned = make_plan()
        with pytest.raises(ab.PlanError, match="checking a plan"):
            check_plan(replace(plan, **CORRUPTIONS[corruption](plan)), planned)


@pytest.mark.cases(1)
@pytest.mark.parametrize("start", range(5))
def test_the_checker_refuses_any_wrong_number(start: int) -> None:
    """Changes one place, row and pointer of a random plan."""
    for seed in range(start, 20, 5):
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=True)
        plan, cells = place_batch(model.loss, draw_instances(rng, model, n=4), rewrites=())
        check_plan(plan, cells)
        for name in ("dest", "row", "node_at"):
            values = getattr(plan, name)
            at, value = int(rng.integers(values.size)), int(rng.integers(values.max() + 2))
            with pytest.raises(ab.PlanError, match="checking a plan") if value != values[at] else nullcontext():
                check_plan(replace(plan, **{name: other(values, at, value)}), cells)


class Foreign:
    """A user's planner that changes the plan of the built-in one."""

    def __init__(self, change: Callable[[Plan], Any]) -> None:
        self.change = change
        self.planner = MemoryPlanner()

    def plan_cell(self, node_type: NodeType, training: bool) -> PlannedCell:
        return self.planner.plan_cell(node_type, training)

    def place(self, graph: Graph, schedule: Schedule, cells: PlannedTypes) -> Any:
        return self.change(self.planner.place(graph, schedule, cells))


NO_PLANS: dict[str, Callable[[Plan], Any]] = {
    "nothing": lambda plan: None,
    "a schedule": lambda plan: plan.schedule,
    "of another graph": lambda plan: make_plan()[0],
    "destinations missing": lambda plan: replace(plan, dest=plan.dest[:-1]),
    "rows missing": lambda plan: replace(plan, row=plan.row[:3]),
    "nodes missing": lambda plan: replace(plan, node_at=plan.node_at[:-1]),
    "bases missing": lambda plan: replace(plan, base=plan.base[:2]),
    "no data": lambda plan: replace(plan, ints=plan.ints[:0]),
    "a buffer too small": lambda plan: replace(plan, size=8, gradient_offset=4),
    "texts": lambda plan: replace(plan, dest=plan.dest.astype(str)),
}  # fmt: skip


def test_runs_refuse_what_a_users_planner_gets_wrong() -> None:
    corruptions = [lambda plan, change=change: replace(plan, **change(plan)) for change in CORRUPTIONS.values()]
    for change in (*NO_PLANS.values(), *corruptions):
        model = Sums()
        for backend in ("reference", Cpu()):
            loss = ab.batched(model.run, planner=Foreign(change), backend=backend)
            with pytest.raises(ab.PlanError, match=r"(checking a plan|placing a mini-batch with planner)"):
                loss.value_and_grad([words or [3] for words in INSTANCES])


def test_runs_take_what_a_users_planner_gets_right() -> None:
    model = Sums()
    instances = [words or [3] for words in INSTANCES] * 13
    loss = ab.batched(model.run, planner=Foreign(lambda plan: plan))
    value, _ = loss.value_and_grad(instances)
    np.testing.assert_allclose(value, np.mean([model.run(words) for words in instances]), rtol=1e-6)


def test_a_buffer_of_more_than_two_thousand_million_elements_has_long_destinations() -> None:
    """Only the plan is made, for 40 sums of a value with 2**26 elements."""

    @ab.cell
    def large(x: Any) -> Any:
        return expand(x, (2**13, 2**13))

    @ab.cell
    def total(x: Any) -> Any:
        return ab.sum(x)

    def run(_: None) -> Any:
        x = large(np.zeros(2**13))
        return [total(x) for _ in range(40)]

    plan = place_batch(run, [None], training=False, rewrites=()).plan
    assert plan.size > 2**31
    assert plan.dest.dtype == np.int64
    places = plan.destinations(1)
    np.testing.assert_array_equal(np.diff(places), np.full(39, 2**26))
    assert 0 <= places[0] < places[-1] <= plan.size - 2**26
