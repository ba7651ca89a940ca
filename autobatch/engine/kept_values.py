"""Kept values: locate the values of earlier rounds, in the results of the last run or in rows of tables.

A round leaves the values that may be read later in the memory of its run. Before the next round runs, those that still
may be read are copied to tables, from where the sources of rounds look them up, and the run is closed. Rows that
nothing can read any more are used again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from autobatch.arrays import IntArray
from autobatch.backends.base import Timer
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Step
from autobatch.engine.runner import Runner
from autobatch.graph.growing import KEPT, NONE, ROW, RUN, SLOT, GrowingGraph, KeptRows, Moved
from autobatch.trace.kept import Kept


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
        rows: of the tables that they have.
        next_run: the number of the next run.
    """

    def __init__(self, graph: GrowingGraph, table_of: Callable[[int], Kept], dtype: np.dtype[Any]) -> None:
        self._graph, self.rows, self._table_of, self._dtype = graph, KeptRows(graph), table_of, dtype
        self._store: Store = HOST  # of the runs, once there is one
        self._last: Done | None = None
        self.next_run = 0

    def add(self, done: Done, store: Store) -> None:
        """Add a run, in the memory of a device, whose values were placed under `next_run`."""
        self._store, self._last = store, done
        self.next_run += 1

    @property
    def last_values(self) -> IntArray:
        """Return the values that the last run keeps, until they are copied."""
        return NONE if self._last is None else self._last.values

    def settle(self) -> None:
        """Copy what a round reads, or a later one may read, from the last run to tables, and close the run.

        The round was chosen already.
        """
        if self._last is not None:
            self.copy(self.rows.move(self._last.values))

    def copy(self, moved: Moved) -> None:
        """Copy values of the last run, if there is one, to the rows that they got, and close the run."""
        last, ends = self._last, moved.ptr.tolist()
        if last is None:
            return
        for slot in range(len(ends) - 1):
            own = slice(ends[slot], ends[slot + 1])
            if own.start < own.stop:
                table = self._table_of(slot)
                table.reserve(int(self.rows.size[slot]), self._dtype, self._store)
                table.array[self._store.put(moved.rows[own])] = last.slot(slot)[self._store.put(moved.found[own])]
                table.note_change()
        self.close()

    def read(self, wanted: IntArray, int_slots: set[int]) -> list[Any]:
        """Read the numbers of values, each an array or a number of NumPy."""
        values, put, last = self._graph.values, self._store.put, self.next_run - 1
        slots, is_new = values[SLOT, wanted], values[RUN, wanted] == last
        groups = sorted(set(zip(slots.tolist(), is_new.tolist(), strict=True)))
        found: list[Any] = [None] * wanted.size
        for slot, new in groups:
            places = np.flatnonzero((slots == slot) & (is_new == new))
            own = wanted[places]
            if new and self._last is not None:
                rows = self._last.slot(slot)[put(values[ROW, own])]
            else:
                rows = self._table_of(slot).array[put(values[KEPT, own])]
            column = self._store.get(rows)
            column = column.astype(np.int64) if slot in int_slots else column
            if len(groups) == 1:
                return list(column)
            for place, number in zip(places.tolist(), column, strict=True):
                found[place] = number
        return found

    def renumber(self, of_value: IntArray) -> None:
        """Note the new numbers of values; no run is open."""
        self.rows.renumber(of_value)

    def close(self) -> None:
        """Close the run that is open, if there is one."""
        last, self._last = self._last, None
        if last is not None:
            last.close()


def run_and_keep(
    runner: Runner, kept: KeptValues, step: Step, values: IntArray, draw: tuple[int, int], timer: Timer | None
) -> None:
    """Run a round, and keep these values of it: they stay where they are, or are copied if there are parts.

    Args:
        draw: the seed and the number of the step.
        timer: called after every batch.
    """
    copies: list[list[Any]] = []
    slots = range(len(step.cells.slot_shapes))
    for part, instances in step.divided():
        run = runner.start(step, part, instances, draw, timer, copies=False)
        step.counts.append(run.counts())
        store = run.store
        if len(step.parts) == 1:
            kept.add(Done(run.on_device, values, run.close), store)
            return
        copies.append([store.xp.array(run.on_device(slot)) for slot in slots])
        run.close()
    columns = [store.xp.concatenate(parts) for parts in zip(*copies, strict=True)]
    kept.add(Done(columns.__getitem__, values, lambda: None), store)
