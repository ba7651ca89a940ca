"""Report the places of a mini-batch's values, and their movements: `explain --memory` prints and draws it.

Movements are listed between cells and inside them, for a plan that runs with compiled kernels.

A value is written to its readers' rows when it is computed. That takes no extra launch if a kernel computes the value
and writes it to the destinations. The result of a matrix product, or a port that is passed through, is in memory
already and needs a *scatter*. Backward is the reverse: the kernel that first reads the gradient of an output collects
it, but a gradient that is the input of a matrix product, or is passed through, needs a *gather*. All other movements
are *copies*, such as the gradient of a port, or a part of a join, that is not computed in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from autobatch.compiler.copying import Copy, find_copies, only_copy
from autobatch.compiler.printing import name_of
from autobatch.compiler.stage import StageProgram, compile_backward, compile_forward
from autobatch.compiler.statement import Loop
from autobatch.errors import AutobatchError
from autobatch.graph.words import OUTPUT
from autobatch.ir.program import NODE, Attribute, Instruction, Port, Var, Weight
from autobatch.memplan.cell.joining import join_products
from autobatch.memplan.cell.layout import lay_out
from autobatch.plan.plan import Plan, PlannedCell, PlannedTypes
from autobatch.release import pip_install

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
        # Steps before and after the batches run once, for all rows of the type.
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
        # Stage 0 is forward; stage 1, if planned for training, is backward.
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


NARROW = 0.04  # fraction of the widest row; narrower items have no name in the picture
KINDS = ("by kernel", "scatter", "gather", "copy")


@dataclass(frozen=True, eq=False)
class CellMemory:
    """A type of cell, laid out.

    Attributes:
        layout: its items before and after, its inner batches, and its copies, as text; None for a single op.
        rows: per block, its description, its columns, and the values in them, in order.
        launches: forward launches, as written and as executed: instructions except views and joins in place.
    """

    name: str
    layout: str | None
    rows: tuple[tuple[str, int, str], ...]
    launches: tuple[int, int]


@dataclass(frozen=True, eq=False)
class MemoryReport:
    """A readable description of a plan; prints as text.

    Attributes:
        cells: the types that have nodes.
        areas: the parts of the buffer, and their bytes in float32.
        movements: between cells and inside them.
        written_again: forward bytes of values written to a second and further readers.
    """

    cells: tuple[CellMemory, ...]
    areas: tuple[tuple[str, int], ...]
    movements: tuple[Movement, ...]
    written_again: int

    def __str__(self) -> str:
        return "\n".join([*self._cell_lines(), *self._movement_lines(), *self._area_lines()])

    def _cell_lines(self) -> Iterator[str]:
        for cell in self.cells:
            written, executed = cell.launches
            yield f"{cell.name}: {executed} forward launches ({written} as written)"
            for what, columns, names in cell.rows:
                yield f"  {what}, {columns} columns: {names}"
            if cell.layout is not None:
                yield from (f"  {line}" for line in cell.layout.splitlines()[1:])

    def _movement_lines(self) -> Iterator[str]:
        """Yield a line per edge between types, in both directions if there are gradients, and one per copy inside."""
        yield "movements in float32, by kind, and launches that only move"
        width = max((len(f"{m.source} -> {m.target}") for m in self.movements), default=0)
        for m in self.movements:
            way = f"{m.target} -> {m.source}" if m.backward else f"{m.source} -> {m.target}"
            yield f"  {way:<{width}}  {m.n_bytes:>12,} bytes  {m.how}" + (f", {m.launches} launches" * (m.launches > 0))

    def _area_lines(self) -> Iterator[str]:
        for how, launches, n_bytes in self.totals():
            yield f"{how}: {n_bytes:,} bytes" + (f", {launches} launches" if how != "by kernel" else "")
        yield f"forward, written again for further readers of a value: {self.written_again:,} bytes"
        yield "buffer: " + ", ".join(f"{what} {n_bytes:,} bytes" for what, n_bytes in self.areas)

    def totals(self) -> list[tuple[str, int, int]]:
        """Return, per kind of movement, the launches that only move, and the bytes."""
        return [
            (how, sum(m.launches for m in found), sum(m.n_bytes for m in found))
            for how in KINDS
            for found in [[m for m in self.movements if m.how == how]]
        ]

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the columns of each cell's rows, and the bytes moved, into a PNG, PDF or SVG file.

        Raises:
            AutobatchError: Matplotlib is missing, or the file cannot be written.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise AutobatchError(
                f"cannot draw a memory plan: matplotlib is not installed; {pip_install('plot')}."
            ) from None
        rows = [(f"{cell.name}: {what}", names) for cell in self.cells for what, _, names in cell.rows]
        figure = Figure(figsize=(11, 1.6 + 0.35 * len(rows) + 0.3 * len(KINDS)), layout="constrained")
        upper, lower = figure.subplots(2, 1, height_ratios=[max(len(rows), 1), len(KINDS)])
        widest = max((columns for cell in self.cells for _, columns, _ in cell.rows), default=1)
        for at, (_, names) in enumerate(rows):
            _draw_row(upper, at, names, widest * NARROW)
        upper.set_yticks(range(len(rows)), [label for label, _ in rows], parse_math=False)
        upper.invert_yaxis()
        upper.set_xlabel("column")
        totals = self.totals()
        lower.barh([how for how, _, _ in totals], [n_bytes / 1e6 for _, _, n_bytes in totals], color="C0")
        lower.set_xlabel("MB moved in this mini-batch")
        for axes in (upper, lower):
            axes.spines[["top", "right"]].set_visible(False)
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise AutobatchError(f"cannot draw a memory plan into {os.fspath(path)!r}: {error}") from error


def _draw_row(axes: Any, at: int, names: str, narrow: float) -> None:
    """Draw one row of columns: a bar per item, `name[first:end]`, with its name unless it is narrow."""
    for number, item in enumerate(names.split()):
        name, _, columns = item.rpartition("[")
        first, _, end = columns.rstrip("]").partition(":")
        start, width = int(first), int(end) - int(first)
        axes.barh(at, width, left=start, height=0.8, color=f"C{number % 10}", alpha=0.6)
        if width > narrow:
            axes.text(start + width / 2, at, name, ha="center", va="center", fontsize="x-small", parse_math=False)


def report_memory(plan: Plan, cells: PlannedTypes) -> MemoryReport:
    """Make the report that `explain --memory` shows.

    Args:
        plan: the plan of a mini-batch.
        cells: its types, planned for training if the gradients are to be shown.
    """
    used = np.bincount(plan.graph.type_id, minlength=len(cells.cells))
    names = plan.graph.types.names
    shown = tuple(_describe_cell(names[type_id], cell) for type_id, cell in enumerate(cells.cells) if used[type_id])
    return MemoryReport(shown, _areas(plan, cells), tuple(movements(plan, cells)), _written_again(plan, cells))


def _areas(plan: Plan, cells: PlannedTypes) -> tuple[tuple[str, int], ...]:
    asked = int((plan.slot_rows * cells.layout.slot_width).sum())
    if not cells.training:
        return ("requested", FLOAT_BYTES * asked), ("inputs, reused", FLOAT_BYTES * (plan.size - asked))
    return (
        # The gradients of inputs and requested outputs follow these, at `gradient_offset`, and take as much.
        ("inputs", FLOAT_BYTES * (plan.gradient_offset - asked)),
        ("requested", FLOAT_BYTES * asked),
        ("gradients", FLOAT_BYTES * plan.gradient_offset),
        ("saved", FLOAT_BYTES * (plan.size - 2 * plan.gradient_offset)),
    )


def _written_again(plan: Plan, cells: PlannedTypes) -> int:
    """Return the bytes of all destinations of node outputs except the first of each."""
    sizes = [cell.program.vars[output].size for cell in cells.cells for output in cell.program.outputs]
    rows = np.diff(plan.dest_base)
    again = np.maximum(np.diff(plan.dest_ptr) - 1, 0)
    return int((np.repeat(np.array(sizes, np.int64), rows) * again).sum()) * FLOAT_BYTES


def _describe_cell(name: str, cell: PlannedCell) -> CellMemory:
    program, layout = cell.program, cell.layout
    written = _launches(cell.type.program.vars, cell.type.program.instructions)
    executed = _launches(program.vars, program.instructions)
    vars: Sequence[Var] = program.vars if cell.derivative is None else cell.derivative.vars
    inputs = [(place, _name(vars, program.ports[number])) for number, place in enumerate(layout.inputs)]
    made = {value: place for value, place in layout.inner.items() if value not in layout.joins}
    inputs += [(place, _name(vars, value)) for value, place in made.items()]
    saved = [(place, _name(vars, value)) for value, place in layout.saved.items() if value not in layout.taken]
    first = [(layout.saved[value], _name(vars, value)) for value in sorted(layout.taken)]
    areas = [("inputs", inputs, layout.input_width), ("saved", saved, layout.saved_width)]
    rows = []
    for what, places, widths in (*areas, ("saved, then overwritten,", first, layout.saved_width)):
        for domain, width in enumerate(widths, start=NODE):
            each = "node" if domain == NODE else f"edge of group {domain}"
            items = sorted((p.column, p.column + p.width, n) for p, n in places if p.domain == domain and p.width)
            if items:
                rows.append((f"{what} per {each}", width, " ".join(f"{n}[{a}:{b}]" for a, b, n in items)))
    text = str(lay_out(join_products(cell.type.program))) if written > 1 else None
    return CellMemory(name, text, tuple(rows), (written, executed))


def _launches(vars: Sequence[Var], instructions: Sequence[int]) -> int:
    """Count the instructions that compute: neither views nor joins."""
    sources = [vars[i].source for i in instructions]
    return sum(isinstance(s, Instruction) and not s.op.view and not s.op.copies for s in sources)


def _name(vars: Sequence[Var], value: int) -> str:
    source = vars[value].source
    return source.name if isinstance(source, (Port, Weight, Attribute)) else f"%{value}"
