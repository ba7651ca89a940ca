"""The figures that the workers behind one port share: some through a common folder, counters in shared memory.

Each worker writes its figures to the folder only while somebody views the live page of one of them. It writes its own
row of the counters, and reads every row.

The first process allocates the memory with all its pages. A disk that fills up later is therefore harmless, although
writing to an unallocated page of a mapped file would raise SIGBUS. A worker that replaces a dead one continues its row.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

SEVERAL = "AUTOBATCH_WORKERS"
"""Environment variable: a folder shared by workers."""
EVERY = 0.5  # seconds between two checks of whether figures are wanted
FRESH = 3.0  # seconds for which figures, or a request for them, are valid


class Workers:
    """The workers that share a folder.

    Args:
        folder: a folder that all of them may write to; its other files are left alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._own = folder, folder / f"live-{os.getpid()}.json"
        self._wanted = folder / "live-wanted"
        self._faults: dict[str, str] = {}

    @property
    def is_wanted(self) -> bool:
        """Return whether somebody has recently requested the figures of all workers."""
        return _is_fresh(self._wanted)

    @property
    def fault(self) -> str:
        """Return why this worker could not write its figures, or request others, the last time; empty if it could."""
        return next(iter(self._faults.values()), "")

    def publish(self, figures: Mapping[str, Any]) -> None:
        """Write the figures of this worker, atomically."""
        beside = self._own.with_suffix(".part")
        with self._noting("write"):
            beside.write_text(json.dumps(figures), encoding="utf-8")
            os.replace(beside, self._own)

    def others(self) -> list[dict[str, Any]]:
        """Request and read the figures of the other workers; they may be missing for `EVERY` seconds at first."""
        with self._noting("ask for"):
            self._wanted.touch()
        found = list[dict[str, Any]]()
        for path in sorted(self._folder.glob("live-*.json")):
            pid = path.stem.removeprefix("live-")
            if path != self._own and _is_fresh(path) and pid.isdecimal() and _lives(int(pid)):
                with suppress(OSError, ValueError):
                    found.append(json.loads(path.read_text(encoding="utf-8")))
        return found

    @contextmanager
    def _noting(self, doing: str) -> Iterator[None]:
        """Record, for the live page, that the folder cannot be written to; requests are still served."""
        self._faults.pop(doing, None)
        try:
            yield
        except OSError as error:
            self._faults[doing] = f"a worker cannot {doing} the figures that workers share: {error.strerror}"


def _is_fresh(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < FRESH
    except OSError:
        return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True


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
        numbers, first = self._numbers, self._first
        with self._lock:  # against other threads; no other process writes this row
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
            number = os.dup(file.fileno())  # keeps the file, which `with` closes and deletes
    written = 0
    while written < n_rows * BYTES:
        written += os.write(number, bytes(n_rows * BYTES - written))
    return number
