"""Compile a stage of a cell for any target: run the passes of the compiler, and return the steps and their storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent
from typing import Any, TypeAlias

from autobatch.compiler.assignment import Storage, assign_buffers
from autobatch.compiler.checking import check_statements, check_steps, check_storage
from autobatch.compiler.columns_check import check_columns
from autobatch.compiler.fusion import fuse, keep_apart
from autobatch.compiler.hoisting import Parts, hoist
from autobatch.compiler.lowered import Lowered
from autobatch.compiler.lowering import lower_backward, lower_forward
from autobatch.compiler.neighbours import Neighbours, show_apart
from autobatch.compiler.printing import show_lowered, show_statements, show_steps, show_storage
from autobatch.compiler.splitting import split_loops
from autobatch.compiler.tiles import name_fields
from autobatch.plan.plan import PlannedCell
from autobatch.system.unchecked import checking


@dataclass(frozen=True, eq=False)
class StageProgram:
    """A compiled stage for any target; a target prints its kernels, and maps the storage classes to memory.

    Attributes:
        cell: the cell of the stage.
        steps: kernels, products and interpreted ops; in the weight stage products, sums, scatters and the remainder.
        fields: the names of the fields of a tile, which kernels read; see `autobatch.compiler.tiles`.
        n_before, n_after: the numbers of first and of last steps that run once for all rows of a type.
    """

    cell: PlannedCell
    lowered: Lowered
    steps: list[Any]
    storage: Storage
    fields: tuple[str, ...]
    n_before: int
    n_after: int


Note: TypeAlias = Callable[[str, str], None]  # called with the name of a pass and its result as text


def compile_forward(cell: PlannedCell, note: Note | None = None) -> StageProgram:
    """Compile the forward stage; `note` is called with the result of every pass."""
    return _compile(lower_forward(cell), cell, note)


def compile_backward(cell: PlannedCell, note: Note | None = None) -> StageProgram:
    """Compile the backward stage; `note` is called with the result of every pass."""
    return _compile(lower_backward(cell), cell, note)


def _compile(lowered: Lowered, cell: PlannedCell, note: Note | None) -> StageProgram:
    checked = checking() or note is not None
    report = _PassReporter(lowered, note)
    if checked:
        check_statements(lowered, lowered.statements)
    report.statements("lowered")
    if cell.kernels.cuts:
        split_loops(lowered)
        if checked:
            check_statements(lowered, lowered.statements)
        report.statements("cut")
    parts = hoist(lowered) if cell.kernels.hoists else Parts([], lowered.statements, [])
    statements = [statement for part in parts for statement in part]
    if checked:
        check_statements(lowered, statements)
    if cell.kernels.hoists:
        report.hoisted(parts)
    divide = fuse if cell.kernels.fuses else keep_apart
    before, per_batch, after = (divide(lowered, part) for part in parts)
    steps = [*before, *per_batch, *after]
    if checked:
        check_steps(lowered, statements, steps)
    report.fused(Neighbours(lowered, steps, len(before), len(after), cell.kernels.fuses))
    storage = assign_buffers(lowered, steps, len(before))
    if checked:
        check_storage(lowered, steps, storage)
        check_columns(cell, lowered, steps, storage, len(before), len(after))
    report.stored(storage)
    fields = name_fields(len(cell.layout.input_width), len(cell.program.outputs))
    return StageProgram(cell, lowered, steps, storage, fields, len(before), len(after))


class _PassReporter:
    """A reporter of the result of every pass to `note`, if it is not None."""

    def __init__(self, lowered: Lowered, note: Note | None) -> None:
        self.lowered, self.note, self.last = lowered, note, ""

    def statements(self, name: str) -> None:
        """Report the statements; "as before" if a pass has not changed them."""
        if self.note is not None:
            text = show_lowered(self.lowered)
            self.note(name, text if text != self.last else "as before")
            self.last = text

    def hoisted(self, parts: Parts) -> None:
        """Report which statements run before, in and after the batches."""
        if self.note is None:
            return
        if not parts.before and not parts.after:
            self.note("hoisted", "nothing: all statements run for every batch")
            return
        titles = ("before all batches, for all rows of the type", "for every batch", "after all batches, for all rows")
        lines = []
        for title, part in zip(titles, parts, strict=True):
            if part:
                lines += [f"{title}:", *(f"  {line}" for line in show_statements(self.lowered, part))]
        self.note("hoisted", "\n".join(lines))

    def fused(self, neighbours: Neighbours) -> None:
        """Report the steps, and why neighbours are not fused."""
        if self.note is not None:
            lines = show_steps(self.lowered, neighbours.steps)
            apart = indent(show_apart(neighbours), "  ")
            self.note("fused", "\n".join([*lines, "neighbours that are not fused:", apart]))

    def stored(self, storage: Storage) -> None:
        """Report the storage of values."""
        if self.note is not None:
            self.note("storage", show_storage(self.lowered, storage))
