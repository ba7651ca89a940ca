"""Divide the indices of a loop nest among the threads that work on a row, and find where these need a barrier.

A barrier is needed where two threads access the same element and at least one of them writes it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from autobatch.compiler.assignment import is_number
from autobatch.compiler.fusion import Block
from autobatch.compiler.lowered import Lowered
from autobatch.compiler.statement import Loop
from autobatch.compiler.view import steps

Who: TypeAlias = Literal["divided", "one", "all"]


class Mapping(NamedTuple):
    """The distribution of the indices of a nest among the threads of a row.

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


Axis = tuple[int, int]  # size and stride


class Access(NamedTuple):
    """An access of the threads of a row to elements of a region of memory.

    Attributes:
        region: identifies the region; different regions have no common elements.
        start: the element at the first index.
        along: the sizes and strides of the axes whose indices are divided among threads, with neighbours joined.
        inside: the sizes and strides of the axes that each thread runs through.
        who: the threads that access the elements; see `Mapping.who`.
    """

    region: Hashable
    start: int
    along: tuple[Axis, ...]
    inside: tuple[Axis, ...]
    who: Who
    is_write: bool

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the first element and the end."""
        reach = [(size - 1) * stride for size, stride in (*self.along, *self.inside)]
        return self.start + sum(min(r, 0) for r in reach), self.start + sum(max(r, 0) for r in reach) + 1

    def needs_barrier(self, earlier: Access) -> bool:
        """Return whether another thread may have accessed the same element before, and one of the two writes it."""
        if self.region != earlier.region or not (self.is_write or earlier.is_write):
            return False
        (first, end), (other, other_end) = self.bounds, earlier.bounds
        return first < other_end and other < end and not self._is_by_same_thread(earlier)

    def _is_by_same_thread(self, other: Access) -> bool:
        if self.who == "one" and other.who == "one":
            return True
        alike = (self.start, self.along, self.inside) == (other.start, other.along, other.inside)
        return self.who == other.who == "divided" and alike and _is_injective((*self.along, *self.inside))


def access(region: Hashable, start: int, mapping: Mapping, strides: tuple[int, ...], is_write: bool) -> Access:
    """Build the access of a loop.

    At a single index, one thread writes and all threads read; at an index that is dealt out, one thread does both. Axes
    along which a thread accesses the same elements again are omitted.
    """
    along = _joined([(mapping.axes[axis], strides[axis]) for axis in mapping.along])
    inside = [(size, strides[axis]) for axis, size in enumerate(mapping.axes) if axis not in mapping.along]
    is_by_one = is_write if mapping.who == "all" else not along
    who: Who = "one" if is_by_one else mapping.who
    return Access(region, start, along, tuple(axis for axis in inside if axis[1]), who, is_write)


def whole(region: Hashable, start: int, size: int, is_write: bool) -> Access:
    """Build the access to adjacent elements that are dealt out to the threads in turn."""
    return access(region, start, Mapping((size,), (0,)), steps((size,)), is_write)


def anywhere(region: Hashable, start: int, size: int) -> Access:
    """Build the access of threads that each read any of these elements."""
    return Access(region, start, (), ((size, 1),), "all", False)


class Hazards:
    """The accesses since the last barrier."""

    def __init__(self) -> None:
        self._pending: list[Access] = []

    def need_barrier(self, accesses: Iterable[Access]) -> bool:
        """Return whether a barrier is needed before these accesses, and record them; a barrier clears earlier ones."""
        found = list(accesses)
        needed = any(new.needs_barrier(old) for new in found for old in self._pending)
        self._pending = found if needed else [*self._pending, *found]
        return needed

    def note(self, other: Hazards) -> None:
        """Also record the accesses of another `Hazards`."""
        self._pending += other._pending


def _joined(axes: list[Axis]) -> tuple[Axis, ...]:
    """Return the axes without those of length one, and with neighbours joined that step as one axis."""
    found: list[Axis] = []
    for size, stride in axes:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return tuple(found)


def _is_injective(axes: Iterable[Axis]) -> bool:
    """Return whether different indices certainly refer to different elements.

    This holds if the stride of each axis is larger than the reach of all axes with smaller strides together.
    """
    reach = 0
    for size, stride in sorted(((n, abs(s)) for n, s in axes if n > 1), key=lambda axis: axis[1]):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True
