"""Test the reasons why neighbours are not fused: those of simple cells, and by enumeration that each is true."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.workload import load_workload
from autobatch.compiler.checking import check_statements, check_steps, check_storage
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.neighbours import Apart, Neighbours, show_apart
from autobatch.compiler.printing import name_of
from autobatch.compiler.stage import StageProgram, compile_backward, compile_forward
from autobatch.compiler.statement import Interpreted, Loop, Product, Reason
from autobatch.compiler.view import View
from autobatch.errors import PlanError
from autobatch.ir.arguments import Key
from autobatch.ir.typetable import NodeType
from autobatch.memplan.planner import MemoryPlanner
from autobatch.plan.plan import PlannedCell
from autobatch.trace.tracer import Tracer
from helpers.programs.random_programs import draw_instances, draw_model
from helpers.runs.recorded import planned_types, record

MODELS = ["tree-lstm", "tree-lstm-2type", "bilstm-tagger", "lattice-lstm"]
W = ab.Parameter(np.arange(9.0).reshape(3, 3) / 7)
V = ab.Parameter(np.arange(9.0).reshape(3, 3) / 5)


def plan(body: Callable[..., Any], planner: MemoryPlanner | None = None, **shapes: Any) -> PlannedCell:
    """Plan a cell for training; its arguments are named by their shapes."""
    keys = {name: Key("value", s) if isinstance(s, tuple) else Key(s, ()) for name, s in shapes.items()}
    program = Tracer("hand", {}).trace(lambda given: body(**given), keys)[0]
    planner = planner or MemoryPlanner()
    return planner.plan_cell(NodeType(0, "hand", program, None, ()), training=True)


def neighbours_of(stage: StageProgram, fused: bool = True) -> Neighbours:
    """Return a stage's statements and who reads whom."""
    return Neighbours(stage.lowered, stage.steps, stage.n_before, stage.n_after, fused)


def reasons(body: Callable[..., Any], **shapes: Any) -> set[str]:
    """Return why neighbours in a cell's forward stage are separate, without the numbers of values."""
    text = show_apart(neighbours_of(compile_forward(plan(body, **shapes))))
    return {re.sub(r"%\d+", "%", line.partition(": ")[2]) for line in text.splitlines()} - {""}


CELLS: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "one loop": (lambda x: ab.tanh(x) * ab.exp(x), set()),
    "a product": (lambda x: ab.tanh(W @ ab.exp(x)), {"% is a product, which a library computes"}),
    "a largest element": (lambda x: ab.exp(x - ab.max(ab.tanh(x))), {"% is a max, known only after its loop"}),
    "a sum": (lambda x: ab.sum(ab.tanh(x)) * x, {"% is a sum, known only after its loop"}),
    "in another order": (lambda x: ab.tanh(x)[::-1] * 2.0, {"% reads other elements of % than were just made"}),
    "other axes": (
        lambda x: ab.outer(ab.tanh(x), x),
        {"one loop goes over 3, the other over 3 x 3", "one loop goes over 3 x 3, the other over 9"},
    ),
    "parts": (
        lambda x: ab.exp(ab.concat((ab.tanh(x), ab.exp(x)[::-1]))),
        {"one loop goes over 3, the other over 6", "% reads other elements of % than were just made"},
    ),
    "a product between": (
        lambda x: (lambda t: t * (W @ t))(ab.tanh(x)),
        {
            "% is a product, which a library computes",
            "the product % runs between them: it reads the one and is read by the other",
        },
    ),
    "products beside": (
        lambda x: (lambda t: (W @ t, t * (V @ x)))(ab.tanh(x)),
        {"% is a product, which a library computes", "the product % waits for %, and % for the product %"},
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_by_hand(name: str) -> None:
    body, expected = CELLS[name]
    assert reasons(body, x=(3,)) == expected


def test_data_chooses() -> None:
    found = reasons(lambda x, n: ab.cross_entropy(ab.tanh(x), n), x=(3,), n="int")
    assert "one loop goes over 3, the other over one element" in found
    assert "% is a max, known only after its loop" in found


def test_edges_and_nodes() -> None:
    keys = {"xs": Key("each", None, (Key("value", (3,)),))}
    program = Tracer("hand", {}).trace(lambda given: ab.sum_n([given["xs"]][0]) * 2.0, keys)[0]
    cell = MemoryPlanner().plan_cell(NodeType(0, "hand", program, None, ()), training=True)
    text = show_apart(neighbours_of(compile_forward(cell)))
    assert "one runs for every edge of group 0, the other for every node" in text


def test_what_runs_once_is_apart() -> None:
    table = ab.Parameter(np.ones((4, 3)))
    stage = compile_forward(plan(lambda x, n: ab.tanh(W @ x + V @ ab.lookup(table, n)), x=(3,), n="int"))
    neighbours = neighbours_of(stage)
    assert stage.n_before == 2
    assert [apart.reason for apart in neighbours.apart()] == [Reason.PRODUCT] * 3


def test_switched_off_is_said() -> None:
    cell = plan(lambda x: ab.tanh(x) * ab.exp(x), MemoryPlanner(fuses=False), x=(3,))
    stage = compile_forward(cell)
    assert [len(step.blocks) for step in stage.steps if isinstance(step, Kernel)] == [1] * 4
    assert {apart.reason for apart in neighbours_of(stage, fused=False).apart()} == {Reason.OFF}


# Reasons in models and random cells, checked by enumerating indices.


def model_cells() -> Iterator[PlannedCell]:
    for model in MODELS:
        workload = load_workload(model, None, dim=6, seed=0)
        graph = workload.batched("loss", "depth", "reference").merged(workload.first(4))
        for kind in np.unique(graph.type_id):
            yield MemoryPlanner().plan_cell(graph.types[kind], training=True)


def random_cells(seed: int) -> Iterator[PlannedCell]:
    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=seed % 2 == 0)
    loss = ab.batched(model.everything)
    record(loss, draw_instances(rng, model, n=4))
    yield from planned_types(loss, training=True).cells


def elements(view: View, shape: tuple[int, ...], at: tuple[int, ...]) -> int:
    """Return the element number at an index of a view."""
    assert len(view.strides) == len(shape)
    return view.offset + sum(stride * k for stride, k in zip(view.strides, at, strict=True))


def written(loop: Loop) -> dict[int, list[int]]:
    """Return, for each element that a loop computes, the numbers of its indices."""
    found: dict[int, list[int]] = {}
    for number, at in enumerate(np.ndindex(*loop.shape)):
        found.setdefault(elements(loop.target, loop.shape, at), []).append(number)
    return found


def assert_true(neighbours: Neighbours, apart: Apart) -> None:
    made, reads = (neighbours.statements[k] for k in apart[:2])
    here, there = neighbours.place[apart.maker], neighbours.place[apart.reader]
    reason, others = apart.reason, [neighbours.statements[k] for k in apart.others]
    if reason in (Reason.PRODUCT, Reason.INTERPRETED):
        (other,) = others
        assert other in (made, reads)
        assert isinstance(other, Product if reason is Reason.PRODUCT else Interpreted)
        return
    assert isinstance(made, Loop)
    assert isinstance(reads, Loop)
    if reason is Reason.ONCE:
        assert (here.step in neighbours.once) != (there.step in neighbours.once)
    elif here.step != there.step:
        assert_true_of_kernels(neighbours, apart)
    else:
        assert_true_of_nests(neighbours, apart, made, reads)


def assert_true_of_nests(neighbours: Neighbours, apart: Apart, made: Loop, reads: Loop) -> None:
    """Check a reason for two loops in different nests of a kernel, by what they do at each index."""
    value, size = made.target.value, neighbours.lowered.sizes[made.target.value]
    match apart.reason:
        case Reason.ROWS:
            assert made.domain != reads.domain
        case Reason.COMBINED:
            if made.axes == reads.axes and math.prod(made.shape) > 1:
                assert max(max(numbers) for numbers in written(made).values()) > 0
        case Reason.AXES:
            assert made.axes != reads.axes
        case Reason.PART:
            makers = [s for s in neighbours.statements if isinstance(s, Loop) and s.target.value == value]
            if value in {operand.view.value for operand in reads.operands}:
                is_whole = len(written(made)) == size and made.target.is_whole(size)
                assert (len(makers), is_whole) != (1, True)
        case Reason.DATA:
            assert any(operand.moved is not None for operand in reads.operands)
        case Reason.ELEMENTS:
            views = [operand.view for operand in reads.operands if operand.view.value == value]
            just = {number: element for element, numbers in written(made).items() for number in numbers}
            assert any(
                elements(view, reads.shape, at) != just.get(number)
                for view in views
                for number, at in enumerate(np.ndindex(*reads.shape))
            )
        case Reason.LATER_NEST:
            (other,) = apart.others
            here, its = neighbours.place[apart.maker], neighbours.place[other]
            assert other in neighbours.read[apart.reader]
            assert other != apart.maker
            assert its.step == here.step
            assert its.block >= here.block
        case reason:
            assert reason is Reason.NONE


def assert_true_of_kernels(neighbours: Neighbours, apart: Apart) -> None:
    """Check a reason for two loops in different kernels, by who waits for whom."""
    first, last = neighbours.place[apart.maker].step, neighbours.place[apart.reader].step

    def waits(reader: int, maker: int) -> bool:
        return any(k == maker or waits(k, maker) for k in neighbours.read[reader])

    def is_between(k: int) -> bool:
        return not isinstance(neighbours.statements[k], Loop) and first < neighbours.place[k].step < last

    match apart.reason, apart.others:
        case Reason.BETWEEN, (k,):
            assert is_between(k)
            assert waits(k, apart.maker)
            assert waits(apart.reader, k)
        case Reason.BOTH_WAIT, (early, late):
            assert is_between(early)
            assert is_between(late)
            assert waits(early, apart.maker)
            assert waits(apart.reader, late)
        case Reason.READ_BEFORE, (other, late):
            assert apart.maker in neighbours.read[other]
            assert neighbours.place[other].step < last
            assert is_between(late)
            assert waits(apart.reader, late)
        case Reason.WITH_READER, (other, k):
            assert apart.reader in neighbours.read[other]
            assert neighbours.place[other].step == last
            assert is_between(k)
        case reason, others:
            assert (reason, others) == (Reason.NONE, ())


def assert_names(neighbours: Neighbours, apart: Apart) -> None:
    """Check that a reason names exactly the statements that it depends on, besides the two."""
    said = set(re.findall(r"%\d+|output \d+|gradient of port \d+", neighbours.sentence(apart)))
    pair, others = ({name_of(neighbours.statements[k]) for k in found} for found in (apart[:2], apart.others))
    assert others <= said <= pair | others


def count_reasons(cells: Iterator[PlannedCell]) -> Counter[Reason]:
    """Check all reasons and the results of passes; count the reasons."""
    seen: Counter[Reason] = Counter()
    for cell in cells:
        for compile_stage in (compile_forward, compile_backward):
            stage = compile_stage(cell)
            neighbours = neighbours_of(stage)
            check_steps(stage.lowered, neighbours.statements, stage.steps)
            check_storage(stage.lowered, stage.steps, stage.storage)
            for apart in neighbours.apart():
                assert_true(neighbours, apart)
                assert_names(neighbours, apart)
                seen[apart.reason] += 1
    return seen


@pytest.mark.slow
def test_reasons_of_models() -> None:
    seen = count_reasons(model_cells())
    assert seen[Reason.PRODUCT] > 20
    assert seen[Reason.COMBINED] >= 4
    assert seen[Reason.NONE] <= 4


@pytest.mark.cases(3)
@pytest.mark.parametrize("seed", range(12))
def test_reasons_of_random_cells(seed: int) -> None:
    seen = count_reasons(random_cells(seed))
    assert seen.total() > 5
    assert seen[Reason.NONE] <= 0.2 * seen.total()


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "passes", [*({name: False} for name in ("cuts", "hoists", "fuses", "simplifies", "reuses")), {"recomputes": "all"}]
)
@pytest.mark.parametrize("seed", range(3))
def test_passes_can_be_switched_off(seed: int, passes: dict[str, Any]) -> None:
    """Each pass, and the computation, is right without the other passes."""
    from autobatch.backends.cpu.backend import Cpu

    rng = np.random.default_rng(seed)
    model = draw_model(rng, smooth=True)
    instances = draw_instances(rng, model, n=4)
    ways = (MemoryPlanner(), MemoryPlanner(**passes))
    losses = [ab.batched(model.loss, planner=way, backend=Cpu(poison=True)) for way in ways]
    (value, grads), (other, other_grads) = (loss.value_and_grad(instances) for loss in losses)
    np.testing.assert_allclose(other, value, rtol=1e-12)
    for name, gradient in grads.items():
        scale = np.max(np.abs(gradient), initial=1e-3)
        np.testing.assert_allclose(other_grads[name], gradient, rtol=0, atol=1e-12 * scale, err_msg=name)


def test_wrong_stages_are_refused() -> None:
    stage = compile_forward(plan(lambda x: ab.sum(ab.tanh(x)) * x, x=(3,)))
    lowered, statements = stage.lowered, neighbours_of(stage).statements
    check_statements(lowered, statements)
    with pytest.raises(PlanError, match="is neither known nor made before"):
        check_statements(lowered, statements[::-1])
    (kernel,) = stage.steps
    assert isinstance(kernel, Kernel)
    with pytest.raises(PlanError, match="must run every statement once"):
        check_steps(lowered, statements, [Kernel(kernel.blocks[:-1])])
    loops = [loop for block in kernel.blocks for loop in block.loops]
    kernel.blocks[0].loops, kernel.blocks[1].loops = loops, []
    with pytest.raises(PlanError, match="is read before it is made, in one loop nest"):
        check_steps(lowered, statements, [kernel])
