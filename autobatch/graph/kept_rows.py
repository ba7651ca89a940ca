"""Kept rows: which value of a growing graph is in which row of which table of kept values.

There is a table for each slot. `move` is called between the choice of a round and its run: it takes back the rows of
values that nothing can read any more, and gives rows to values of the last run that may still be read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from autobatch.graph.growing import GrowingGraph
from autobatch.graph.growth import IN_USE, KEPT, MARK, NOWHERE, READERS, ROW, SLOT
from autobatch.jit.arrays import IntArray, blank, filled
from autobatch.jit.loops import compiled


class Moved(NamedTuple):
    """Values that get rows, by slot.

    Attributes:
        found: their rows in the results of the run that computed them; rows: in the tables.
        ptr: where those of each slot begin.
    """

    found: IntArray
    rows: IntArray
    ptr: IntArray


class KeptRows:
    """The rows of the tables of kept values.

    Args:
        graph: that they are values of.

    Attributes:
        size: for each slot, the rows that its table needs.
    """

    def __init__(self, graph: GrowingGraph) -> None:
        self._graph, self.size = graph, np.zeros(0, np.int32)
        self._held, self._free = np.zeros((2, 0, 0), np.int32)  # by slot: the value in each row; the free rows
        self._n_free = np.zeros(0, np.int32)

    @property
    def in_use(self) -> IntArray:
        """For each slot, the rows of its table that were taken at the last move."""
        found: IntArray = self._held.shape[1] - self._n_free
        return found

    def move(self, values: IntArray) -> Moved:
        """Give rows to those of these values that the round which was just chosen reads, or a later one may read."""
        graph = self._graph
        self._make_room(int(graph.values[SLOT, values].max(initial=NOWHERE)) + 1, values.size)
        return Moved(*move_rows(graph.values, values, graph.round, self._held, self._free, self._n_free, self.size))

    def renumber(self, of_value: IntArray) -> None:
        """Values have other numbers now; those that have none are in no row."""
        self._held[self._held != NOWHERE] = of_value[self._held[self._held != NOWHERE]]

    def _make_room(self, n_slots: int, n: int) -> None:
        """Make room for this many slots, and for n more rows in each."""
        old_slots, old_rows = self._held.shape
        if n_slots <= old_slots and n <= int(self._n_free.min(initial=n)):
            return
        slots, rows = max(n_slots, old_slots), max(2 * old_rows, old_rows + n)
        held, free = np.full((slots, rows), NOWHERE, np.int32), np.zeros((slots, rows), np.int32)
        n_free, size = np.zeros((2, slots), np.int32)
        held[:old_slots, :old_rows], size[:old_slots] = self._held, self.size
        for slot in range(slots):
            before = self._free[slot, : self._n_free[slot]] if slot < old_slots else np.arange(old_rows)[::-1]
            rows_free = np.concatenate((np.arange(old_rows, rows)[::-1], before))  # taken from the end
            free[slot, : rows_free.size], n_free[slot] = rows_free, rows_free.size
        self._held, self._free, self._n_free, self.size = held, free, n_free, size


@compiled
def move_rows(
    values: IntArray, of: IntArray, now: int, held: IntArray, free: IntArray, n_free: IntArray, size: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Take back rows and give rows, see `KeptRows.move`.

    Args:
        now: the number of the round.
    """
    kept, in_slot, in_run = values[KEPT], values[SLOT], values[ROW]
    n_slots = len(held)
    for slot in range(n_slots):
        for row in range(size[slot]):
            v = held[slot, row]
            if v != NOWHERE and not may_be_read(values, v, now):
                kept[v] = held[slot, row] = NOWHERE
                free[slot, n_free[slot]] = row
                n_free[slot] += 1
    ptr = filled(n_slots + 1, 0)
    for k in range(of.size):
        if may_be_read(values, of[k], now):
            ptr[in_slot[of[k]] + 1] += 1
    for slot in range(n_slots):
        ptr[slot + 1] += ptr[slot]
    ends, n = ptr.copy(), int(ptr[n_slots])
    found, rows = blank(n), blank(n)
    for k in range(of.size):
        v = of[k]
        if may_be_read(values, v, now):
            slot = in_slot[v]
            n_free[slot] -= 1
            row, place = free[slot, n_free[slot]], ends[slot]
            held[slot, row], kept[v], size[slot] = v, row, max(size[slot], row + 1)
            found[place], rows[place], ends[slot] = in_run[v], row, place + 1
    return found, rows, ptr


@compiled
def may_be_read(values: IntArray, v: Any, now: int) -> bool:
    """Whether a value is a source of this round, or something may read it later."""
    return bool(values[IN_USE, v] != 0 or values[READERS, v] > 0 or values[MARK, v] == -now)
