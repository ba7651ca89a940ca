"""Which thread of a row touches which element, found thread by thread and index by index, in the order of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from autobatch.compiler.cuda.mapping import Access, Mapping

TEAMS = (1, 2, 4, 8, 32)
Touch = tuple[int, int]  # thread and element


def runs(mapping: Mapping, team: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the indices that each thread runs, in order; indices along no axis are run by all threads."""
    others = [axis for axis in range(len(mapping.axes)) if axis not in mapping.along]
    dealt = list(product(*(range(mapping.axes[axis]) for axis in mapping.along)))
    for lane in range(team):
        if mapping.axes and not mapping.along and lane > 0:
            continue
        for along in dealt[lane::team] if mapping.along else dealt:
            for inside in product(*(range(mapping.axes[axis]) for axis in others)):
                index = dict(zip((*mapping.along, *others), (*along, *inside), strict=True))
                yield lane, tuple(index[axis] for axis in range(len(mapping.axes)))


def touches(mapping: Mapping, start: int, strides: tuple[int, ...], is_write: bool, team: int) -> set[Touch]:
    """Return the touches of a loop; a single index is written by one thread."""
    return {
        (lane, start + sum(i * stride for i, stride in zip(index, strides, strict=True)))
        for lane, index in runs(mapping, team)
        if not (is_write and not mapping.axes and lane > 0)
    }


def touches_of(access: Access, team: int) -> set[Touch]:
    """Return the touches that an access declares."""
    axes = (*access.along, *access.inside)
    sizes, strides = tuple(size for size, _ in axes), tuple(stride for _, stride in axes)
    if access.who == "divided":
        mapping = Mapping(sizes, tuple(range(len(access.along))))
        return touches(mapping, access.start, strides, access.is_write, team)
    elements = {element for _, element in touches(Mapping(sizes, ()), access.start, strides, False, 1)}
    return {(lane, element) for lane in range(team if access.who == "all" else 1) for element in elements}


def meet(one: set[Touch], other: set[Touch]) -> bool:
    """Return whether two different threads touch one element."""
    lanes: dict[int, set[int]] = {}
    for lane, element in one:
        lanes.setdefault(element, set()).add(lane)
    return any(lanes.get(element, set()) - {lane} for lane, element in other)
