"""Compile in a background thread: a mini-batch waits a moment for its code, and is interpreted if that takes longer.

    AUTOBATCH_COMPILE_WAIT=seconds     time that a mini-batch waits for new code; 0.3 by default, `inf` for no limit

The thread runs one job at a time. LLVM releases the GIL, so other threads continue. A fork waits for the running job;
the child runs the pending jobs itself.

Compilations are reported to functions that watch them.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from time import monotonic, perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

from autobatch.errors import BackendError
from autobatch.system.cache import cache_folder

T = TypeVar("T")

VARIABLE = "AUTOBATCH_COMPILE_WAIT"
PATIENCE_S = 0.3
SECONDS_BEFORE_REPORT = 2.0  # of compiling, before a line on standard error reports it


class Job(Generic[T]):
    """A call for the background thread, and its result.

    Args:
        run: the work, which is called without arguments.

    Attributes:
        asked: time of creation on the monotonic clock, in seconds.
    """

    def __init__(self, run: Callable[[], T]) -> None:
        self.asked = monotonic()
        self._run, self._done = run, threading.Event()
        self._result: T
        self._error: Exception | None = None

    @property
    def is_done(self) -> bool:
        """Return whether the call has returned or failed."""
        return self._done.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until `seconds` after the job's creation; return whether it is done."""
        if self.is_done:
            return True
        left = self.asked + seconds - monotonic()
        # `wait` raises an OverflowError for longer times, such as inf.
        return self._done.wait(None if left > threading.TIMEOUT_MAX else max(left, 0.0))

    def result(self) -> T:
        """Wait for the result; errors of the call propagate."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result

    def do(self) -> None:
        """Make the call and keep its result or error."""
        try:
            self._result = self._run()
            del self._run  # frees its inputs
        except Exception as error:  # raised by `result`
            self._error = error
        self._done.set()

    def renew(self) -> None:
        """Replace the event in a forked child, where the parent's waiting threads do not exist."""
        self._done = threading.Event()


class _Worker:
    """The background thread, started with the first job."""

    def __init__(self) -> None:
        self.waiting: dict[Job[Any], None] = {}
        # `_turn` is held to start a job, `_busy` while one runs. Locks are not fair: with `_busy` alone, the thread
        # could start one job after another while `pause` waits.
        self._turn, self._busy = threading.Lock(), threading.Lock()
        self.n_done, self.is_stopped, self.has_told = 0, False, False
        self._jobs: SimpleQueue[Job[Any]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._notice: threading.Timer | None = None
        self.last_done = float("-inf")  # on the monotonic clock, in seconds

    def submit(self, job: Job[Any]) -> None:
        with self._lock:
            # Before `put`, because the thread deletes the job here when it is done.
            self.waiting[job] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="autobatch compiling", daemon=True)
                self._thread.start()
            if self._notice is None:
                self.n_done = 0
                self._notice = threading.Timer(SECONDS_BEFORE_REPORT, self._tell)
                self._notice.daemon = True
                self._notice.start()
            self._jobs.put(job)

    def pause(self) -> None:
        """Wait for the running job, and keep the thread from starting another."""
        if not self.is_stopped:
            # As in `_work`, `_turn` comes first: the thread can start no other job while this waits for the running
            # one.
            self._turn.acquire()
            self._busy.acquire()

    def resume(self) -> None:
        if not self.is_stopped:
            self._busy.release()
            self._turn.release()

    def stop(self) -> None:
        """Pause permanently."""
        self.pause()
        self.is_stopped = True

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            with self._turn:
                self._busy.acquire()
            try:
                job.do()
                with self._lock:
                    # Before the job is deleted, because `has_compiled` reads both without the lock.
                    self.last_done = monotonic()
                    del self.waiting[job]
                    self.n_done += 1
                    if not self.waiting and self._notice is not None:
                        self._notice.cancel()
                        self._notice = None
            finally:
                self._busy.release()
            del job  # so that its result can be freed while the thread sleeps

    def _tell(self) -> None:
        if _quiet or self.has_told or not self.waiting:
            return
        self.has_told = True
        later = "" if cache_folder() is None else "; cached for later runs"
        until = "" if _patience() == float("inf") else (
            f"; until then, mini-batches are interpreted, with equal results up to rounding ({VARIABLE}=inf waits)"
        )  # fmt: skip
        n = self.n_done + len(self.waiting)
        sys.stderr.write(f"autobatch: compiling cells, {self.n_done} of {n} parts done{later}{until}.\n")


_worker = _Worker()
_quiet: list[None] = []


class _Thread(threading.local):
    """A flag of each thread: whether it waits for its code without limit."""

    waits = False


_THREAD = _Thread()


def submit(job: Job[Any]) -> None:
    """Queue a job for the background thread."""
    _worker.submit(job)


def n_waiting() -> int:
    """Count the pending compilations; timings are unreliable until it is 0."""
    return len(_worker.waiting)


def has_compiled(since: float) -> bool:
    """Return whether a compilation was pending at any time since `since`, a time of the monotonic clock in seconds."""
    return bool(_worker.waiting) or _worker.last_done >= since


def wait_for_all() -> None:
    """Wait until all jobs are done or have failed, so that timings are reliable."""
    # A copy, because the thread removes jobs meanwhile.
    for job in tuple(_worker.waiting):
        job.wait(float("inf"))


def patience() -> float:
    """Return the time in seconds that the current thread waits for the code of a mini-batch.

    Raises:
        BackendError: AUTOBATCH_COMPILE_WAIT is not a number of at least 0.
    """
    return float("inf") if _THREAD.waits else _patience()


def _patience() -> float:
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or PATIENCE_S)
    except ValueError:
        seconds = -1.0
    # This form also refuses NaN.
    if not seconds >= 0.0:
        raise BackendError(f"{VARIABLE} must be a number of seconds, such as 0.3 or inf, got {text!r}")
    return seconds


@contextmanager
def waiting_for_code() -> Iterator[None]:
    """Make the current thread wait for all code that it needs in the block, for measurements."""
    before, _THREAD.waits = _THREAD.waits, True
    try:
        yield
    finally:
        _THREAD.waits = before


@contextmanager
def unreported() -> Iterator[None]:
    """Suppress the line on standard error in the block, which shows compilations itself."""
    _quiet.append(None)
    try:
        yield
    finally:
        _quiet.pop()


@atexit.register
def _stop() -> None:
    """Run no job while the process exits and frees LLVM's state."""
    _worker.stop()


def _renew() -> None:
    """Give a forked child a thread of its own, with the parent's pending jobs."""
    global _worker
    # A new worker has new locks; the parent held the old ones during the fork (`pause`), and its thread is not here.
    left, _worker = list(_worker.waiting), _Worker()
    for job in left:
        job.renew()
        _worker.submit(job)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: _worker.pause(), after_in_parent=lambda: _worker.resume(), after_in_child=_renew)


class Compilation(NamedTuple):
    """A compilation, in progress or done.

    Attributes:
        what: subject of the compilation, such as `cell 'merge' (forward)`.
        seconds: duration; 0 while in progress.
    """

    what: str
    seconds: float = 0.0


class _Watcher(NamedTuple):
    begun: Callable[[Compilation], object]
    done: Callable[[Compilation], object]


_watchers: list[_Watcher] = []


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Report a compilation of `what` in the block to all watchers."""
    began = perf_counter()
    for watcher in tuple(_watchers):
        watcher.begun(Compilation(what))
    try:
        yield
    finally:
        for watcher in tuple(_watchers):
            watcher.done(Compilation(what, perf_counter() - began))


@contextmanager
def watch_compilation(
    begun: Callable[[Compilation], object], done: Callable[[Compilation], object] = lambda compilation: None
) -> Iterator[None]:
    """Call functions for each compilation of any thread while the block runs.

    Args:
        begun, done: called by the compiling thread at the start and at the end of a compilation.

    >>> with watch_compilation(lambda compilation: print("compiling", compilation.what)):
    ...     with compiling("cell 'merge' (forward)"):
    ...         pass
    compiling cell 'merge' (forward)
    """
    watcher = _Watcher(begun, done)
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
