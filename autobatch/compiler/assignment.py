"""Buffer assignment: choose which values of a stage stay in registers, and where the others lie in scratch memory.

- *register*: the value is read only in the loop nest that makes it, or it is one number per node and read only in its
  kernel.
- *row*: the value is read elsewhere in its kernel. Every row of the batch uses the same row of scratch memory.
- *batch*: another step reads the value. Scratch memory has a row for each row of the batch.
- *persistent*: the value is made once for all nodes of the type.

The layout gives places to the remaining values.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from autobatch.compiler.fusion import Block, Kernel, Step, is_made_at_once
from autobatch.compiler.lowered import STORED, Area, Home, Lowered
from autobatch.compiler.statement import Loop, Product
from autobatch.compiler.view import View
from autobatch.ir.program import NODE, SHARED


class Spot(NamedTuple):
    """A step and a block in it; the block is -1 for a step that is not a kernel."""

    step: int
    block: int


@dataclass(eq=False)
class Storage:
    """Where the values of a stage are.

    Attributes:
        homes: the values in memory, placed by the layout or assigned to a storage class.
        aliases: values that are made as part of another one.
        registers: values held in a register where they are made; a value made in parts never is.
        row_width, batch_width, persistent_width: elements per row; those of the batch by domain.
        shared: the values shared by all rows that kernels read, and their places.
        shared_width: elements of these.
    """

    homes: dict[int, Home]
    aliases: dict[int, View]
    registers: dict[int, Spot] = field(default_factory=dict)
    row_width: int = 0
    batch_width: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    persistent_width: int = 0
    shared: dict[int, int] = field(default_factory=dict)
    shared_width: int = 0

    def home(self, view: View) -> tuple[Home, View]:
        """Resolve aliases: return the home of the value that holds the view's memory, and the view of that value."""
        while view.value in self.aliases:
            whole = self.aliases[view.value]
            view = view._replace(value=whole.value, offset=view.offset + whole.offset)
        return self.homes[view.value], view


def assign_buffers(lowered: Lowered, steps: list[Step], n_before: int = 0) -> Storage:
    """Decide where every value is; the first `n_before` steps run once for all rows."""
    storage = Storage(dict(lowered.homes), lowered.aliases)
    makers, readers = _makers(lowered, steps), _readers(lowered, steps)
    row_ends: defaultdict[int, int] = defaultdict(int)
    for value, spots in makers.items():
        loops = [block for spot, block in spots if spot.block >= 0]
        sole = len(spots) == 1 and len(loops) == 1
        spot, loop = spots[0]
        if sole and loop is not None and (is_made_at_once(lowered, loop) or is_number(lowered, loop)):
            storage.registers[value] = spot
    for value, spots in makers.items():
        if value in storage.homes or value in storage.aliases:
            continue
        in_steps = {spot.step for spot, _ in spots} | {spot.step for spot in readers[value]}
        in_kernels = all(spot.block >= 0 for spot in [*readers[value], *(spot for spot, _ in spots)])
        domain = lowered.domains[value]
        if min(in_steps) < n_before and (len(in_steps) > 1 or not in_kernels):
            storage.homes[value] = Home(Area.PERSISTENT, NODE, storage.persistent_width)
            storage.persistent_width += lowered.sizes[value]
        elif len(in_steps) > 1 or not in_kernels:
            _put_in_batch(storage, lowered, value)
        elif value in storage.registers and (
            all(spot == storage.registers[value] for spot in readers[value]) or is_row_number(lowered, value)
        ):
            continue
        elif domain == NODE:
            step = spots[0][0].step
            storage.homes[value] = Home(Area.ROW, NODE, row_ends[step])
            row_ends[step] += lowered.sizes[value]
        else:
            _put_in_batch(storage, lowered, value)
    _give_rows_to_gathers_and_outputs(lowered, steps, storage, row_ends)
    storage.row_width = max(row_ends.values(), default=0)
    _place_shared(lowered, steps, storage)
    return storage


def is_row_number(lowered: Lowered, value: int) -> bool:
    """Whether a value is one number per node, which a kernel keeps in a variable for the whole row."""
    return lowered.sizes[value] == 1 and lowered.domains[value] == NODE


def is_number(lowered: Lowered, loop: Loop) -> bool:
    """Whether a loop reduces all of its elements to one number."""
    return bool(loop.combine) and loop.target.value != STORED and lowered.sizes[loop.target.value] == 1


def _put_in_batch(storage: Storage, lowered: Lowered, value: int) -> None:
    domain = lowered.domains[value]
    storage.homes[value] = Home(Area.BATCH, domain, storage.batch_width[domain])
    storage.batch_width[domain] += lowered.sizes[value]


def _give_rows_to_gathers_and_outputs(
    lowered: Lowered, steps: list[Step], storage: Storage, row_ends: defaultdict[int, int]
) -> None:
    """Give each kernel part of the scratch row for every gradient that it gathers and every output that it writes."""
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
            home = storage.homes.get(operand.view.value)
            if home is not None and home.area is Area.GATHER:
                found.append(((Area.GATHER, home.domain), lowered.sizes[operand.view.value]))
    return found


def _makers(lowered: Lowered, steps: list[Step]) -> dict[int, list[tuple[Spot, Loop | None]]]:
    """Where each value is made, and by which loop; making a part of a value counts as making the value."""
    found: defaultdict[int, list[tuple[Spot, Loop | None]]] = defaultdict(list)
    for number, step in enumerate(steps):
        made: list[tuple[int, Spot, Loop | None]] = []
        if isinstance(step, Kernel):
            for at, block in enumerate(step.blocks):
                made += [(loop.target.value, Spot(number, at), loop) for loop in block.loops]
        else:
            made.append((step.target, Spot(number, -1), None))
        for value, spot, loop in made:
            if value != STORED:
                found[value].append((spot, loop))
            while value in lowered.aliases:
                value = lowered.aliases[value].value
                found[value].append((spot, None))
    return found


def _readers(lowered: Lowered, steps: list[Step]) -> defaultdict[int, list[Spot]]:
    found: defaultdict[int, list[Spot]] = defaultdict(list)
    for number, step in enumerate(steps):
        if isinstance(step, Kernel):
            for at, block in enumerate(step.blocks):
                for loop in block.loops:
                    for operand in loop.operands:
                        # an element chosen by data is always read from memory, even in the block that makes the value
                        place = Spot(number, at if operand.moved is None else len(step.blocks))
                        found[operand.view.value].append(place)
        else:
            values = [t.rows.value for t in step.terms] if isinstance(step, Product) else step.args
            for value in values:
                root = value if isinstance(step, Product) else lowered.views[value].value
                found[root].append(Spot(number, -1))
    return found


def _place_shared(lowered: Lowered, steps: list[Step], storage: Storage) -> None:
    for step in steps:
        if not isinstance(step, Kernel):
            continue
        for block in step.blocks:
            for loop in block.loops:
                for operand in loop.operands:
                    value = operand.view.value
                    if lowered.domains[value] == SHARED and operand.moved is None and value not in storage.shared:
                        storage.shared[value] = storage.shared_width
                        storage.shared_width += lowered.sizes[value]
