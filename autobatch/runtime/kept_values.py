"""Kept values: where the values that rounds computed are, in the results of runs that are open or in rows of tables.

A round leaves the values that may still be read in the memory of its run. Those that the next round reads are copied
to tables, from where its sources look them up. In inference all that may be read later follows, and the run is closed;
rows that nothing can read any more are used again. In training every run stays open until it is differentiated, and
a row belongs to one value, because its gradient is added up there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.devices.store import HOST, Store
from autobatch.graph.growing import GrowingGraph
from autobatch.graph.growth import NOWHERE
from autobatch.jit.arrays import IntArray
from autobatch.params.sparse_rows import Rows
from autobatch.trace.kept import Kept

Array = NDArray[Any]


class Table:
    """A table of kept values during one call.

    Attributes:
        kept: the table itself.
        values: the value in each row, NOWHERE if there is none.
        gradient: of all rows, once one is known.
    """

    def __init__(self, kept: Kept) -> None:
        self.kept, self.n_rows = kept, 0
        self.values = np.zeros(0, np.int32)
        self.gradient: Any = None
        self._free = np.zeros(0, np.int32)

    def take(self, values: IntArray, dtype: np.dtype[Any], store: Store) -> IntArray:
        """Take a row for each of these values."""
        reused, self._free = self._free[: values.size], self._free[values.size :]
        fresh = np.arange(self.n_rows, self.n_rows + values.size - reused.size, dtype=np.int32)
        rows = np.concatenate((reused, fresh))
        self.n_rows += fresh.size
        self.kept.reserve(self.n_rows, dtype, store)
        if self.n_rows > self.values.size:
            self.values = np.concatenate((self.values, np.full(self.n_rows, NOWHERE, np.int32)))
        self.values[rows] = values
        return rows

    def give_back(self, graph: GrowingGraph) -> None:
        """Take back the rows of values that nothing can read any more."""
        held = self.values[: self.n_rows]
        values = graph.values
        rows = np.flatnonzero((held != NOWHERE) & (values.in_use[held] == 0) & (values.readers[held] == 0))
        values.kept[held[rows]] = NOWHERE
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
        training: whether runs stay open and rows belong to one value; may be given up, never taken up again.
    """

    def __init__(
        self,
        graph: GrowingGraph,
        table_of: Callable[[int], Kept],
        dtype: np.dtype[Any],
        training: bool,
    ) -> None:
        self._graph, self._table_of, self._dtype, self.training = graph, table_of, dtype, training
        self._store: Store = HOST  # of the runs, once there is one
        self._tables: dict[int, Table] = {}  # by slot
        self.runs: dict[int, Done] = {}
        self._n_runs = 0

    @property
    def next_run(self) -> int:
        """The number of the next run."""
        return self._n_runs

    def add(self, done: Done, store: Store) -> None:
        """Add a run, in the memory of a device, whose values were placed under `next_run`."""
        self._store = store
        self.runs[self._n_runs] = done
        self._n_runs += 1

    def clear(self) -> None:
        """Before a round is chosen, take back the rows of tables that nothing can read any more."""
        if not self.training:
            for table in self._tables.values():
                table.give_back(self._graph)

    def settle(self, sources: IntArray) -> None:
        """Copy the sources of a round to tables; in inference also what may be read later, and close the runs."""
        values, moving = self._graph.values, [sources]
        if not self.training:
            for done in self.runs.values():
                moving.append(done.values[(values.in_use[done.values] != 0) | (values.readers[done.values] != 0)])
        found = np.concatenate(moving) if len(moving) > 1 else sources
        found = found[values.kept[found] == NOWHERE]
        self._move(np.unique(found) if len(moving) > 1 else found)
        if not self.training:
            self.close()

    def _move(self, found: IntArray) -> None:
        """Copy values from the results of runs to tables."""
        values = self._graph.values
        slots, runs = values.slot[found], values.run[found]
        for slot in np.unique(slots).tolist():
            table = self._tables.get(slot)
            if table is None:
                table = self._tables[slot] = Table(self._table_of(slot))
            for run in np.unique(runs[slots == slot]).tolist():
                own = found[(slots == slot) & (runs == run)]
                rows = table.take(own, self._dtype, self._store)
                values.kept[own] = rows
                given = self.runs[run].slot(slot)
                table.kept.array[self._store.put(rows)] = given[self._store.put(values.row[own])]
            table.kept.note_change()

    def read(self, wanted: IntArray, int_slots: set[int]) -> list[Any]:
        """The numbers of values, each an array or a number of NumPy."""
        values, put = self._graph.values, self._store.put
        slots, runs, kept = values.slot[wanted], values.run[wanted], values.kept[wanted]
        found: list[Any] = [None] * wanted.size
        for slot in np.unique(slots).tolist():
            for run in np.unique(runs[slots == slot]).tolist():
                places = np.flatnonzero((slots == slot) & (runs == run))
                if run in self.runs:
                    rows = self.runs[run].slot(slot)[put(values.row[wanted[places]])]
                else:
                    rows = self._tables[slot].kept.array[put(kept[places])]
                column = self._store.get(rows)
                column = column.astype(np.int64) if slot in int_slots else column
                for place, number in zip(places.tolist(), column, strict=True):
                    found[place] = number
        return found

    # Gradients.

    def gradients(self) -> dict[int, Rows]:
        """Empty gradients of all tables, by their `id`."""
        return {
            id(table.kept): Rows.zeros(table.kept.shape, self._dtype, self._store) for table in self._tables.values()
        }

    def add_gradients(self, found: dict[int, Rows]) -> None:
        """Add what a run that was differentiated contributes to the gradients of tables."""
        for table in self._tables.values():
            rows = found[id(table.kept)]
            if table.gradient is None:
                table.gradient = self._store.xp.zeros((table.n_rows, *table.kept.row), self._dtype)
            if rows.ids.size:
                table.gradient[self._store.put(rows.ids)] += rows.values

    def seeds(self, run: int) -> dict[int, Any]:
        """The gradients of the values that a run keeps, by slot."""
        values, put, done = self._graph.values, self._store.put, self.runs[run]
        slots, kept = values.slot[done.values], values.kept[done.values]
        found: dict[int, Any] = {}
        for slot in np.unique(slots).tolist():
            own = slots == slot
            rows, moved = values.row[done.values[own]], kept[own] != NOWHERE
            seed = found[slot] = self._store.xp.zeros(done.slot(slot).shape, self._dtype)
            if moved.any():
                seed[put(rows[moved])] = self._tables[slot].gradient[put(kept[own][moved])]
        return found

    def close(self) -> None:
        """Close all runs, the last one first, so that the next mini-batch finds their memory in order."""
        for run in sorted(self.runs, reverse=True):
            self.runs.pop(run).close()
