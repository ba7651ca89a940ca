"""Counters of the workers behind one port, in shared memory: each writes its own row and reads every row.

The first process allocates the memory with all its pages. A disk that fills up later is therefore harmless, although
writing to an unallocated page of a mapped file would raise SIGBUS. A worker that replaces a dead one continues its row.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from threading import Lock

VARIABLE = "AUTOBATCH_BOARD"
"""Environment variable of a worker: the file descriptor of the memory, and the number of its row."""
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
GAUGES = ("waiting", "running", "rows", "round_s")
FIRST_STATUS, N_STATUSES = 100, 500
SUM = len(GAUGES)  # column of the total seconds of all answers
BUCKETS = SUM + 1  # first column of the latency histogram; its last bucket is for longer times
STATUSES = BUCKETS + len(SECONDS) + 1  # first column of the number of answers per status
ROW = STATUSES + N_STATUSES  # columns of a row
BYTES = 8 * ROW


class Board:
    """Rows of counters; this process writes one of them.

    Args:
        memory: the memory of all rows.
        own: the number of this process's row.
    """

    def __init__(self, memory: mmap.mmap | bytearray, own: int) -> None:
        self._numbers = memoryview(memory).cast("d")
        self._first, self._lock = own * ROW, Lock()
        self.n_rows = len(self._numbers) // ROW

    @classmethod
    def here(cls) -> Board:
        """Return the board shared by this process's workers, or a private one."""
        if VARIABLE not in os.environ:
            return cls(bytearray(BYTES), 0)
        number, own = map(int, os.environ[VARIABLE].split())
        board = cls(mmap.mmap(number, 0), own)
        board.clear(own)
        return board

    def count(self, status: int, seconds: float) -> None:
        """Count an answer."""
        numbers, first = self._numbers, self._first
        with self._lock:
            numbers[first + STATUSES + status - FIRST_STATUS] += 1
            numbers[first + BUCKETS + bisect_left(SECONDS, seconds)] += 1
            numbers[first + SUM] += seconds

    def show(self, gauges: Mapping[str, float]) -> None:
        """Write the current gauges of this process."""
        for k, name in enumerate(GAUGES):
            self._numbers[self._first + k] = gauges[name]

    def clear(self, row: int) -> None:
        """Clear the gauges of a row whose process has ended; keep its counts."""
        for k in range(len(GAUGES)):
            self._numbers[row * ROW + k] = 0.0

    def gauges(self, name: str) -> list[float]:
        """Return the current gauge `name` of each process."""
        return [self._numbers[row * ROW + GAUGES.index(name)] for row in range(self.n_rows)]

    def total(self, place: int) -> float:
        """Return the sum of a column."""
        return sum(self._numbers[row * ROW + place] for row in range(self.n_rows))

    def statuses(self) -> Iterator[tuple[int, float]]:
        """Yield each status that occurred, and its number of answers."""
        for k in range(N_STATUSES):
            n = self.total(STATUSES + k)
            if n:
                yield FIRST_STATUS + k, n


def make_memory(n_rows: int) -> int:
    """Allocate rows of zeros that child processes may inherit; return the file descriptor.

    Raises:
        OSError: there is not enough memory.
    """
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("autobatch board")
    else:
        with tempfile.TemporaryFile() as file:
            number = os.dup(file.fileno())
    written = 0
    while written < n_rows * BYTES:
        written += os.write(number, bytes(n_rows * BYTES - written))
    return number
