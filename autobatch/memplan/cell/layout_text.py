"""A laid out cell as text: the order of items before and after, its inner batches, and what is copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autobatch.ir.program import Instruction
from autobatch.memplan.cell.constraints import RESULT, operands_of
from autobatch.memplan.cell.layout import ROWS, UNTRIED, CellLayout, Copy, InnerBatch
from autobatch.memplan.cell.memory import Item


def show_layout(layout: CellLayout, rows: int = ROWS) -> str:
    """Items in order before and after, a line for each inner batch and each copy; bytes for `rows` nodes."""
    return "\n".join([_head(layout, rows), *_areas(layout), *_batches(layout), *_copies(layout, rows)])


def _head(layout: CellLayout, rows: int) -> str:
    n_steps = sum(len(batch.values) for batch in layout.batches)
    bound = "" if layout.proven else ", not proven to be the best"
    return (
        f"{layout.memory.program.name}: {n_steps} instructions in {len(layout.batches)} batches{bound}; "
        f"{len(layout.copies)} copies, {layout.copied_bytes(rows):,} bytes for {rows} nodes"
    )


def _areas(layout: CellLayout) -> Iterator[str]:
    for area, items in layout.areas.items():
        before = [item for item in layout.memory.areas[area] if item.value not in layout.joins]
        yield f"  {area}, {sum(item.size for item in items)} elements"
        yield f"    before: {_names(layout, before)}"
        yield f"    after:  {_names(layout, items)}"


def _names(layout: CellLayout, items: Sequence[Item]) -> str:
    return " ".join(layout.memory.item_name(item) for item in items)


def _batches(layout: CellLayout) -> Iterator[str]:
    yield "  batches"
    for number, batch in enumerate(layout.batches, start=1):
        grid = f" in {batch.n_rows} rows" if batch.n_rows > 1 else ""
        operands = ", ".join(_operands(layout, batch))
        yield f"    {number}: {_source(layout, batch).op.name} x {len(batch.values)}{grid}: {operands}"


def _operands(layout: CellLayout, batch: InnerBatch) -> Iterator[str]:
    """`x = (a b)` for a view, and how an operand is read that is none."""
    for operand, values in operands_of(layout.memory, batch.values).items():
        name = "result" if operand == RESULT else _source(layout, batch).op.names[operand]
        names = " ".join(layout.memory.name(value) for value in dict.fromkeys(values))
        how = "" if operand in batch.views else " copied" if batch.hard else " apart"
        yield f"{name} = {names}{how}"


def _copies(layout: CellLayout, rows: int) -> Iterator[str]:
    for title, copies in (("copies", layout.copies), ("read in place by element-wise ops", layout.apart)):
        if copies:
            yield f"  {title}"
            yield from (f"    {_copy(copy, rows)}" for copy in copies if copy.reason != UNTRIED)
    if layout.untried:
        moved = sum(copy.moved_bytes(rows) for copy in layout.untried)
        yield f"    and {len(layout.untried)} operands, {moved:,} bytes: {UNTRIED}"


def _copy(copy: Copy, rows: int) -> str:
    return f"{copy.what}: {copy.moved_bytes(rows):,} bytes; {copy.reason}"


def _source(layout: CellLayout, batch: InnerBatch) -> Instruction:
    source = layout.memory.program.vars[batch.values[0]].source
    assert isinstance(source, Instruction)
    return source
