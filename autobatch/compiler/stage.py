"""A stage of a cell, compiled: its steps, where its values are, and the source of each kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent
from typing import TypeAlias

from autobatch.compiler.assignment import Storage, assign_buffers
from autobatch.compiler.checking import check_statements, check_steps, check_storage
from autobatch.compiler.columns_check import check_columns
from autobatch.compiler.fusion import Kernel, Step, fuse, keep_apart
from autobatch.compiler.hoisting import Parts, hoist
from autobatch.compiler.lowered import Lowered
from autobatch.compiler.lowering import lower_backward, lower_forward
from autobatch.compiler.neighbours import Neighbours, show_apart
from autobatch.compiler.numba.source import Source, write_kernel
from autobatch.compiler.numba.writer import SLOTS, Common
from autobatch.compiler.printing import show_axes, show_lowered, show_statements, show_steps, show_storage
from autobatch.compiler.splitting import split_loops
from autobatch.compiler.statement import Interpreted, Product
from autobatch.compiler.table import name_columns
from autobatch.plan.plan import PlannedCell
from autobatch.system.trust import checking


@dataclass(frozen=True, eq=False)
class Stage:
    """What runs per batch.

    Attributes:
        sources: of each step that is a kernel; None for others.
        columns: of the table of batches that kernels read.
        slots: of the addresses of arrays that kernels take, by name.
        n_before, n_after: the first and the last steps that run once for all rows of a type.
    """

    lowered: Lowered
    steps: list[Step]
    storage: Storage
    sources: list[Source | None]
    columns: tuple[str, ...]
    slots: dict[str, int]
    n_before: int
    n_after: int

    def __str__(self) -> str:
        lines = [f"{self.lowered.name}, {self.lowered.stage}"]
        for number, (step, source) in enumerate(zip(self.steps, self.sources, strict=True)):
            if number == self.n_before > 0:
                lines.append("for every batch:")
            if number == len(self.steps) - self.n_after:
                lines.append("after all batches:")
            match step:
                case Kernel(blocks=blocks):
                    lines.append(f"step {number}: kernel")
                    lines += [
                        f"  block {b} over {show_axes(block.axes)}, loops: {len(block.loops)}"
                        for b, block in enumerate(blocks)
                    ]
                    assert source is not None
                    lines += ["  | " + line for line in source.text.splitlines()]
                case Product(terms=terms, target=target):
                    text = " + ".join(f"%{t.rows.value} @ %{t.weight}{'.T' if t.transposed else ''}" for t in terms)
                    lines.append(f"step {number}: product %{target} {'+=' if step.adds else '='} {text}")
                case Interpreted(target=target, why=why):
                    lines.append(f"step {number}: %{target} is interpreted: {why.value}")
        return "\n".join(lines)


Note: TypeAlias = Callable[[str, str], None]  # takes the name of a pass, and its result as text


def compile_forward(cell: PlannedCell, note: Note | None = None) -> Stage:
    """Compile what runs per batch, forward; `note` is told what every pass made."""
    return _compile(lower_forward(cell), cell, note)


def compile_backward(cell: PlannedCell, note: Note | None = None) -> Stage:
    """Compile what runs per batch, backward; `note` is told what every pass made."""
    return _compile(lower_backward(cell), cell, note)


def _compile(lowered: Lowered, cell: PlannedCell, note: Note | None) -> Stage:
    checked = checking() or note is not None
    watch = _Watch(lowered, note)
    if checked:
        check_statements(lowered, lowered.statements)
    watch.statements("lowered")
    if cell.kernels.cuts:
        split_loops(lowered)
        if checked:
            check_statements(lowered, lowered.statements)
        watch.statements("cut")
    parts = hoist(lowered) if cell.kernels.hoists else Parts([], lowered.statements, [])
    statements = [statement for part in parts for statement in part]
    if checked:
        check_statements(lowered, statements)
    if cell.kernels.hoists:
        watch.hoisted(parts)
    divide = fuse if cell.kernels.fuses else keep_apart
    before, per_batch, after = (divide(lowered, part) for part in parts)
    steps = [*before, *per_batch, *after]
    if checked:
        check_steps(lowered, statements, steps)
    watch.fused(Neighbours(lowered, steps, len(before), len(after), cell.kernels.fuses))
    storage = assign_buffers(lowered, steps, len(before))
    if checked:
        check_storage(lowered, steps, storage)
        check_columns(cell, lowered, steps, storage, len(before), len(after))
    watch.stored(storage)
    columns = name_columns(len(cell.layout.input_width), len(cell.program.outputs))
    words = cell.program.words(False), cell.program.words(True)
    slots = {name: number for number, name in enumerate(SLOTS)}
    common = Common(lowered, storage, cell.layout, columns, words, slots)
    sources = [write_kernel(common, k, step) if isinstance(step, Kernel) else None for k, step in enumerate(steps)]
    stage = Stage(lowered, steps, storage, sources, columns, slots, len(before), len(after))
    watch.written(stage)
    return stage


class _Watch:
    """Tells what every pass made, if anybody wants to know."""

    def __init__(self, lowered: Lowered, note: Note | None) -> None:
        self.lowered, self.note, self.last = lowered, note, ""

    def statements(self, name: str) -> None:
        """Tell the statements, unless they are as before."""
        if self.note is not None:
            text = show_lowered(self.lowered)
            self.note(name, text if text != self.last else "as before")
            self.last = text

    def hoisted(self, parts: Parts) -> None:
        """Tell what runs when."""
        if self.note is None:
            return
        if not parts.before and not parts.after:
            self.note("hoisted", "nothing: all runs for every batch")
            return
        titles = ("before all batches, for all rows of the type", "for every batch", "after all batches, for all rows")
        lines = []
        for title, part in zip(titles, parts, strict=True):
            if part:
                lines += [f"{title}:", *(f"  {line}" for line in show_statements(self.lowered, part))]
        self.note("hoisted", "\n".join(lines))

    def fused(self, neighbours: Neighbours) -> None:
        """Tell the steps, and why neighbours are not fused."""
        if self.note is not None:
            lines = show_steps(self.lowered, neighbours.steps)
            apart = indent(show_apart(neighbours), "  ")
            self.note("fused", "\n".join([*lines, "neighbours that are not fused:", apart]))

    def stored(self, storage: Storage) -> None:
        """Tell where values are."""
        if self.note is not None:
            self.note("storage", show_storage(self.lowered, storage))

    def written(self, stage: Stage) -> None:
        """Tell the source, step by step."""
        if self.note is not None:
            self.note("source", str(stage))
