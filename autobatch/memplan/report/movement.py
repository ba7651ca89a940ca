"""List the values that are moved between cells and inside them when a plan runs with compiled kernels.

A value is written to its readers' rows when it is computed. That takes no extra launch if a kernel computes the value
and writes it to the destinations. The result of a matrix product, or a port that is passed through, is in memory
already and needs a *scatter*. Backward is the reverse: the kernel that first reads the gradient of an output collects
it, but a gradient that is the input of a matrix product, or is passed through, needs a *gather*. All other movements
are *copies*, such as the gradient of a port, or a part of a join, that is not computed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from autobatch.compiler.copying import Copy, find_copies, only_copy
from autobatch.compiler.printing import name_of
from autobatch.compiler.stage import StageProgram, compile_backward, compile_forward
from autobatch.compiler.statement import Loop
from autobatch.graph.words import OUTPUT
from autobatch.ir.program import NODE, Port
from autobatch.plan.plan import Plan, PlannedCell, PlannedTypes

FLOAT_BYTES = 4
How = Literal["by kernel", "scatter", "gather", "copy"]


class Movement(NamedTuple):
    """Values of one kind that move from their maker to their reader.

    Attributes:
        source, target: as text: `merge output 0`, `merge left.h`; for a copy inside a cell, two values.
        how: by the kernel that makes or reads them, or by a loop that does nothing else.
        backward: whether they are gradients, which move from target to source.
        launches: launches that only move; a launch that moves several things counts for the first.
        n_bytes: bytes moved, in float32.
    """

    source: str
    target: str
    how: How
    backward: bool
    launches: int
    n_bytes: int


class _Stage:
    """The copies of a compiled stage of a type, and the launches that only copy, each reported once."""

    def __init__(self, stage: StageProgram, n_batches: int) -> None:
        self.stage, self.copies = stage, list(find_copies(stage))
        last = len(stage.steps) - stage.n_after
        self._launches = {k: n_batches if stage.n_before <= k < last else 1 for k in only_copy(stage)}

    def launches(self, copies: Iterable[Copy]) -> int:
        """Count the launches of these copies that were not reported before."""
        return sum(self._launches.pop(step, 0) for step in {copy.step for copy in copies})


def movements(plan: Plan, cells: PlannedTypes) -> list[Movement]:
    """List all movements, per output of a type and reading port, then the copies inside cells.

    Args:
        plan: a plan of any graph.
        cells: its types, planned for training if gradients are to be listed.

    Cost: that of compiling the stages of each type, without LLVM's part.
    """
    n_batches = np.bincount(plan.schedule.batch_type, minlength=len(cells.cells)).tolist()
    stages: dict[int, list[_Stage]] = {}
    for type_id, cell in enumerate(cells.cells):
        if n_batches[type_id]:
            compiled = [compile_forward(cell), *([compile_backward(cell)] if cell.derivative is not None else [])]
            stages[type_id] = [_Stage(stage, n_batches[type_id]) for stage in compiled]
    return [*_between(plan, cells, stages), *_inside(plan, cells, stages)]


def _between(plan: Plan, cells: PlannedTypes, stages: Mapping[int, Sequence[_Stage]]) -> Iterator[Movement]:
    graph = plan.graph
    names = graph.types.names
    reader = np.repeat(np.arange(graph.n_nodes), np.diff(graph.edge_ptr))
    keys = np.stack([graph.type_id[graph.edge_src], graph.edge_out & OUTPUT, graph.type_id[reader], graph.edge_in])
    found, counts = np.unique(keys, axis=1, return_counts=True)
    targets = [
        (int(type_id), int(out), f"{names[other]} {_port_name(cells.cells[other], port)}", int(n))
        for (type_id, out, other, port), n in zip(found.T.tolist(), counts.tolist(), strict=True)
    ]
    asked, counts = np.unique(
        np.stack([graph.type_id[graph.out_node], graph.out_port & OUTPUT]), axis=1, return_counts=True
    )  # fmt: skip
    targets += [
        (int(type_id), int(out), "the user", int(n))
        for (type_id, out), n in zip(asked.T.tolist(), counts.tolist(), strict=True)
    ]
    for type_id, out, target, n in sorted(targets):
        size = FLOAT_BYTES * n * cells.cells[type_id].program.vars[cells.cells[type_id].program.outputs[out]].size
        for backward, stage in enumerate(stages[type_id]):
            copies = [c for c in stage.copies if (c.gathered if backward else _output(c)) == out]
            how: How = "by kernel" if not copies else "gather" if backward else "scatter"
            launches = stage.launches(copies)
            yield Movement(f"{names[type_id]} output {out}", target, how, bool(backward), launches, size)


def _inside(plan: Plan, cells: PlannedTypes, stages: Mapping[int, Sequence[_Stage]]) -> Iterator[Movement]:
    for type_id, of_type in stages.items():
        name, rows = plan.graph.types.names[type_id], plan.block_rows[plan.first_block(type_id) :]
        for backward, stage in enumerate(of_type):
            for copy in stage.copies:
                if _output(copy) < 0 and copy.gathered < 0:
                    (operand,) = copy.loop.operands
                    source, target = f"{name} %{operand.view.value}", _show_target(cells.cells[type_id], copy.loop)
                    size = FLOAT_BYTES * copy.loop.size * int(rows[copy.loop.domain - NODE])
                    yield Movement(source, target, "copy", bool(backward), stage.launches([copy]), size)


def _output(copy: Copy) -> int:
    """Return the output that a copy writes; -1 if it writes something else."""
    match copy.loop.stored:
        case ("output", number):
            return number
    return -1


def _show_target(cell: PlannedCell, loop: Loop) -> str:
    match loop.stored:
        case ("port", number):
            return f"gradient of {_port_name(cell, number)}"
    return name_of(loop)


def _port_name(cell: PlannedCell, number: int) -> str:
    source = cell.program.vars[cell.program.ports[number]].source
    assert isinstance(source, Port)
    return source.name
