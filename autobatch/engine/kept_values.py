"""Keep the values of earlier rounds: in the memory of the last run, or in rows of tables.

A round leaves the values that may be read later in the memory of its run. Before the next round runs, those that may
still be read are copied to tables, where the sources of rounds look them up, and the run is closed. Rows that can no
longer be read are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch._native import find_kept
from autobatch.arrays import IntArray
from autobatch.backends.base import Timer
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Step
from autobatch.engine.runner import Runner
from autobatch.graph.growing import NONE, NOWHERE, GrowingGraph, KeptRows, Moved
from autobatch.trace.kept import Kept


class Done(NamedTuple):
    """A finished run whose memory is still held.

    Attributes:
        slot: returns the rows of a slot, on the device.
        values: the numbers of the values that it keeps.
        close: releases the memory.
    """

    slot: Callable[[int], Any]
    values: IntArray
    close: Callable[[], None]


class KeptValues:
    """The kept values of a mini-batch of async programs.

    Args:
        graph: the graph that computes them.
        table_of: returns the table for the values of a slot.

    Attributes:
        rows: the assignment of values to rows of tables.
        next_run: the number of the next run.
    """

    def __init__(self, graph: GrowingGraph, table_of: Callable[[int], Kept], dtype: np.dtype[Any]) -> None:
        self._graph, self.rows, self._table_of, self._dtype = graph, KeptRows(graph), table_of, dtype
        self._store: Store = HOST  # the memory of the runs, set by the first
        self._last: Done | None = None
        self.next_run = 0

    def add(self, done: Done, store: Store) -> None:
        """Add a run in the memory of a device; the graph knows its values under the number `next_run`."""
        self._store, self._last = store, done
        self.next_run += 1

    @property
    def last_values(self) -> IntArray:
        """Return the numbers of the values in the last run; none after they have been copied."""
        return NONE if self._last is None else self._last.values

    def settle(self) -> None:
        """Copy to tables the values that the next round (already chosen) or later ones may read, and close the run."""
        if self._last is not None:
            self.copy(self.rows.move(self._last.values))

    def copy(self, moved: Moved) -> None:
        """Copy values of the last run, if there is one, to their assigned rows of tables, and close the run."""
        last, ends = self._last, moved.ptr.tolist()
        if last is None:
            return
        for slot in range(len(ends) - 1):
            own = slice(ends[slot], ends[slot + 1])
            if own.start < own.stop:
                table = self._table_of(slot)
                table.reserve(int(self.rows.size[slot]), self._dtype, self._store)
                table.array[self._store.put(moved.rows[own])] = last.slot(slot)[self._store.put(moved.found[own])]
        self.close()

    def read(self, wanted: IntArray, int_slots: set[int]) -> list[Any]:
        """Read values, each as a NumPy array or scalar on the host."""
        found: list[Any] = [None] * wanted.size
        for slot, places, column in self._columns(wanted):
            numbers = list(column.astype(np.int64) if slot in int_slots else column)
            if places is None:
                return numbers
            for place, number in zip(places.tolist(), numbers, strict=True):
                found[place] = number
        return found

    def _columns(self, values: IntArray) -> Iterator[tuple[int, IntArray | None, NDArray[Any]]]:
        """Yield groups of values: their slot; their positions, None for all; and their rows, on the host."""
        last, store = self._last, self._store
        run = NOWHERE if last is None else self.next_run - 1
        for slot, is_new, places, rows in find_kept(self._graph.values, values, run):
            table = last.slot(slot) if is_new and last is not None else self._table_of(slot).array
            yield slot, places, store.get(table[store.put(rows)])

    def renumber(self, of_value: IntArray) -> None:
        """Apply the new numbers of values; no run may be open."""
        self.rows.renumber(of_value)

    def close(self) -> None:
        """Close the last run, if it is open."""
        last, self._last = self._last, None
        if last is not None:
            last.close()


def run_and_keep(
    runner: Runner, kept: KeptValues, step: Step, values: IntArray, draw: tuple[int, int], timer: Timer | None
) -> None:
    """Run a round, and keep some of its values: in place, or copied if the round runs in several parts.

    Args:
        values: the numbers of the values to keep.
        draw: the seed and the number of the step.
        timer: called after every batch.
    """
    copies: list[list[Any]] = []
    slots = range(len(step.cells.slot_shapes))
    for part, instances in step.divided():
        run = runner.start(step, part, instances, draw, timer, to=None)
        step.counts.append(run.counts())
        store = run.store
        if len(step.parts) == 1:
            kept.add(Done(run.on_device, values, run.close), store)
            return
        copies.append([store.xp.array(run.on_device(slot)) for slot in slots])
        run.close()
    columns = [store.xp.concatenate(parts) for parts in zip(*copies, strict=True)]
    kept.add(Done(columns.__getitem__, values, lambda: None), store)
