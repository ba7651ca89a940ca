"""What moves between cells and inside them when a plan runs with fused kernels, by rule.

A value goes to its readers' rows when it is made. That takes no launch of its own where the last op that makes it is
element-wise, a reduction or a lookup: its kernel writes to the destinations, as the one that a parameter or data needs
in any case. What comes straight from a matrix product, or is a port passed through, needs a *scatter*. Backward mirrors
it: the gradient of an output is collected by the kernel that reads it first, but one that goes straight into a matrix
product, or through, needs a *gather*. The gradient of a port that could not be made in its place needs a copy, and so
do the parts of a join that were not made in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from autobatch.ir.program import NODE, Instruction, Port, Var
from autobatch.memplan.cell.inner import HARD_OPS
from autobatch.ops.linear import affine
from autobatch.plan.plan import Plan, PlannedCell, PlannedTypes

FLOAT_BYTES = 4
How = Literal["by kernel", "scatter", "gather", "copy"]


class Movement(NamedTuple):
    """Values of one kind that go from where they are made to where they are read.

    Attributes:
        source, target: for people: `merge output 0`, `merge left.h`; of a copy inside a cell the join and its part.
        how: by the kernel that makes or reads them, or by launches of their own.
        backward: whether they are gradients, which go the other way.
        launches: of their own: one per batch.
        n_bytes: moved, in float32, whichever way.
    """

    source: str
    target: str
    how: How
    backward: bool
    launches: int
    n_bytes: int


def movements(plan: Plan, cells: PlannedTypes) -> list[Movement]:
    """List all that moves, per output of a type and reading port, then what the cells copy inside.

    Args:
        plan: placed, of any graph.
        cells: its types, planned for training if gradients are to be listed.
    """
    return [*_between(plan, cells), *_inside(plan, cells)]


def _between(plan: Plan, cells: PlannedTypes) -> Iterator[Movement]:
    graph = plan.graph
    names, n_batches = graph.types.names, np.bincount(plan.schedule.batch_type, minlength=len(cells.cells))
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
    launched: set[tuple[int, int, bool]] = set()
    for kind, out, target, n in sorted(targets):
        cell = cells.cells[kind]
        size = FLOAT_BYTES * n * cell.program.vars[cell.program.outputs[out]].size
        ways = [(False, writes_in_kernel(cell, out))]
        ways += [(True, reads_in_kernel(cell, out))] if cell.derivative is not None else []
        for backward, in_kernel in ways:
            how: How = "by kernel" if in_kernel else "gather" if backward else "scatter"
            first = (kind, out, backward) not in launched
            launched.add((kind, out, backward))
            launches = 0 if in_kernel or not first else int(n_batches[kind])
            yield Movement(f"{names[kind]} output {out}", target, how, backward, launches, size)


def _inside(plan: Plan, cells: PlannedTypes) -> Iterator[Movement]:
    """What is copied inside cells: ports' gradients that are made elsewhere, and parts of joins."""
    names = plan.graph.types.names
    n_batches = np.bincount(plan.schedule.batch_type, minlength=len(cells.cells)).tolist()
    for kind, cell in enumerate(cells.cells):
        if not n_batches[kind]:
            continue
        derivative, layout = cell.derivative, cell.layout
        rows = plan.block_rows[plan.first_block(kind) :]
        if derivative is not None:
            for number, gradient in enumerate(derivative.ports):
                place = layout.inputs[number]
                if gradient is not None and number not in layout.settled and place.width:
                    size = FLOAT_BYTES * place.width * int(rows[place.domain - NODE])
                    what = f"gradient of {_port_name(cell, number)}"
                    yield Movement(f"{names[kind]} %{gradient}", what, "copy", True, n_batches[kind], size)
        vars = cell.program.vars if derivative is None else derivative.vars
        for value, join in layout.joins.items():
            source = vars[value].source
            assert isinstance(source, Instruction)
            parts = [source.args[number] for number in join.copied]
            if parts and vars[value].domain >= NODE:
                n = sum(vars[part].size for part in parts) * int(rows[vars[value].domain - NODE])
                what = f"{source.op.name} %{value}"
                back = value >= len(cell.program.vars)
                shown = ", ".join(f"%{part}" for part in parts)
                yield Movement(f"{names[kind]} {shown}", what, "copy", back, n_batches[kind], FLOAT_BYTES * n)


def writes_in_kernel(cell: PlannedCell, output: int) -> bool:
    """Whether the kernel that makes an output can write it to its destinations."""
    return _made_in_kernel(cell.program.vars, cell.program.outputs[output])


def _made_in_kernel(vars: Sequence[Var], index: int) -> bool:
    source = vars[index].source
    if not isinstance(source, Instruction):
        return not isinstance(source, Port)
    if source.op.view:
        return _made_in_kernel(vars, source.args[0])
    if source.op.copies:
        return all(_made_in_kernel(vars, part) for part in source.args)
    return source.op is affine or source.op not in HARD_OPS


def reads_in_kernel(cell: PlannedCell, output: int) -> bool:
    """Whether the gradient of an output is read by kernels that can collect it, and by no product, nor passed on."""
    derivative = cell.derivative
    assert derivative is not None, "only types planned for training have gradients"
    return _read_in_kernels(cell, derivative.incoming[output])


def _read_in_kernels(cell: PlannedCell, index: int) -> bool:
    derivative = cell.derivative
    assert derivative is not None, "only types planned for training have gradients"
    if index in derivative.ports:
        return False
    for reader in {*derivative.backward, *derivative.weights}:
        source = derivative.vars[reader].source
        if not isinstance(source, Instruction) or index not in source.args:
            continue
        if source.op.view or source.op.copies:
            if not _read_in_kernels(cell, reader):
                return False
        elif source.op in HARD_OPS and reader in derivative.backward:
            return False
    return True


def _port_name(cell: PlannedCell, number: int) -> str:
    source = cell.program.vars[cell.program.ports[number]].source
    assert isinstance(source, Port)
    return source.name
