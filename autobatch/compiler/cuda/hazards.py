"""Find where the threads of a row need a barrier: where one reads or overwrites an element that another accessed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from autobatch.compiler.cuda.mapping import Mapping, Who
from autobatch.compiler.view import steps

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
        """Record the accesses of another one, too."""
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
    """Return whether different indices are certainly different elements.

    This holds if the stride of each axis is larger than the reach of all axes with smaller strides together.
    """
    reach = 0
    for size, stride in sorted(((n, abs(s)) for n, s in axes if n > 1), key=lambda axis: axis[1]):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True
