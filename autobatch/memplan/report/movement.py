"""What moves between cells and inside them when a plan runs with fused kernels, as the compiled stages say.

A value goes to its readers' rows when it is made. That takes no launch of its own where the kernel that makes it writes
to the destinations. What comes straight from a matrix product, or is a port passed through, is in memory already and
needs a *scatter*. Backward mirrors it: the gradient of an output is collected by the kernel that reads it first, but
one that goes straight into a matrix product, or through, needs a *gather*. All else that kernels only move is a *copy*,
such as the gradient of a port that was not made in its place, or the part of a join that was not made in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from autobatch.compiler.copying import Copy, find_copies, only_copy
from autobatch.compiler.printing import name_of
from autobatch.compiler.stage import StageProgram, compile_backward, compile_forward
from autobatch.compiler.statement import Loop
from autobatch.ir.program import NODE, Port
from autobatch.plan.plan import Plan, PlannedCell, PlannedTypes

FLOAT_BYTES = 4
How = Literal["by kernel", "scatter", "gather", "copy"]


class Movement(NamedTuple):
    """Values of one kind that go from where they are made to where they are read.

    Attributes:
        source, target: for people: `merge output 0`, `merge left.h`; of a copy inside a cell two values.
        how: by the kernel that makes or reads them, or by a loop that does nothing else.
        backward: whether they are gradients, which go the other way.
        launches: that do nothing else; one that moves several things counts for the first.
        n_bytes: moved, in float32, whichever way.
    """

    source: str
    target: str
    how: How
    backward: bool
    launches: int
    n_bytes: int


class _Stage:
    """What a compiled stage of a type copies, and the launches that do nothing else, each told once."""

    def __init__(self, stage: StageProgram, n_batches: int) -> None:
        self.stage, self.copies = stage, list(find_copies(stage))
        last = len(stage.steps) - stage.n_after
        self._launches = {k: n_batches if stage.n_before <= k < last else 1 for k in only_copy(stage)}

    def launches(self, copies: Iterable[Copy]) -> int:
        """The launches of these copies that were not told before."""
        return sum(self._launches.pop(step, 0) for step in {copy.step for copy in copies})


def movements(plan: Plan, cells: PlannedTypes) -> list[Movement]:
    """List all that moves, per output of a type and reading port, then what the cells copy inside.

    Args:
        plan: placed, of any graph.
        cells: its types, planned for training if gradients are to be listed.

    Cost: that of compiling the stages of each type, without what Numba makes of their source.
    """
    n_batches = np.bincount(plan.schedule.batch_type, minlength=len(cells.cells)).tolist()
    stages: dict[int, list[_Stage]] = {}
    for kind, cell in enumerate(cells.cells):
        if n_batches[kind]:
            compiled = [compile_forward(cell), *([compile_backward(cell)] if cell.derivative is not None else [])]
            stages[kind] = [_Stage(stage, n_batches[kind]) for stage in compiled]
    return [*_between(plan, cells, stages), *_inside(plan, cells, stages)]


def _between(plan: Plan, cells: PlannedTypes, stages: Mapping[int, Sequence[_Stage]]) -> Iterator[Movement]:
    graph = plan.graph
    names = graph.types.names
    reader = np.repeat(np.arange(graph.n_nodes), np.diff(graph.edge_ptr))
    keys = np.stack([graph.type_id[graph.edge_src], graph.edge_out, graph.type_id[reader], graph.edge_in])
    found, counts = np.unique(keys, axis=1, return_counts=True)
    targets = [
        (int(kind), int(out), f"{names[other]} {_port_name(cells.cells[other], port)}", int(n))
        for (kind, out, other, port), n in zip(found.T.tolist(), counts.tolist(), strict=True)
    ]
    asked, counts = np.unique(
        np.stack([graph.type_id[graph.out_node], graph.out_port]), axis=1, return_counts=True
    )  # fmt: skip
    targets += [
        (int(kind), int(out), "the user", int(n))
        for (kind, out), n in zip(asked.T.tolist(), counts.tolist(), strict=True)
    ]
    for kind, out, target, n in sorted(targets):
        size = FLOAT_BYTES * n * cells.cells[kind].program.vars[cells.cells[kind].program.outputs[out]].size
        for backward, stage in enumerate(stages[kind]):
            copies = [c for c in stage.copies if (c.gathered if backward else _output(c)) == out]
            how: How = "by kernel" if not copies else "gather" if backward else "scatter"
            launches = stage.launches(copies)
            yield Movement(f"{names[kind]} output {out}", target, how, bool(backward), launches, size)


def _inside(plan: Plan, cells: PlannedTypes, stages: Mapping[int, Sequence[_Stage]]) -> Iterator[Movement]:
    """What is copied inside cells."""
    for kind, of_type in stages.items():
        name, rows = plan.graph.types.names[kind], plan.block_rows[plan.first_block(kind) :]
        for backward, stage in enumerate(of_type):
            for copy in stage.copies:
                if _output(copy) < 0 and copy.gathered < 0:
                    (operand,) = copy.loop.operands
                    source, target = f"{name} %{operand.view.value}", _show_target(cells.cells[kind], copy.loop)
                    size = FLOAT_BYTES * copy.loop.size * int(rows[copy.loop.domain - NODE])
                    yield Movement(source, target, "copy", bool(backward), stage.launches([copy]), size)


def _output(copy: Copy) -> int:
    """The output that a copy writes; -1 if it writes something else."""
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
