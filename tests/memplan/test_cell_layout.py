"""Test layouts of cells: copied bytes against the minimum over all orders, the seven cells, and the checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import PlanError
from autobatch.memplan import CellLayout, check_cell_layout, plan_cell
from autobatch.memplan.cell.constraints import RESULT
from autobatch.memplan.cell.layout import show_layout
from autobatch.memplan.cell.memory import NODE_COLUMNS, SHARED_VALUES
from helpers.checkers.layout_brute_force import fewest_bytes
from helpers.programs.literature_cells import INSTANCES, SEVEN, Weights, trace_cell, tree_gru_shared, tree_lstm_leaf
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.programs.small_cells import draw_matmuls, draw_ops
from helpers.runs.program_runs import trace_types

ROWS = 3


def plan_checked(body: Callable[..., Any], width: int = 4) -> CellLayout:
    layout = plan_cell(trace_cell(body, width))
    check_cell_layout(layout)
    return layout


def names(layout: CellLayout, area: str) -> str:
    return " ".join(layout.memory.item_name(item) for item in layout.areas[area])


def bytes_over_the_fewest(layout: CellLayout) -> int:
    """Return the copied bytes beyond the fewest for these batches, over all orders of items and members."""
    check_cell_layout(layout)
    memory = layout.memory
    always = sum(4 * ROWS * memory.program.vars[v].size for v in memory.copying if v not in memory.joins)
    batches = {n: batch.values for n, batch in enumerate(layout.batches)}
    return layout.copied_bytes(ROWS) - fewest_bytes(memory, batches, ROWS) - always


@pytest.mark.cases(1)
@pytest.mark.parametrize("start", range(0, 60, 20))
def test_the_bytes_copied_are_the_fewest(start: int) -> None:
    for seed in range(start, start + 20):
        assert bytes_over_the_fewest(plan_cell(draw_matmuls(np.random.default_rng(seed)), ROWS)) == 0


@pytest.mark.cases(0, 3)
@pytest.mark.parametrize("start", range(60, 160, 20))
def test_the_bytes_copied_are_the_fewest_of_seven_items(start: int) -> None:
    for seed in range(start, start + 20):
        program = draw_matmuls(np.random.default_rng(seed), max_node_items=7, max_weights=3)
        assert bytes_over_the_fewest(plan_cell(program, ROWS)) == 0


def test_the_seven_cells_copy_nothing() -> None:
    """At width 128 with 32 instances, where the published planner, as designed, copies 48 to 4128 kB."""
    for name in SEVEN:
        layout = plan_cell(trace_cell(SEVEN[name].body))
        check_cell_layout(layout)
        assert len(layout.copies) == 0 < SEVEN[name].copies
        assert layout.copied_bytes(INSTANCES) == 0 < 1024 * SEVEN[name].kilobytes
        assert layout.parameter_copies == 0
        assert layout.apart_bytes(INSTANCES) < 1024 * SEVEN[name].kilobytes


def test_one_set_of_parameters_for_two_children_is_one_stack_for_both() -> None:
    layout = plan_checked(tree_gru_shared, 128)
    for batch in layout.batches[:2]:
        assert (len(batch.values), batch.views) == (2, {RESULT: "full", 0: "full", 1: "same"})
    assert (layout.copied_bytes(), layout.parameter_copies) == (0, 0)


@pytest.mark.parametrize("start", range(2))
def test_layouts_of_random_models(start: int) -> None:
    """Cells with slices, joins, attributes and variadic ports. Planning twice gives the same layout."""
    for seed in range(start, 6, 2):
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=True)
        programs = trace_types(model, draw_instances(rng, model, n=4))
        assert len(programs) >= 2
        for program in programs:
            layout = plan_cell(program)
            check_cell_layout(layout)
            assert str(layout) == str(plan_cell(program))


@pytest.mark.parametrize("start", range(2))
def test_layouts_of_random_products_sums_and_tangents(start: int) -> None:
    for seed in range(start, 8, 2):
        layout = plan_cell(draw_ops(np.random.default_rng(seed), 15))
        check_cell_layout(layout)
        assert str(layout).count("batches") == 2


def stacked_twice(w: Weights, x: Any) -> Any:
    """A and B, B and C, and C and A are stacks of one batch each: a cycle, so one of the three is a copy."""
    first = ab.tanh((w["A"] @ x) * (w["B"] @ x))
    second = ab.tanh((w["B"] @ first) * (w["C"] @ first))
    return w["C"] @ second, w["A"] @ second


def test_a_parameter_has_one_home_and_other_uses_are_counted_copies() -> None:
    layout = plan_checked(stacked_twice)
    (copy,) = layout.copies
    assert (copy.area, copy.elements, copy.moved_bytes(1), copy.moved_bytes(99)) == (SHARED_VALUES, 32, 128, 128)
    assert layout.parameter_copies == 1
    assert copy.what.startswith("x of matmul of ")
    assert copy.reason == "it does not fit beside the views chosen before"


def test_products_of_two_inputs_are_two_batches() -> None:
    layout = plan_checked(lambda w, x, h: tuple([w[k] @ x for k in "ABC"] + [w[k] @ h for k in "DE"]))
    assert [len(batch.values) for batch in layout.batches] == [3, 2]
    assert len(layout.copies) == 0


def test_joins_are_no_copies_unless_they_want_two_orders() -> None:
    one = plan_checked(lambda w, x, h: w.shaped("A", (4, 8)) @ ab.concat((x, h)))
    assert (names(one, NODE_COLUMNS), len(one.copies)) == ("%4 x h", 0)
    both = plan_checked(
        lambda w, x, h: (w.shaped("A", (4, 8)) @ ab.concat((x, h)), w.shaped("B", (4, 8)) @ ab.concat((h, x)))
    )
    assert (len(both.joins), both.copied_bytes(1), len(both.copies)) == (1, 32, 1)
    assert both.copies[0].reason == "it does not fit beside the views chosen before"


def test_concats_that_are_always_copies() -> None:
    for body, reason in [
        (lambda w, x: w.shaped("A", (4, 8)) @ ab.concat((x, x)), "a part is in it twice"),
        (lambda w, x: ab.concat((x[::-1], x)), "a part is read through strides"),
        (lambda w, x: ab.concat((x, w["b"])), "its parts lie in different areas"),
        (lambda w, x: ab.concat((x, ab.tanh(x)))[2:6], "it is read in pieces"),
        (lambda w, m: ab.concat((m, ab.tanh(m)), axis=1), "it interleaves its parts"),
    ]:
        (copy,) = plan_checked(body).copies
        assert copy.reason == reason


def test_slices_of_one_product_are_views_that_stay_in_place() -> None:
    """Four gates of one stacked parameter: sigmoids of neighbours read a view; those of i and o do not."""

    def gates(w: Weights, x: Any) -> Any:
        i, f, u, o = ab.split(w.shaped("W", (16, 4)) @ x, 4)
        return ab.sigmoid(i), ab.sigmoid(f), ab.tanh(u), ab.tanh(o)

    layout = plan_checked(gates)
    assert "%2[0:4] %2[4:8] %2[8:12] %2[12:16]" in names(layout, NODE_COLUMNS)
    assert (layout.copied_bytes(), layout.apart_bytes()) == (0, 0)


def test_slices_that_are_no_neighbours_are_read_in_place_by_a_fused_kernel() -> None:
    """The sigmoids need the first and third of four parts, whose order the program determines."""

    def gates(w: Weights, x: Any) -> Any:
        i, u, f, _ = ab.split(w.shaped("W", (16, 4)) @ x, 4)
        return ab.sigmoid(i), ab.tanh(u), ab.sigmoid(f)

    layout = plan_checked(gates)
    (apart,) = layout.apart
    assert (layout.copied_bytes(), apart.moved_bytes(1)) == (0, 2 * 4 * 4)
    assert apart.reason == "no order of the items makes it a view"


def test_a_layout_prints() -> None:
    assert show_layout(plan_checked(tree_lstm_leaf)).splitlines() == [
        "tree_lstm_leaf: 12 instructions in 7 batches; 0 copies, 0 bytes for 32 nodes",
        "  node, 52 elements",
        "    before: x %2 %4 %6 %8 %10 %12 %13 %14 %15 %16 %17 %18",
        "    after:  x %14 %15 %17 %18 %10 %2 %6 %12 %4 %8 %13 %16",
        "  shared, 60 elements",
        "    before: W_i b_i W_o b_o W_u b_u",
        "    after:  W_u W_i W_o b_u b_i b_o",
        "  batches",
        "    1: matmul x 3: result = %10 %2 %6, x = W_u W_i W_o, y = x",
        "    2: add x 3: result = %12 %4 %8, x = %10 %2 %6, y = b_u b_i b_o",
        "    3: sigmoid x 2: result = %13 %16, x = %4 %8",
        "    4: tanh x 1: result = %14, x = %12",
        "    5: mul x 1: result = %15, x = %13, y = %14",
        "    6: tanh x 1: result = %17, x = %15",
        "    7: mul x 1: result = %18, x = %16, y = %17",
    ]


def broken_layouts() -> dict[str, CellLayout]:
    layout = plan_cell(trace_cell(tree_lstm_leaf, 4))
    node, shared = layout.areas[NODE_COLUMNS], layout.areas[SHARED_VALUES]
    first, *others = layout.batches
    return {
        "has two places": replace(layout, areas={**layout.areas, NODE_COLUMNS: (*node, node[0])}),
        "need one": replace(layout, areas={**layout.areas, NODE_COLUMNS: node[1:]}),
        "is listed as a view": replace(layout, areas={**layout.areas, SHARED_VALUES: shared[1:] + shared[:1]}),
        "before it is computed": replace(layout, batches=(*others, first)),
        "batches run": replace(layout, batches=layout.batches[:-1]),
        "are listed": replace(layout, batches=(first._replace(views={}), *others)),
        "cannot run as one": replace(
            layout, batches=(first, others[0], others[1]._replace(values=others[1].values + others[2].values))
        ),
    }


def test_the_checker_refuses() -> None:
    for claim in broken_layouts():
        with pytest.raises(PlanError, match=claim):
            check_cell_layout(broken_layouts()[claim])
