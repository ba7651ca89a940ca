"""Test that laying out a cell ends: the work of the search is counted and reported."""

from __future__ import annotations

import time

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.ir.simplify import simplify
from autobatch.memplan import check_cell_layout, plan_cell
from autobatch.memplan.cell.aligned import AlignedOrders, Line, Work
from autobatch.memplan.cell.constraints import MAX_WORK
from autobatch.memplan.cell.joining import join_products
from autobatch.memplan.cell.layout import UNTRIED
from autobatch.memplan.planner import MemoryPlanner
from autobatch.testing import check_grads
from autobatch.trace.record import Recorder
from helpers.models.child_sum_cells import ChildSum, node_program
from helpers.programs.literature_cells import SEVEN, trace_cell

ONE_STEP = 20_000  # upper bound on the work of adding a run at the end


@pytest.mark.cases(2)
@pytest.mark.parametrize("arity", [2, 3, 6, 12, 24])
def test_the_search_for_a_layout_ends_at_its_budget(arity: int) -> None:
    """Without a budget, 24 children took two minutes. Still nothing is copied, and products are stacked."""
    for joint in (True, False):
        program = join_products(simplify(node_program(arity, joint)))
        layout = plan_cell(program)
        check_cell_layout(layout)
        assert layout.work <= MAX_WORK + ONE_STEP
        assert layout.copies == ()
        assert str(layout) == str(plan_cell(program))
        assert bool(layout.untried) == (UNTRIED in str(layout))
        assert bool(layout.untried) == (layout.work >= MAX_WORK)


def test_what_was_given_up_is_told() -> None:
    layout = plan_cell(join_products(simplify(node_program(24))))
    n, moved = len(layout.untried), sum(copy.moved_bytes(32) for copy in layout.untried)
    assert n > 10
    assert f"and {n} operands, {moved:,} bytes: {UNTRIED}" in str(layout)


@pytest.mark.slow
def test_explain_tells_what_was_given_up() -> None:
    loss = ab.batched(ChildSum().loss, backend="reference")
    assert UNTRIED in str(loss.explain([24], memory=True))


def test_cells_of_the_literature_are_far_from_the_budget() -> None:
    for name in SEVEN:
        layout = plan_cell(trace_cell(SEVEN[name].body))
        assert (layout.work <= 0.8 * MAX_WORK, layout.untried, layout.copies) == (True, (), ())


def test_lines_that_contradict_each_other_are_refused_without_a_search() -> None:
    """Ten free groups of lines, and one with contradictory lines: a search would try every order of the groups."""
    letters = [f"{k}{side}" for k in range(12) for side in "abcd"]
    work = Work(10**9)
    orders = AlignedOrders([letters, [f"{k}{side}" for k in range(12) for side in "wxyz"]], work)
    for k in range(10):
        pair = (f"{k}a",), (f"{k}b",), (f"{k}c",)
        assert orders.add([Line(k, pair), Line(k, ((f"{k}w",), (f"{k}x",), (f"{k}y",)))])
    assert orders.add([Line("one", (("10a",), ("10b",))), Line("one", (("10w",), ("10x",)))])
    before = work.left
    assert not orders.add([Line("two", (("10b",), ("10a",))), Line("two", (("10w",), ("10x",)))])
    assert not orders.gave_up
    assert before - work.left < 1_000


@pytest.mark.slow
@pytest.mark.parametrize("joint", [True, False])
def test_a_cell_of_24_children_is_right(joint: bool) -> None:
    model = ChildSum(dim=2, joint=joint).astype("float64")
    for backend in ("reference", Cpu()):
        loss = ab.batched(model.loss, backend=backend)
        np.testing.assert_allclose(loss([24, 3]), [model.loss(24), model.loss(3)], rtol=1e-12)
        check_grads(loss, [24, 3], model, np.random.default_rng(0))


@pytest.mark.slow
def test_a_cell_of_24_children_is_planned_in_no_time() -> None:
    """It takes 0.3 s on an idle machine, including autodiff; the limit is generous."""
    model = ChildSum()
    recorder = Recorder(model.loss, model)
    recorder.record([2])
    recorder.record([24])
    node = max((t for t in recorder.types.types if t.name == "node"), key=lambda t: len(t.program.vars))
    start = time.process_time()
    MemoryPlanner().plan_cell(node, training=True)
    assert time.process_time() - start < 2
