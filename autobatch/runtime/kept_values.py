"""Kept values: where the values that rounds computed are, in the results of the last run or in rows of tables.

A round leaves the values that may be read later in the memory of its run. Before the next round runs, those that still
may be read are copied to tables, from where the sources of rounds look them up, and the run is closed. Rows that
nothing can read any more are used again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from autobatch.devices.store import HOST, Store
from autobatch.graph.growing import GrowingGraph
from autobatch.graph.growth import IN_USE, KEPT, NOWHERE, READERS, ROW, RUN, SLOT
from autobatch.jit.arrays import IntArray
from autobatch.trace.kept import Kept


class Table:
    """A table of kept values during one call.

    Attributes:
        kept: the table itself.
        values: the value in each row, NOWHERE if there is none.
    """

    def __init__(self, kept: Kept) -> None:
        self.kept, self.values = kept, np.zeros(0, np.int32)
        self._free = np.zeros(0, np.int32)

    def take(self, values: IntArray, dtype: np.dtype[Any], store: Store) -> IntArray:
        """Take a row for each of these values."""
        n, n_before = values.size, self.values.size
        if n > self._free.size:
            n_rows = max(2 * n_before, n_before + n)
            self._free = np.concatenate((self._free, np.arange(n_before, n_rows, dtype=np.int32)))
            self.values = np.concatenate((self.values, np.full(n_rows - n_before, NOWHERE, np.int32)))
        self.kept.reserve(self.values.size, dtype, store)
        rows, self._free = self._free[:n], self._free[n:]
        self.values[rows] = values
        return rows

    def give_back(self, graph: GrowingGraph) -> None:
        """Take back the rows of values that nothing can read any more."""
        held, values = self.values, graph.values
        rows = np.flatnonzero((held != NOWHERE) & (values[IN_USE, held] == 0) & (values[READERS, held] == 0))
        if rows.size:
            values[KEPT, held[rows]] = NOWHERE
            held[rows] = NOWHERE
            self._free = np.concatenate((self._free, rows.astype(np.int32)))


class Done(NamedTuple):
    """A run that is open.

    Attributes:
        slot: gives the rows of a slot, on the device.
        values: that it keeps.
        close: ends it.
    """

    slot: Callable[[int], Any]
    values: IntArray
    close: Callable[[], None]


class KeptValues:
    """The kept values of a mini-batch of async programs.

    Args:
        graph: that they are values of.
        table_of: gives the table of the values that are kept in a slot.

    Attributes:
        next_run: the number of the next run.
    """

    def __init__(self, graph: GrowingGraph, table_of: Callable[[int], Kept], dtype: np.dtype[Any]) -> None:
        self._graph, self._table_of, self._dtype = graph, table_of, dtype
        self._store: Store = HOST  # of the runs, once there is one
        self._tables: dict[int, Table] = {}  # by slot
        self._last: Done | None = None
        self.next_run = 0

    def add(self, done: Done, store: Store) -> None:
        """Add a run, in the memory of a device, whose values were placed under `next_run`."""
        self._store, self._last = store, done
        self.next_run += 1

    def clear(self) -> None:
        """Before a round is chosen, take back the rows of tables that nothing can read any more."""
        for table in self._tables.values():
            table.give_back(self._graph)

    def settle(self, sources: IntArray) -> None:
        """Copy what a round reads, or a later one may read, from the last run to tables, and close the run."""
        last = self._last
        if last is None:
            return
        values = self._graph.values
        is_needed = (values[IN_USE, last.values] | values[READERS, last.values]) != 0
        is_needed |= np.isin(last.values, sources)
        needed = last.values[is_needed]
        slots = values[SLOT, needed]
        for slot in sorted(set(slots.tolist())):
            table = self._tables.get(slot)
            if table is None:
                table = self._tables[slot] = Table(self._table_of(slot))
            own = needed[slots == slot]
            rows = values[KEPT, own] = table.take(own, self._dtype, self._store)
            table.kept.array[self._store.put(rows)] = last.slot(slot)[self._store.put(values[ROW, own])]
            table.kept.note_change()
        self.close()

    def read(self, wanted: IntArray, int_slots: set[int]) -> list[Any]:
        """The numbers of values, each an array or a number of NumPy."""
        values, put, last = self._graph.values, self._store.put, self.next_run - 1
        slots = values[SLOT, wanted]
        is_new = (values[RUN, wanted] == last) & (self._last is not None)
        found: list[Any] = [None] * wanted.size
        for slot in sorted(set(slots.tolist())):
            for new in (True, False):
                places = np.flatnonzero((slots == slot) & (is_new == new))
                if not places.size:
                    continue
                own = wanted[places]
                if new and self._last is not None:
                    rows = self._last.slot(slot)[put(values[ROW, own])]
                else:
                    rows = self._tables[slot].kept.array[put(values[KEPT, own])]
                column = self._store.get(rows)
                column = column.astype(np.int64) if slot in int_slots else column
                if places.size == wanted.size:
                    return list(column)
                for place, number in zip(places.tolist(), column, strict=True):
                    found[place] = number
        return found

    def close(self) -> None:
        """Close the run that is open, if there is one."""
        last, self._last = self._last, None
        if last is not None:
            last.close()
