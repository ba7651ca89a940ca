"""Divide the indices of a loop nest among the threads that work on a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from autobatch.compiler.assignment import is_number
from autobatch.compiler.fusion import Block
from autobatch.compiler.lowered import Lowered
from autobatch.compiler.statement import Loop

Who: TypeAlias = Literal["divided", "one", "all"]


class Mapping(NamedTuple):
    """The distribution of the indices of a nest to the threads of a row.

    Attributes:
        axes: the axes of the nest.
        along: the numbers of the axes whose indices are dealt out to the threads in turn; each thread runs through the
            other axes.
    """

    axes: tuple[int, ...]
    along: tuple[int, ...]

    @property
    def who(self) -> Who:
        """Return "divided" if indices are divided among threads, "one" if one thread runs all of them, or "all".

        With "all", each thread runs the single index of the nest. All threads then have its values in variables, and
        one of them writes to memory.
        """
        if not self.axes:
            return "all"
        return "divided" if self.along else "one"

    @property
    def width(self) -> int:
        """Return the number of threads that can work at the same time."""
        found = 1
        for axis in self.along:
            found *= self.axes[axis]
        return found


@dataclass(frozen=True, eq=False)
class Pass:
    """The loops of a block that run in one loop nest.

    Attributes:
        again: the `id`s of loops that another pass runs too; here they only make variables that other loops read.
    """

    mapping: Mapping
    loops: tuple[Loop, ...]
    again: frozenset[int] = frozenset()


def divide(lowered: Lowered, block: Block) -> list[Pass]:
    """Divide a block into passes in which each element is made by one thread.

    A thread owns the elements of sums along some axes if the indices of the other axes are divided among threads. Sums
    along different axes need a pass each, and these passes recompute the variables that they read.
    """
    every = tuple(range(len(block.axes)))
    kept = {id(loop): _kept(lowered, loop, every) for loop in block.loops}
    ways = list(dict.fromkeys(way for loop in block.loops if (way := kept[id(loop)]) is not None))
    if len(ways) <= 1:
        return [Pass(Mapping(block.axes, ways[0] if ways else every), tuple(block.loops))]
    passes = []
    for way in ways:
        chosen = [loop for loop in block.loops if kept[id(loop)] == way]
        needed = _needed(block.loops, chosen)
        again = frozenset(id(loop) for loop in needed)
        loops = tuple(loop for loop in block.loops if loop in chosen or id(loop) in again)
        passes.append(Pass(Mapping(block.axes, way), loops, again))
    rest = tuple(loop for loop in block.loops if kept[id(loop)] is None)
    return [*passes, Pass(Mapping(block.axes, every), rest)] if rest else passes


def _kept(lowered: Lowered, loop: Loop, every: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the axes that a reduction keeps; None for other loops, and for reductions to one number."""
    if not loop.combine or is_number(lowered, loop):
        return None
    strides = loop.nest[1][0]
    return tuple(axis for axis in every if strides[axis])


def _needed(loops: Sequence[Loop], chosen: Sequence[Loop]) -> list[Loop]:
    """Return the other loops of a block that make the variables which the chosen loops read, directly or not."""
    makers = {loop.target.value: loop for loop in loops if loop.stored is None and not loop.combine}
    found: list[Loop] = []
    left = list(chosen)
    while left:
        for operand in left.pop().operands:
            maker = makers.get(operand.view.value)
            if maker is not None and operand.moved is None and maker not in found and maker not in chosen:
                found.append(maker)
                left.append(maker)
    return found
