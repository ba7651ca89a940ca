"""Kept rows: which value of a growing graph is in which row of which table of kept values.

There is a table for each slot. `move` is called between the choice of a round and its run: it takes back the rows of
values that nothing can read any more, and gives rows to values of the last run that may still be read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autobatch._native import move_rows
from autobatch.graph.growing import GrowingGraph
from autobatch.graph.growth import NOWHERE, SLOT
from autobatch.jit.arrays import IntArray


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
