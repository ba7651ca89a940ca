"""Test values computed in place: nothing is copied inside the cells of the literature and of the models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.ir.program import NODE
from autobatch.memplan.cell.buffer_assignment import make_layout
from autobatch.memplan.cell.inputs import place_columns
from autobatch.memplan.planner import MemoryPlanner
from autobatch.memplan.report import movements
from autobatch.plan.plan import Plan, PlannedTypes
from helpers.programs.literature_cells import SEVEN, Weights, trace_cell
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.planned import place_batch

WIDTH = 6


class OneCell(ab.Module):
    """A cell of the literature over a list of inputs, and the sum of squares of its outputs."""

    def __init__(self, body: Callable[..., Any], width: int = WIDTH) -> None:
        rng = np.random.default_rng(0)
        weights = Weights(width)
        names = body.__code__.co_varnames[1 : body.__code__.co_argcount]
        self.shapes = [(width, width) if name.startswith("m") else (width,) for name in names]
        body(weights, *(np.zeros(shape, np.float32) for shape in self.shapes))
        self.weights = weights.made
        for parameter in self.weights.values():
            parameter.data = rng.standard_normal(parameter.shape)
        self.cell = ab.cell(lambda values: body(weights, *values))

    def outputs(self, values: tuple[Any, ...]) -> Any:
        return self.cell(values)

    def loss(self, values: tuple[Any, ...]) -> Any:
        made = self.cell(tuple(ab.tanh(value) for value in values))
        return sum(ab.sum(y * y) for y in (made if isinstance(made, tuple) else (made,)))

    def draw(self, n: int) -> list[tuple[Any, ...]]:
        rng = np.random.default_rng(1)
        return [tuple(rng.standard_normal(shape) for shape in self.shapes) for _ in range(n)]


def moved_bytes(plan: Plan, cells: PlannedTypes, itemsize: int) -> int:
    """Count the bytes between cells: each destination once forward, and once backward for types with that stage."""
    total = 0
    for kind, cell in enumerate(cells.cells):
        derivative = cell.derivative
        times = 2 if derivative and (derivative.backward or derivative.parameters or derivative.ports) else 1
        for number, output in enumerate(cell.program.outputs):
            first = plan.dest_base[plan.tables.out_ptr[kind] + number]
            last = plan.dest_base[plan.tables.out_ptr[kind] + number + 1]
            n_places = plan.dest_ptr[last] - plan.dest_ptr[first]
            total += times * int(n_places) * cell.program.vars[output].size * itemsize
    return total


def spread_bytes(plan: Plan, cells: PlannedTypes, itemsize: int) -> int:
    """Count the bytes copied to ports whose gradients are computed elsewhere, all of them in `sum`."""
    total = 0
    for kind, cell in enumerate(cells.cells):
        rows = plan.block_rows[plan.first_block(kind) :]
        for number, gradient in enumerate(cell.derivative.ports if cell.derivative else ()):
            place = cell.layout.inputs[number]
            n_rows = int(rows[place.domain - NODE])
            if gradient is not None and number not in cell.layout.aliased and n_rows:
                assert cell.type.name == "sum"
                total += place.width * n_rows * itemsize
    return total


def test_nothing_is_copied_inside_the_seven_cells() -> None:
    """The bytes that the backend moves, forward and backward, are exactly those between cells.

    There are two exceptions. `sum`, which adds up the squares, spreads its gradient to a port, outside these cells. And
    the kernel of an MV-RNN computes products in its row of scratch memory and copies them into their join.
    """
    for name in SEVEN:
        model = OneCell(SEVEN[name].body).astype("float64")
        instances = model.draw(5)
        loss = ab.batched(model.loss, backend=Reference(poison=True))
        value, grads = loss.value_and_grad(instances)
        plan, cells = place_batch(model.loss, instances)
        assert loss.last is not None
        copies = [m for m in movements(plan, cells) if m.how == "copy"]
        assert len(copies) == (2 if name == "MV-RNN" else 0)
        assert not any(m.launches for m in copies)
        assert loss.last.copied_bytes == moved_bytes(plan, cells, 8) + spread_bytes(plan, cells, 8)
        plain = ab.batched(model.loss, planner=MemoryPlanner(joins=False), backend=Reference(poison=True))
        expected, others = plain.value_and_grad(instances)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        for key, gradient in others.items():
            np.testing.assert_allclose(np.asarray(grads[key]), np.asarray(gradient), rtol=1e-10, atol=1e-12)
        assert value == pytest.approx(float(np.mean([float(np.asarray(model.loss(x))) for x in instances])), rel=1e-10)


def test_ports_in_the_order_of_the_program_cost_copies_where_joins_want_another() -> None:
    """An MV-RNN joins its children's matrices and saves the join. In the order of the ports they are not adjacent."""
    program = trace_cell(SEVEN["MV-RNN"].body, WIDTH)
    columns, plain = place_columns(program), place_columns(program, joined=False)
    left, right = (p for p in columns.ports if p.width == WIDTH * WIDTH)
    assert abs(left.column - right.column) == WIDTH * WIDTH
    assert [p.column for p in plain.ports] == [0, WIDTH, WIDTH + WIDTH**2, 2 * WIDTH + WIDTH**2]
    assert len(make_layout(program, columns, None).joins) == 2
    assert sum(len(join.copied) for join in make_layout(program, columns, None).joins.values()) == 0
    assert sum(len(join.copied) for join in make_layout(program, plain, None).joins.values()) == 2


class Pairs(ab.Module):
    """A cell like a Tree-LSTM's: it reads the h of both children side by side, and each h with its c."""

    def __init__(self) -> None:
        self.gates = ab.Linear(2 * WIDTH, WIDTH, rng=np.random.default_rng(0))

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        h = ab.tanh(self.gates(ab.concat((left[0], right[0]))))
        return h, h + left[1] * right[1]

    def run(self, x: Any) -> Any:
        leaf = ab.tanh(x), ab.exp(x)
        return ab.sum(self.merge(leaf, leaf)[1])


def test_what_one_node_gives_lies_side_by_side_where_joins_leave_a_choice() -> None:
    cells = place_batch(Pairs().run, [np.ones(WIDTH)], training=False).cells
    (cell,) = (c for c in cells.cells if c.type.name == "merge")
    h_left, c_left, h_right, c_right = (place.column for place in cell.layout.inputs)
    assert h_right - h_left == WIDTH
    assert sorted((c_left, h_left, h_right, c_right)) == [c_left, h_left, h_right, c_right]


@pytest.mark.cases(0, 2)
@pytest.mark.parametrize("seed", range(5))
def test_places_of_random_cells_do_not_overlap(seed: int) -> None:
    """Ports, and values computed in the inputs, have their own columns; joins have those of their parts."""
    for training, drawn in product((False, True), range(seed, 40, 5)):
        rng = np.random.default_rng(drawn)
        model = draw_model(rng, smooth=True)
        check_columns(place_batch(model.loss, draw_instances(rng, model, n=4), training, rewrites=()).cells)


def check_columns(cells: PlannedTypes) -> None:
    for cell in cells.cells:
        layout, vars = cell.layout, cell.program.vars
        used: set[tuple[int, int]] = set()
        copied = {i for i, join in layout.joins.items() if len(join.copied) == len(join.indices)}
        made = [layout.inner[i] for i in layout.inner if i not in layout.joins or i in copied]
        for place in (*layout.inputs, *made):
            columns = {(place.domain, place.column + k) for k in range(place.width)}
            assert not used & columns
            assert place.column >= 0
            assert place.column + place.width <= layout.input_width[place.domain + 1]
            used |= columns
        assert len(used) == sum(layout.input_width)
        for value, place in layout.inner.items():
            assert place.width == vars[value].size
        homes = {*layout.inner, *layout.saved, *layout.gradients}
        assert homes & set(layout.within) <= set(layout.saved)
        for part in homes & set(layout.within):
            inside, around = layout.saved[part], layout.saved[layout.within[part][0]]
            assert around.column <= inside.column
            assert inside.column + inside.width <= around.column + around.width
        assert not set(layout.gradients) & (set(layout.saved) | set(layout.inner))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_random_models_move_no_more_with_joins(seed: int) -> None:
    for drawn in range(seed, 20, 5):
        check_that_joins_pay(drawn)


def check_that_joins_pay(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True).astype("float64")
    instances = draw_instances(rng, model, n=6)
    ways = {"apart": MemoryPlanner(joins=False), "joins": MemoryPlanner(sums=False), "sums": MemoryPlanner()}
    losses = {way: ab.batched(model.loss, planner=planner) for way, planner in ways.items()}
    values = {way: loss.value_and_grad(instances)[0] for way, loss in losses.items()}
    assert values["joins"] == pytest.approx(values["apart"], rel=1e-12)
    assert values["sums"] == pytest.approx(values["apart"], rel=1e-12)
    copied = {way: loss.last.copied_bytes if loss.last else 0 for way, loss in losses.items()}
    launches = {way: loss.last.launches if loss.last else 0 for way, loss in losses.items()}
    assert 0 < copied["joins"] <= copied["apart"]
    assert launches["sums"] <= launches["joins"]
    assert copied["sums"] <= 1.25 * copied["joins"]  # parts of gradients that the joined product computes as one


@pytest.mark.parametrize("width", [2, 3])
def test_a_part_that_lies_elsewhere_is_copied_into_a_join_that_lies_in_the_inputs(width: int) -> None:
    """The join of a value and its reverse is not a view, but lies in the inputs as part of another join there."""

    @ab.cell
    def both(x: Any, y: Any) -> Any:
        turned = ab.concat((x[:1], x[::-1]))
        return ab.sum(ab.concat((turned, y)) * ab.concat((y, turned)))

    @ab.cell
    def start(x: Any) -> Any:
        return ab.tanh(x), ab.exp(x)

    def run(x: Any) -> Any:
        return both(*start(x))

    instances = [np.linspace(-1, 1, width), np.linspace(0, 2, width)]
    expected = [float(np.asarray(run(x))) for x in instances]
    np.testing.assert_allclose(ab.batched(run, backend=Reference(poison=True))(instances), expected, rtol=1e-6)
