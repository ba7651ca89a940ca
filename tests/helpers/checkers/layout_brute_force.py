"""The fewest bytes that given batches of a cell copy, over all orders of items and members; from the definition.

An operand is a view if all its values are the same one, or if they are adjacent in memory in the order of the members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations, pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.memplan.cell.constraints import operands_of
from autobatch.memplan.cell.memory import NODE_COLUMNS, SHARED_VALUES, Item, ProgramMemory

Ints = NDArray[np.int64]


def fewest_bytes(memory: ProgramMemory, batches: Mapping[int, Sequence[int]], rows: int) -> int:
    """Try all sets of copied joins, and for each all orders of both areas."""
    joins = sorted(memory.joins)
    subsets = chain.from_iterable(combinations(joins, size) for size in range(len(joins) + 1))
    found = [_fewest_with(memory, batches, rows, frozenset(apart)) for apart in subsets]
    return min(moved for moved in found if moved is not None)


def _fewest_with(
    memory: ProgramMemory, batches: Mapping[int, Sequence[int]], rows: int, apart: frozenset[int]
) -> int | None:
    together = [memory.span(v, apart) for v in range(len(memory.reads))]
    starts = [_all_starts(memory, area, apart, together) for area in (NODE_COLUMNS, SHARED_VALUES)]
    if not all(len(next(iter(start.values()), (0,))) for start in starts):
        return None
    moved: Any = sum(4 * rows * memory.program.vars[value].size for value in apart)
    for batch in batches.values():
        options = [_cost_of(memory, members, starts, rows, apart) for members in permutations(batch)]
        moved = moved + np.min([node[:, None] + shared[None, :] for node, shared in options], axis=0)
    return int(np.min(moved))


def _all_starts(
    memory: ProgramMemory, area: str, apart: frozenset[int], together: Sequence[tuple[Item, ...]]
) -> dict[Item, Ints]:
    """Return the start of each item of an area, for every order that keeps each value in one piece."""
    items = [i for i in memory.areas.get(area, ()) if i.value not in memory.joins or i.value in apart]
    pieces = [span for span in together if len(span) > 1 and span[0] in items]
    orders = [order for order in permutations(items) if all(_in_one_piece(order, span) for span in pieces)]
    sizes = np.array([[item.size for item in order] for order in orders], np.int64).reshape(len(orders), len(items))
    before = np.cumsum(sizes, axis=1) - sizes
    place = [{item: at for at, item in enumerate(order)} for order in orders]
    return {item: np.array([before[n, place[n][item]] for n in range(len(orders))], np.int64) for item in items}


def _in_one_piece(order: Sequence[Item], span: Sequence[Item]) -> bool:
    return all(order.index(second) == order.index(first) + 1 for first, second in pairwise(span))


def _cost_of(
    memory: ProgramMemory,
    members: tuple[int, ...],
    starts: Sequence[dict[Item, Ints]],
    rows: int,
    apart: frozenset[int],
) -> tuple[Ints, Ints]:
    """Return the copied bytes for each order of the node's items, and for each order of the shared items."""
    k = np.arange(len(members))
    patterns = (0 * k, k)
    cost = [np.zeros(len(next(iter(start.values()), (0,))), np.int64) for start in starts]
    for values in operands_of(memory, members).values():
        is_shared = memory.area_of(memory.reads[values[0]].value) == SHARED_VALUES
        size, start = memory.program.vars[values[0]].size, starts[is_shared]
        at = np.stack([start[memory.span(v, apart)[0]] for v in values], axis=1)
        views = np.any([np.all(at == at[:, :1] + size * pattern, axis=1) for pattern in patterns], axis=0)
        n_moved = 1 if len({memory.reads[v] for v in values}) == 1 else len(values)
        cost[is_shared] += np.where(views, 0, 4 * size * n_moved * (1 if is_shared else rows))
    return cost[0], cost[1]
