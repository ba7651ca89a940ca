"""Assign buffers: choose the values of a stage that stay in registers, and the places of the others in scratch memory.

- *register*: the value is read only in the loop nest that makes it, or it is one number per node and read only in its
  kernel.
- *row*: the value is read elsewhere in its kernel. All rows of the batch use the same row of scratch memory in turn.
- *batch*: another step reads the value. Scratch memory has a row for each row of the batch.
- *persistent*: the value is made once for all nodes of the type.

The layout places the remaining values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from autobatch.compiler.fusion import Block, Kernel, Step, is_made_at_once
from autobatch.compiler.lowered import STORED, Area, Location, Lowered
from autobatch.compiler.statement import Loop, Statement
from autobatch.compiler.uses import Uses
from autobatch.compiler.view import View
from autobatch.ir.program import NODE, SHARED


class Spot(NamedTuple):
    """The position of a statement: its step, and its block in the step, -1 if the step is not a kernel."""

    step: int
    block: int


@dataclass(eq=False)
class Storage:
    """The storage of the values of a stage.

    Attributes:
        locations: the locations of the values in memory, placed by the layout or assigned to a storage class.
        aliases: the values that are made as part of another one, as views of that one.
        registers: the values held in a register, with the positions of their loops; never values made in parts.
        row_width, batch_width, persistent_width: elements per row of each storage class; `batch_width` by domain.
        shared: the values shared by all rows that kernels read, and their places.
        shared_width: the elements of all shared values.
    """

    locations: dict[int, Location]
    aliases: dict[int, View]
    registers: dict[int, Spot] = field(default_factory=dict)
    row_width: int = 0
    batch_width: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    persistent_width: int = 0
    shared: dict[int, int] = field(default_factory=dict)
    shared_width: int = 0

    def locate(self, view: View) -> tuple[Location, View]:
        """Resolve aliases: return the location of the value that owns the memory, and the view of that value."""
        view = view.within(self.aliases)
        return self.locations[view.value], view

    def has_memory(self, value: int) -> bool:
        """Return whether a value has memory, of its own or inside another value."""
        return value in self.locations or value in self.aliases


def assign_buffers(lowered: Lowered, steps: list[Step], n_before: int = 0) -> Storage:
    """Assign storage to every value; the first `n_before` steps run once for all rows."""
    storage = Storage(dict(lowered.locations), lowered.aliases)
    statements, spots = in_order(steps)
    uses = Uses(lowered, statements)
    row_ends: defaultdict[int, int] = defaultdict(int)
    # Candidates for registers: values made by a single loop, either element by element or as one number.
    for value in uses.made:
        maker, *others = uses.makers(value)
        loop = statements[maker]
        if not others and isinstance(loop, Loop) and (is_made_at_once(lowered, loop) or is_number(lowered, loop)):
            storage.registers[value] = spots[maker]
    # Parts of values get their places with the value that owns the memory.
    for value in dict.fromkeys(View(made, 0, (), ()).within(lowered.aliases).value for made in uses.made):
        if value in storage.locations:
            continue
        made, read = uses.makers(value), uses.readers(value)
        in_steps = {spots[k].step for k in (*made, *read)}
        in_kernels = all(spots[k].block >= 0 for k in (*made, *read))
        domain = lowered.domains[value]
        if min(in_steps) < n_before and (len(in_steps) > 1 or not in_kernels):
            storage.locations[value] = Location(Area.PERSISTENT, NODE, storage.persistent_width)
            storage.persistent_width += lowered.sizes[value]
        elif len(in_steps) > 1 or not in_kernels:
            _put_in_batch(storage, lowered, value)
        elif value in storage.registers and (
            is_row_number(lowered, value)
            or all(spots[k] == storage.registers[value] and not _is_chosen(uses, statements[k], value) for k in read)
        ):
            continue
        elif domain == NODE:
            step = spots[made[0]].step
            storage.locations[value] = Location(Area.ROW, NODE, row_ends[step])
            row_ends[step] += lowered.sizes[value]
        else:  # a scratch row is that of a node, which may have any number of edges
            _put_in_batch(storage, lowered, value)
    _give_rows_to_gathers_and_outputs(lowered, steps, storage, row_ends)
    # Kernels run one after the other, so all of them use the same memory for a row.
    storage.row_width = max(row_ends.values(), default=0)
    _place_shared(lowered, steps, storage)
    return storage


def in_order(steps: Sequence[Step]) -> tuple[list[Statement], list[Spot]]:
    """Return all statements in the order in which they run, and the position of each."""
    found: list[tuple[Statement, Spot]] = []
    for number, step in enumerate(steps):
        if isinstance(step, Kernel):
            found += [(loop, Spot(number, at)) for at, block in enumerate(step.blocks) for loop in block.loops]
        else:
            found.append((step, Spot(number, -1)))
    return [statement for statement, _ in found], [spot for _, spot in found]


def _is_chosen(uses: Uses, statement: Statement, value: int) -> bool:
    """Return whether data choose the element of a value that a loop reads, which must then be in memory."""
    return any(operand.moved is not None for operand in uses.operands(statement, value))


def is_row_number(lowered: Lowered, value: int) -> bool:
    """Return whether a value is one number per node, which a kernel keeps in a variable for the whole row."""
    return lowered.sizes[value] == 1 and lowered.domains[value] == NODE


def is_number(lowered: Lowered, loop: Loop) -> bool:
    """Return whether a loop reduces all of its elements to one number."""
    return bool(loop.combine) and loop.target.value != STORED and lowered.sizes[loop.target.value] == 1


def _put_in_batch(storage: Storage, lowered: Lowered, value: int) -> None:
    domain = lowered.domains[value]
    storage.locations[value] = Location(Area.BATCH, domain, storage.batch_width[domain])
    storage.batch_width[domain] += lowered.sizes[value]


def _give_rows_to_gathers_and_outputs(
    lowered: Lowered, steps: list[Step], storage: Storage, row_ends: defaultdict[int, int]
) -> None:
    """Reserve part of each kernel's scratch row for every gradient that it gathers and every output that it writes."""
    for number, step in enumerate(steps):
        if isinstance(step, Kernel):
            step.spares = {}
            for block in step.blocks:
                for name, size in _spares(lowered, storage, step, block):
                    if name not in step.spares:
                        step.spares[name] = (row_ends[number], size)
                        row_ends[number] += size


def _spares(lowered: Lowered, storage: Storage, kernel: Kernel, block: Block) -> list[tuple[tuple[Area, int], int]]:
    found = []
    for loop in block.loops:
        if loop.stored is not None and loop.stored[0] == "output":
            found.append(((Area.OUTPUT, loop.stored[1]), sum(kernel.written(loop.stored[1])[-1])))
        for operand in loop.operands:
            location = storage.locations.get(operand.view.value)
            if location is not None and location.area is Area.GATHER:
                found.append(((Area.GATHER, location.domain), lowered.sizes[operand.view.value]))
    return found


def _place_shared(lowered: Lowered, steps: list[Step], storage: Storage) -> None:
    for step in steps:
        if not isinstance(step, Kernel):
            continue
        for block in step.blocks:
            for loop in block.loops:
                for operand in loop.operands:
                    value = operand.view.value
                    # Elements that data choose are read from the parameter itself, see `table_and_step`.
                    if lowered.domains[value] == SHARED and operand.moved is None and value not in storage.shared:
                        storage.shared[value] = storage.shared_width
                        storage.shared_width += lowered.sizes[value]
