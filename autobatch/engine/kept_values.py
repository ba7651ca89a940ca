"""Keep the values of earlier rounds: in the memory of the last run, or in rows of tables.

A round leaves the values that may be read later in the memory of its run. Before the next round runs, those that may
still be read are copied to tables, where the sources of rounds look them up, and the run is closed. Rows that can no
longer be read are reused. On a device, the launch of the next round copies them first, so the run stays open until
then. There, awaited values are read by one copy of the range that holds them, unless most of it is not awaited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch._native import find_kept
from autobatch.arrays import IntArray
from autobatch.backends.base import RowMoves, Run, Timer
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Step
from autobatch.engine.runner import Runner
from autobatch.graph.growing import NONE, NOWHERE, GrowingGraph, KeptRows, Moved
from autobatch.trace.kept import Kept

SPARE = 1 << 16  # elements copied from a device in vain: that is faster than an upload of row numbers and a gather


class Columns(NamedTuple):
    """The joined results of several runs, by slot, on the device; see `Run`."""

    arrays: Sequence[Any]

    def on_device(self, slot: int) -> Any:
        return self.arrays[slot]

    def read(self, slots: Sequence[int], most: int) -> None:
        return None  # they are not side by side

    def close(self) -> None:
        pass


Finished: TypeAlias = Run | Columns


class Done(NamedTuple):
    """A finished run whose memory is still held.

    Attributes:
        run: its results.
        values: the numbers of the values that it keeps.
    """

    run: Finished
    values: IntArray


class KeptValues:
    """The kept values of a mini-batch of async programs.

    Args:
        graph: the graph that computes them.
        table_of: returns the table for the values of a slot.

    Attributes:
        rows: the assignment of values to rows of tables.
        next_run: the number of the next run.
        moves: rows that the next run copies before it computes; `carried` follows.
    """

    def __init__(self, graph: GrowingGraph, table_of: Callable[[int], Kept], dtype: np.dtype[Any]) -> None:
        self._graph, self.rows, self._table_of, self._dtype = graph, KeptRows(graph), table_of, dtype
        self._store: Store = HOST  # the memory of the runs, set by the first
        self._last: Done | None = None
        self._left: Finished | None = None  # an earlier run, whose `moves` are not yet done
        self.moves: RowMoves | None = None
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
        """Copy to tables the values that the next round (already chosen) or later ones may read; see `copy`."""
        if self._last is not None:
            self.copy(self.rows.move(self._last.values))

    def copy(self, moved: Moved) -> None:
        """Copy values of the last run, if there is one, to their assigned rows of tables, and close the run.

        On a device, this waits for the next run, which carries the moves, or for `finish`.
        """
        last, ends = self._last, moved.ptr.tolist()
        if last is None:
            return
        self.finish()
        pairs: list[tuple[Any, Any, int, int]] = []
        for slot in range(len(ends) - 1):
            first, end = ends[slot], ends[slot + 1]
            if first < end:
                table = self._table_of(slot)
                table.reserve(int(self.rows.size[slot]), self._dtype, self._store)
                pairs.append((last.run.on_device(slot), table.array, first, end))
        self._last, self._left, self.moves = None, last.run, RowMoves(pairs, moved.found, moved.rows)
        if self._store is HOST or not pairs:
            self.finish()

    def carried(self) -> None:
        """Close the run that the rows in `moves` come from, after another run has copied them."""
        left, self._left, self.moves = self._left, None, None
        if left is not None:
            left.close()

    def finish(self) -> None:
        """Copy the rows that no run has copied."""
        if self.moves is not None:
            self.moves.run(self._store)
            self.carried()

    def read(self, wanted: IntArray, int_slots: set[int]) -> list[Any]:
        """Read values, each as a NumPy array or scalar on the host."""
        found: list[Any] = [None] * wanted.size
        for slot, places, column in self._columns(wanted):
            numbers = list(column.astype(np.int64) if slot in int_slots else column)
            if places is None:  # one group has all values
                return numbers
            for place, number in zip(places.tolist(), numbers, strict=True):
                found[place] = number
        return found

    def _columns(self, values: IntArray) -> Iterator[tuple[int, IntArray | None, NDArray[Any]]]:
        """Yield groups of values: their slot; their positions, None for all; and their rows, on the host."""
        # The graph knows the rows of values whose copies are pending, but the tables do not hold them yet.
        if self.moves is not None:
            self.finish()
        last, store = self._last, self._store
        # Values note the run that computed them even after their copy, when only their rows in tables are valid.
        run = NOWHERE if last is None else self.next_run - 1
        groups = find_kept(self._graph.values, values, run)
        on_host = {} if last is None or store is HOST else self._read_new(last.run, groups)
        for slot, is_new, places, rows in groups:
            if is_new and slot in on_host:
                yield slot, places, on_host[slot][rows]
                continue
            table = last.run.on_device(slot) if is_new and last is not None else self._table_of(slot).array
            yield slot, places, store.get(table[store.put(rows)])

    def _read_new(
        self, run: Finished, groups: Sequence[tuple[int, bool, IntArray | None, IntArray]]
    ) -> dict[int, NDArray[Any]]:
        """Copy the slots of values of the last run to the host in one piece, unless most of it is not wanted."""
        new = [(slot, rows.size * math.prod(self._table_of(slot).row)) for slot, is_new, _, rows in groups if is_new]
        slots = [slot for slot, _ in new]
        found = run.read(slots, 2 * sum(size for _, size in new) + SPARE) if slots else None
        return {} if found is None else dict(zip(slots, found, strict=True))

    def renumber(self, of_value: IntArray) -> None:
        """Apply the new numbers of values; the last run must not hold any of these values."""
        self.rows.renumber(of_value)

    def close(self) -> None:
        """Close the runs that are open."""
        self.carried()
        last, self._last = self._last, None
        if last is not None:
            last.run.close()


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
        run = runner.start(step, part, instances, draw, timer, to=None, moves=kept.moves)
        if kept.moves is not None:
            kept.carried()
        step.counts.append(run.counts())
        store = run.store
        if len(step.parts) == 1:
            # The run stays open, because its memory holds the values until they are copied.
            kept.add(Done(run, values), store)
            return
        copies.append([store.xp.array(run.on_device(slot)) for slot in slots])  # valid until the close
        run.close()
    columns = [store.xp.concatenate(parts) for parts in zip(*copies, strict=True)]
    kept.add(Done(Columns(columns), values), store)
