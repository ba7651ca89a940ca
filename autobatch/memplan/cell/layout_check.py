"""Check the layout of a cell against its definition: by addresses of items, without the PQ-trees that order them."""

from __future__ import annotations

from autobatch.errors import PlanError
from autobatch.ir.program import Instruction
from autobatch.keywords import checked
from autobatch.memplan.cell.constraints import Pattern, operands_of
from autobatch.memplan.cell.grouping import computed, signature
from autobatch.memplan.cell.layout import CellLayout
from autobatch.memplan.cell.memory import Item


@checked()
def check_cell_layout(layout: CellLayout) -> None:
    """Check that items have one place, batches can run, and operands are views or listed as copied or read apart.

    Raises:
        PlanError: a defect of the planner; the message names the first violation.

    Cost: O(items * values).
    """
    start = _addresses(layout)
    _check_values(layout, start)
    _check_batches(layout)
    for number, batch in enumerate(layout.batches):
        for operand, pattern in batch.views.items():
            _check_view(layout, start, number, operand, pattern)
    _check_copies(layout)


def _addresses(layout: CellLayout) -> dict[Item, tuple[str, int]]:
    start: dict[Item, tuple[str, int]] = {}
    for area, items in layout.areas.items():
        at = 0
        for item in items:
            if item in start:
                raise _broken(layout, f"{layout.memory.item_name(item)} has two places")
            start[item] = (area, at)
            at += item.size
    expected = {
        item: area for area, items in layout.memory.areas.items() for item in items if item.value not in layout.joins
    }
    if {item: area for item, (area, _) in start.items()} != expected:
        raise _broken(layout, f"{len(start)} items have places, but {len(expected)} need one, or their areas differ")
    return start


def _check_values(layout: CellLayout, start: dict[Item, tuple[str, int]]) -> None:
    """Check that the items of every value, including a join, are adjacent."""
    for value, var in enumerate(layout.memory.program.vars):
        span = layout.span(value)
        size = layout.memory.reads[value].stop - layout.memory.reads[value].start
        if not span:
            continue
        area, at = start[span[0]]
        for item in span:
            if start[item] != (area, at):
                raise _broken(layout, f"{layout.memory.name(value)} of shape {var.shape} lies in pieces")
            at += item.size
        if at - start[span[0]][1] != size:
            raise _broken(
                layout, f"{layout.memory.name(value)} has {at - start[span[0]][1]} elements, but needs {size}"
            )


def _check_batches(layout: CellLayout) -> None:
    """Check that batches run every instruction once, after its arguments, and that each batch may run as one."""
    memory, finished = layout.memory, set[int]()
    for number, batch in enumerate(layout.batches):
        sources = [memory.program.vars[value].source for value in batch.values]
        args = [arg for source in sources if isinstance(source, Instruction) for arg in source.args]
        missing = {read for arg in args for read in computed(memory, arg)} - finished
        if missing:
            raise _broken(layout, f"batch {number} reads {memory.name(min(missing))} before it is computed")
        if len({signature(memory, value) for value in batch.values}) != 1:
            raise _broken(layout, f"the instructions of batch {number} cannot run as one")
        if finished & {*batch.values}:
            raise _broken(layout, f"an instruction of batch {number} runs twice")
        finished |= {*batch.values}
    if finished != {*memory.steps}:
        raise _broken(layout, f"batches run {len(finished)} of {len(memory.steps)} instructions")


def _check_view(
    layout: CellLayout, start: dict[Item, tuple[str, int]], number: int, operand: int, pattern: Pattern
) -> None:
    """Check that the values of an operand lie as its pattern requires, in the order of the batch."""
    batch, memory = layout.batches[number], layout.memory
    values = operands_of(memory, batch.values)[operand]
    wanted = start[layout.span(values[0])[0]]
    for value in values:
        if start[layout.span(value)[0]] != wanted:
            raise _broken(
                layout,
                f"operand {operand} of batch {number} is listed as a view ({pattern}), but {memory.name(value)} lies "
                f"at {start[layout.span(value)[0]]} instead of {wanted}",
            )
        if pattern == "full":
            wanted = (wanted[0], wanted[1] + memory.reads[value].stop - memory.reads[value].start)


def _check_copies(layout: CellLayout) -> None:
    """Check that every operand and join that is not a view is listed, with a reason."""
    memory = layout.memory
    missing = {
        is_product: sum(
            len(operands_of(memory, batch.values).keys() - batch.views.keys())
            for batch in layout.batches
            if batch.is_product == is_product
        )
        for is_product in (True, False)
    }
    n_copied = missing[True] + len(set(memory.copying) - layout.joins)
    if (len(layout.copies), len(layout.apart)) != (n_copied, missing[False]):
        raise _broken(
            layout,
            f"{len(layout.copies)} copies and {len(layout.apart)} reads in place are listed, but there are "
            f"{n_copied} and {missing[False]}",
        )
    if not all(copy.reason and copy.elements > 0 for copy in (*layout.copies, *layout.apart)):
        raise _broken(layout, "a copy has no reason or moves nothing")


def _broken(layout: CellLayout, claim: str) -> PlanError:
    return PlanError(
        f"checking the layout of cell {layout.memory.program.name!r}: {claim}; this is a bug in autobatch; please "
        f"report it."
    )
