"""Find the loops of a compiled stage that only copy elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from autobatch.compiler.assignment import Spot, is_row_number
from autobatch.compiler.fusion import Kernel
from autobatch.compiler.lowered import Area
from autobatch.compiler.stage import StageProgram
from autobatch.compiler.statement import Loop, Operand

DATA = (Area.INTS, Area.FLOATS)


class Copy(NamedTuple):
    """A loop that only copies.

    Attributes:
        step: the number of its kernel.
        gathered: the output whose gradient the loop gathers from the output's readers; -1 if it reads something else.
    """

    step: int
    loop: Loop
    gathered: int


def find_copies(stage: StageProgram) -> Iterator[Copy]:
    """Find the loops that write each element unchanged after reading it from the memory of a row.

    Loops that read registers, data, or elements that data choose (lookups) do not count as copies.
    """
    storage = stage.storage
    for number, step in enumerate(stage.steps):
        for at, block in enumerate(step.blocks if isinstance(step, Kernel) else ()):
            for loop in block.loops:
                match loop.expression:
                    case Operand(view, None) if not loop.combine and view.value not in storage.shared:
                        made = storage.registers.get(view.value)
                        if made == Spot(number, at):
                            continue
                        if made is not None and made.step == number and is_row_number(stage.lowered, view.value):
                            continue
                        location, _ = storage.locate(view)
                        if location.area not in DATA:
                            yield Copy(number, loop, location.domain if location.area is Area.GATHER else -1)


def only_copy(stage: StageProgram) -> set[int]:
    """Return the numbers of the kernels that only copy; each costs a launch."""
    copying = {id(copy.loop) for copy in find_copies(stage)}
    return {
        number
        for number, step in enumerate(stage.steps)
        if isinstance(step, Kernel) and all(id(loop) in copying for block in step.blocks for loop in block.loops)
    }
