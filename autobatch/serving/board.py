"""Numbers of the workers behind one port, in memory that they share: each writes a row, and all may read it.

The first process makes the memory, and its pages exist from then on: a full disk, at which a process that writes to a
mapped file is ended by SIGBUS, does not matter. A worker that takes the place of one that died goes on with its row.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from threading import Lock

VARIABLE = "AUTOBATCH_BOARD"
"""The environment of a worker has the file descriptor of the memory, and the number of its row."""
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
GAUGES = ("waiting", "running", "rows", "round_s")
FIRST_STATUS, N_STATUSES = 100, 500
SUM = len(GAUGES)  # where the seconds of all answers are, in a row
BUCKETS = SUM + 1  # where the numbers of answers within so many seconds are; the last is for all that took longer
STATUSES = BUCKETS + len(SECONDS) + 1  # where the numbers of answers of each status are
ROW = STATUSES + N_STATUSES  # numbers of a row
BYTES = 8 * ROW


class Board:
    """Rows of numbers, of which this process writes one.

    Args:
        memory: of all rows; own: the number of the row.
    """

    def __init__(self, memory: mmap.mmap | bytearray, own: int) -> None:
        self._numbers = memoryview(memory).cast("d")
        self._first, self._lock = own * ROW, Lock()
        self.n_rows = len(self._numbers) // ROW

    @classmethod
    def here(cls) -> Board:
        """The board of the workers to which this process belongs; one of its own if there are none."""
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
        """Write what this process has now."""
        for k, name in enumerate(GAUGES):
            self._numbers[self._first + k] = gauges[name]

    def clear(self, row: int) -> None:
        """Forget what the process of a row had when it ended; its counts stay."""
        for k in range(len(GAUGES)):
            self._numbers[row * ROW + k] = 0.0

    def gauges(self, name: str) -> list[float]:
        """What each process has now."""
        return [self._numbers[row * ROW + GAUGES.index(name)] for row in range(self.n_rows)]

    def total(self, place: int) -> float:
        """The sum of the numbers at a place of all rows."""
        return sum(self._numbers[row * ROW + place] for row in range(self.n_rows))

    def statuses(self) -> Iterator[tuple[int, float]]:
        """The statuses of answers, and how many there were of each."""
        for k in range(N_STATUSES):
            n = self.total(STATUSES + k)
            if n:
                yield FIRST_STATUS + k, n


def make_memory(n_rows: int) -> int:
    """Make memory for so many rows of zeros, which child processes may inherit; give its file descriptor.

    Raises:
        OSError: there is no room for it.
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
