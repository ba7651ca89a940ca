"""Test values computed as parts of others: their writers and readers, and cells that passes once got wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.base import Backend
from autobatch.backends.cpu.backend import Cpu
from autobatch.backends.cuda.backend import Cuda
from autobatch.backends.reference import Reference
from autobatch.compiler.assignment import assign_buffers, in_order
from autobatch.compiler.checking import check_statements, check_steps, check_storage
from autobatch.compiler.fusion import Kernel, fuse
from autobatch.compiler.lowered import Area, Location, Lowered
from autobatch.compiler.stage import StageProgram, compile_backward, compile_forward
from autobatch.compiler.statement import Loop, Operand
from autobatch.compiler.uses import Uses
from autobatch.compiler.view import View
from autobatch.errors import PlanError
from autobatch.ir.program import NODE
from autobatch.ops.expression import Expression, Number
from autobatch.plan.plan import PlannedCell
from host_device import HostDevice

WHOLE, PART, PIECE, OTHER, RESULT = range(5)


class Cells(ab.Module):
    """Cells in float64, each of which a pass once got wrong."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)

        def parameter(*shape: int) -> ab.Parameter:
            return ab.Parameter(rng.standard_normal(shape))

        self.first = parameter(4, 4)
        self.square, self.turn, self.long = parameter(4, 4), parameter(4, 4), parameter(12, 4)
        self.small, self.other = parameter(2, 2), parameter(2, 2)
        self.scale, self.one = parameter(4), parameter(1)
        self.astype("float64")

    @ab.cell
    def leaf(self, x: Any) -> Any:
        return ab.tanh(self.first @ x)

    @ab.cell
    def piece_read_later_backward(self, h: Any, x: Any) -> Any:
        """A gradient is computed in parts, read whole through strides, and read in parts again after a product."""
        grouped = self.every_other(x, h)
        turned = ab.concat((x[2:], x[:2])) * h
        mixed = self.square @ h + 0.3 * grouped + 0.3 * ab.tanh(h) + 0.3 * turned
        return ab.sum(ab.tanh(mixed + 0.3 * (self.scale * turned + self.one * grouped)))

    @ab.cell
    def piece_read_later_forward(self, h: Any, x: Any) -> Any:
        """The same happens to a value of forward."""
        mixed = 0.5 * (x + h)
        product = self.square @ (mixed * self.every_other(x, h))
        return ab.sum(ab.tanh(product) * ab.concat((mixed[2:], mixed[:2])))

    @ab.cell
    def whole_read_beside_its_part(self, h: Any, x: Any) -> Any:
        """A value is part of a join in the inputs, and one loop reads both, at different elements."""
        part = self.one * h
        whole = ab.concat((part[2:], x[:2]))
        return ab.sum(ab.tanh(part * whole + 0.3 * whole))

    @ab.cell
    def product_seen_in_its_whole(self, _: Any, x: Any) -> Any:
        """A view of a product is part of a residual, and overwrites one that is read after the product."""
        first, second, third = self.square @ x, self.first @ x, ab.tanh(x)
        mixed = self.turn @ ab.sum(ab.stack([first, 0.3 * x]), axis=0)
        return ab.sum(0.3 * second + 0.6 * mixed + 0.3 * third)

    def every_other(self, x: Any, h: Any) -> Any:
        """Return every other element of two joined vectors."""
        return ab.reshape(ab.transpose(ab.reshape(ab.concat((x, h)), (2, 2, 2)), (2, 0, 1)), (2, 4))[1]

    @ab.cell
    def zeros_between(self, _: Any, x: Any) -> Any:
        """A gradient has a part that a product computes in place, two gaps of zeros, and parts copied over one gap."""
        x = self.long @ x
        near, far, last = ab.tanh(x[0:4]), ab.tanh(x[7:10]), x[11:]
        return ab.sum(ab.tanh(ab.concat((far, last)) * near)) + ab.sum(ab.tanh(self.other @ x[4:6]))

    @ab.cell
    def product_read_in_its_whole(self, _: Any, x: Any) -> Any:
        """A product in backward is a residual inside another, which a further product reads in each batch."""
        y = self.square @ x
        moved = y[:2] + self.other @ ab.stop_gradient(x[:2])
        return ab.sum(ab.tanh(self.small @ moved) + ab.tanh(y[2:]))


CELLS = [
    "piece_read_later_backward", "piece_read_later_forward", "zeros_between",
    "product_read_in_its_whole", "whole_read_beside_its_part", "product_seen_in_its_whole",
]  # fmt: skip
BACKENDS: dict[str, Callable[[], Backend]] = {
    "cpu": lambda: Cpu(poison=True),
    "cuda": lambda: Cuda(poison=True, device=HostDevice()),
}


@cache
def results(name: str, backend: str) -> tuple[Any, dict[str, Any]]:
    """Return the losses of four instances, and the gradients of their sum."""
    model, instances = Cells(), list(np.random.default_rng(1).standard_normal((4, 2, 4)))
    cell = getattr(model, name)
    made = Reference(poison=True) if backend == "reference" else BACKENDS[backend]()
    batched = ab.batched(lambda pair: cell(model.leaf(pair[0]), model.leaf(pair[1])), module=model, backend=made)
    losses, grads = np.array(batched(instances)), batched.value_and_grad(instances)[1]
    return losses, {parameter: np.array(gradient) for parameter, gradient in grads.items()}


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_cells_are_right(name: str, backend: str) -> None:
    losses, grads = results(name, backend)
    expected, expected_grads = results(name, "reference")
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    for parameter in expected_grads:
        np.testing.assert_allclose(grads[parameter], expected_grads[parameter], rtol=1e-10, atol=1e-12)


def planned(name: str) -> PlannedCell:
    model = Cells()
    cell = getattr(model, name)
    batched = ab.batched(lambda pair: cell(model.leaf(pair[0]), model.leaf(pair[1])), module=model, backend="reference")
    cells = batched.prepare([np.ones((2, 4))], training=True).cells.cells
    return next(cell for cell in cells if cell.program.name == name)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.usefixtures("_checked")
def test_checkers_pass(name: str) -> None:
    """Checkers raise an error otherwise."""
    for compiled in (compile_forward(planned(name)), compile_backward(planned(name))):
        assert compiled.steps


def loop(target: int, *read: int) -> Loop:
    """Return a loop that sums values of two elements."""
    total: Expression = Number(1.0)
    for value in read:
        total += Operand(View(value, 0, (2,), (1,)))
    return Loop(NODE, (2,), total, View(target, 0, (2,), (1,)))


def parted(*statements: Loop) -> Lowered:
    """Return a stage in which a whole has a part, which has a piece."""
    lowered = Lowered("cell", "forward", (), [], [2] * 5, [NODE] * 5, [*statements], {}, {}, [])
    lowered.parts = defaultdict(list, {WHOLE: [PART], PART: [PIECE]})
    return lowered


def test_parts_are_made_and_read_with_their_wholes() -> None:
    statements = [loop(PIECE, OTHER), loop(RESULT, PIECE), loop(RESULT, WHOLE), loop(RESULT, OTHER), loop(PART, OTHER)]
    uses = Uses(parted(*statements), statements)
    assert [uses.makers(value) for value in range(5)] == [[0, 4], [0, 4], [0], [], [1, 2, 3]]
    assert [uses.readers(value) for value in range(5)] == [[1, 2], [1, 2], [1, 2], [0, 3, 4], []]
    both = loop(RESULT, WHOLE, OTHER, PIECE)
    assert [operand.view.value for operand in uses.operands(both, PART)] == [WHOLE, PIECE]
    assert uses.made == {PIECE: [0], RESULT: [1, 2, 3], PART: [4]}


def test_elements_that_are_read_before_they_are_made() -> None:
    """One part of the whole is computed in time, and another one is not."""
    early, reader, late = loop(PART, RESULT), loop(OTHER, WHOLE), loop(PIECE, RESULT)
    lowered = parted(early, late, reader)
    lowered.parts = defaultdict(list, {WHOLE: [PART, PIECE]})
    lowered.locations[RESULT] = Location(Area.INTS, NODE, 0)
    check_statements(lowered, [early, late, reader])
    with pytest.raises(PlanError, match="%0 is read before all of it is made"):
        check_statements(lowered, [early, reader, late])


def backward_of(name: str) -> StageProgram:
    return compile_backward(planned(name))


def test_row_memory_holds_what_no_other_step_reads() -> None:
    """This restores a past defect: the whole of a piece lies where each row of a kernel lies."""
    stage = backward_of("piece_read_later_backward")
    storage = assign_buffers(stage.lowered, stage.steps)
    check_storage(stage.lowered, stage.steps, storage)
    wholes = {storage.locate(View(piece, 0, (), ()))[1].value for piece in storage.aliases}
    assert wholes
    for whole in wholes:
        assert storage.locations[whole].area is Area.BATCH
        storage.locations[whole] = storage.locations[whole]._replace(area=Area.ROW)
    with pytest.raises(PlanError, match="lies in memory that each row reuses"):
        check_storage(stage.lowered, stage.steps, storage)


def test_a_nest_reads_what_it_makes_at_its_own_index() -> None:
    """A loop that reads a value and a whole around it must be in a later nest than the value's loop."""
    loops = [loop(PART, OTHER), loop(RESULT, PART, WHOLE)]
    lowered = parted(*loops)
    lowered.locations[OTHER] = Location(Area.INTS, NODE, 0)
    (kernel,) = fuse(lowered, [*loops])
    assert isinstance(kernel, Kernel)
    assert len(kernel.blocks) == 2
    check_steps(lowered, loops, [kernel])
    together = Kernel([replace(kernel.blocks[0], loops=loops)])
    with pytest.raises(PlanError, match="is read before it is made, in one loop nest"):
        check_steps(lowered, loops, [together])


def test_zeros_come_before_all_copies_over_them() -> None:
    stage = backward_of("zeros_between")
    statements, _ = in_order(stage.steps)
    zeros = [k for k, s in enumerate(statements) if isinstance(s, Loop) and s.expression == Number(0.0)]
    assert len(zeros) == 2
    for k in zeros:
        filled = statements[k]
        assert isinstance(filled, Loop)
        first, end = filled.target.bounds
        for earlier in statements[:k]:
            if isinstance(earlier, Loop) and earlier.target.value == filled.target.value:
                start, stop = earlier.target.bounds
                assert not {*range(start, stop)} & {*range(first, end)}
