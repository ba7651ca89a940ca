"""Test columns that are used twice: equal gradients, no reads of overwritten values, and the expected row widths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.reference import Reference
from autobatch.compiler.checking import check_statements, check_steps
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.lowered import STORED
from autobatch.compiler.stage import compile_backward
from autobatch.compiler.statement import Loop
from autobatch.compiler.uses import overwritings, writes_over, written
from autobatch.errors import PlanError
from autobatch.graph.rewrite import PASSES
from autobatch.ir.arguments import Key
from autobatch.ir.layout import Place
from autobatch.ir.program import Instruction, Var
from autobatch.ir.typetable import NodeType
from autobatch.memplan.planner import MemoryPlanner
from autobatch.plan.plan import PlannedCell
from autobatch.trace.tracer import Tracer
from helpers.checkers.parity import assert_equal
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.planned import place_batch
from helpers.twins.cases import CASES, Case

BACKENDS: list[Callable[[], Any]] = [lambda: Reference(poison=True), lambda: Cpu(poison=True)]
APART, OVER = MemoryPlanner(reuses=False), MemoryPlanner()
W = ab.Parameter(np.random.default_rng(0).standard_normal((6, 6))).astype("float64")
pytestmark = pytest.mark.usefixtures("_checked")


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models(case: Case) -> None:
    """The same instructions on the same numbers, in other places."""
    model, instances = case.draw(seed=4, n_instances=5, dim=4)
    for backend in BACKENDS:
        expected, found = (
            ab.batched(model.loss, planner=planner, backend=backend()).value_and_grad(instances)
            for planner in (APART, OVER)
        )
        assert_equal(found, expected)


@pytest.mark.cases(1, 20)
@pytest.mark.parametrize("seed", range(150))
def test_random_programs(seed: int) -> None:
    rng = np.random.default_rng(400 + seed)
    model = draw_model(rng, smooth=seed % 2 == 0)
    instances = draw_instances(rng, model, n=4)
    options: dict[str, Any] = {"policy": "agenda", "rewrites": PASSES}
    off: dict[str, Any] = dict.fromkeys(("simplifies", "joins", "stacks", "sums", "cuts", "hoists", "fuses"), False)
    expected = ab.batched(model.everything, planner=APART, **options).value_and_grad(instances, has_aux=True)
    planners = OVER, MemoryPlanner(recomputes="nothing"), MemoryPlanner(**off)
    for planner, backend in product(planners, BACKENDS):
        loss = ab.batched(model.everything, planner=planner, backend=backend(), **options)
        assert_equal(loss.value_and_grad(instances, has_aux=True), expected)


def root(vars: tuple[Var, ...], index: int) -> int:
    source = vars[index].source
    return root(vars, source.args[0]) if isinstance(source, Instruction) and source.op.view else index


def check_reuse(cell: PlannedCell) -> int:
    """Check by definition that saved values share columns only in sequence; return how many do.

    Of two values with shared columns, one is part of the other, or one belongs to the program and no instruction reads
    it after the first that writes a part of the other.
    """
    derivative, layout = cell.derivative, cell.layout
    assert derivative is not None
    vars, n_forward = derivative.vars, len(derivative.program.vars)
    ends: dict[int, float] = {}
    for index in derivative.backward:
        source = vars[index].source
        assert isinstance(source, Instruction)
        if not source.op.view:
            ends |= {root(vars, arg): index for arg in source.args}
    for index in derivative.weights:
        source = vars[index].source
        assert isinstance(source, Instruction)
        ends |= {root(vars, arg): np.inf for arg in source.args}
    ends |= {root(vars, index): np.inf for index in derivative.roots}
    for value in layout.taken:
        assert value in layout.saved
        assert value < n_forward
        over = [
            other for other in layout.saved if other >= n_forward and meet(layout.saved[value], layout.saved[other])
        ]
        assert over
        for heir in over:
            first = min(
                made
                for made, place in pieces(derivative.vars, heir, layout.saved[heir])
                if meet(place, layout.saved[value])
            )
            assert ends[value] < first
    return len(layout.taken)


def meet(one: Place, other: Place) -> bool:
    return (
        one.domain == other.domain and one.column < other.column + other.width and other.column < one.column + one.width
    )


def pieces(vars: tuple[Var, ...], index: int, place: Place) -> Iterator[tuple[float, Place]]:
    """Yield the columns of a value, and the first time that each may be written."""
    source = vars[index].source
    assert isinstance(source, Instruction)
    if source.op.name not in ("concat", "assemble"):
        yield index, place
        return
    marks = np.arange(vars[index].size).reshape(vars[index].shape)
    indices = source.static.get("indices")
    assert indices is not None, "gradients are assembled"
    for part, where in zip(source.args, indices, strict=True):
        columns = marks[where].reshape(-1)
        if columns.size:
            inner = list(pieces(vars, part, place)) if is_join(vars[part]) else [(part, place)]
            first = index if is_view(vars[part]) else min(time for time, _ in inner)
            yield first, Place(place.domain, place.column + int(columns.min()), int(np.ptp(columns)) + 1)


def is_join(var: Var) -> bool:
    return isinstance(var.source, Instruction) and var.source.op.name in ("concat", "assemble")


def is_view(var: Var) -> bool:
    return isinstance(var.source, Instruction) and var.source.op.view


class OverNothing(ab.Module):
    """A cell whose gradients include sums over axes of length 0, which are written as zeros."""

    def __init__(self, n: int) -> None:
        rng = np.random.default_rng(0)
        self.shift, self.matrix = ab.Parameter(rng.standard_normal(())), ab.Parameter(rng.standard_normal((n, 1)))
        self.start = ab.Parameter(rng.standard_normal(()))

    @ab.cell
    def both(self, xs: list[Any]) -> Any:
        """Compute probabilities, and a value with as many elements as the matrix has rows."""
        x = ab.sum_n(xs, shape=())[None]
        others = self.matrix @ x + self.matrix @ x + self.shift
        return ab.log_softmax(x, axis=0), others

    def loss(self, n: int) -> Any:
        logits, others = self.both([self.start] * n)
        return ab.sum(others) - ab.sum(logits * logits)


@pytest.mark.parametrize("n_rows", [0, 1, 2])
def test_a_sum_over_no_elements_writes_its_zero_after_the_last_reader(n_rows: int) -> None:
    model, instances = OverNothing(n_rows).astype("float64"), [0, 1, 3]
    for backend in BACKENDS:
        expected, found = (
            ab.batched(model.loss, planner=planner, backend=backend()).value_and_grad(instances)
            for planner in (APART, OVER)
        )
        assert_equal(found, expected)


@pytest.mark.slow
def test_nothing_is_read_after_it_was_written_over() -> None:
    n_taken = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        model = draw_model(rng, smooth=True)
        n_taken += sum(map(check_reuse, place_batch(model.loss, draw_instances(rng, model, n=4)).used))
    assert n_taken > 30


@pytest.mark.parametrize(
    ("name", "cell", "apart", "over"),
    [
        ("tree-lstm", "merge", 11, 6),
        ("tree-lstm", "leaf", 9, 5),
        ("bilstm-tagger, 1 layers", "read_word", 11, 6),
        ("lattice-lstm", "read_word", 11, 6),
    ],
)
def test_saved_columns_of_the_models(name: str, cell: str, apart: int, over: int) -> None:
    """In multiples of the width. Gates share columns with their gradients, and so does tanh(c) where it fits."""
    model, instances = next(case for case in CASES if case.name == name).draw(seed=0, n_instances=6, dim=8)
    widths, planned = [], []
    for planner in (APART, OVER):
        loss = ab.batched(model.loss, planner=planner)
        loss.value_and_grad(instances)
        assert loss.last is not None
        planned.append(loss.last.planned_bytes)
        found = next(one for one in place_batch(model.loss, instances, planner=planner).used if one.type.name == cell)
        check_reuse(found)
        widths.append(sum(found.layout.saved_width) / 8)
    assert widths == [apart, over]
    assert planned[1] < 0.85 * planned[0]


def plan(body: Callable[..., Any], planner: MemoryPlanner = OVER) -> PlannedCell:
    program = Tracer("hand", {id(W): "W"}).trace(lambda given: body(given["x"]), {"x": Key("value", (6,))})[0]
    return planner.plan_cell(NodeType(0, "hand", program, None, ()), training=True)


BODIES: dict[str, tuple[Callable[..., Any], int]] = {
    "one loop": (lambda x: ab.tanh(W @ x), 1),
    "read by the gradient of another": (lambda x: ab.tanh(W @ x) * ab.exp(x), 1),
    "the other way round": (lambda x: ab.tanh(W @ x)[::-1] * ab.tanh(W @ x), 1),
    "a sum": (lambda x: ab.tanh(W @ x) * ab.sum(ab.tanh(W @ x)), 1),
    "read by a product": (lambda x: W @ ab.tanh(W @ x), 0),
}


@pytest.mark.parametrize("name", BODIES)
def test_readers_come_first_in_kernels(name: str) -> None:
    """Loops that read values which another loop overwrites share its nest only if they read the same elements."""
    body, n_taken = BODIES[name]
    cell, apart = plan(body), plan(body, APART)
    assert len(cell.layout.taken) == n_taken
    assert not apart.layout.taken
    stage = compile_backward(cell)
    found = overwritings(stage.lowered, stage.lowered.statements)
    assert bool(found) == bool(n_taken)
    late = {
        value for value in cell.layout.saved if value not in cell.layout.taken and writes_over(stage.lowered, value)
    }
    assert len(late) == n_taken

    class Model(ab.Module):
        def __init__(self) -> None:
            self.w = W

        @ab.cell
        def hand(self, x: Any) -> Any:
            return body(x)

        def loss(self, x: Any) -> Any:
            return ab.sum(self.hand(self.hand(x)))

    instances = [np.linspace(-1.0, 1.0, 6), np.linspace(2.0, -1.0, 6)]
    results = [
        ab.batched(Model().loss, planner=planner, backend=backend()).value_and_grad(instances)
        for planner in (APART, OVER)
        for backend in BACKENDS
    ]
    for result in results[1:]:
        assert_equal(result, results[0])


def test_what_reads_other_elements_is_a_loop_nest_before() -> None:
    stage = compile_backward(plan(BODIES["the other way round"][0]))
    places = {id(loop): (s, b) for s, step in enumerate(stage.steps) if isinstance(step, Kernel)
              for b, block in enumerate(step.blocks) for loop in block.loops}  # fmt: skip
    statements = stage.lowered.statements
    apart = [
        (r, w)
        for w, readers in overwritings(stage.lowered, statements).items()
        for r, same in readers.items()
        if not same
    ]
    assert apart
    for reader, writer in apart:
        assert places[id(statements[reader])] < places[id(statements[writer])]


def test_the_checkers_refuse_readers_that_come_too_late() -> None:
    stage = compile_backward(plan(BODIES["one loop"][0]))
    lowered = stage.lowered
    check_statements(lowered, lowered.statements)
    ((writer, readers),) = overwritings(lowered, lowered.statements).items()
    assert written(lowered, lowered.statements[writer]) is not None
    late = lowered.statements[min(readers)]
    assert isinstance(late, Loop)
    late = replace(late, target=late.target._replace(value=STORED), stored=("port", 0))
    with pytest.raises(PlanError, match="an overwritten value is read"):
        check_statements(lowered, [*lowered.statements, late])
    stage = compile_backward(plan(BODIES["the other way round"][0]))
    loops = [loop for step in stage.steps if isinstance(step, Kernel) for block in step.blocks for loop in block.loops]
    kernels = [step for step in stage.steps if isinstance(step, Kernel)]
    kernels[0].blocks[0].loops[:] = loops
    del kernels[0].blocks[1:]
    with pytest.raises(PlanError, match=r"other elements are overwritten than are read|read before it is made"):
        check_steps(stage.lowered, stage.lowered.statements, stage.steps)
