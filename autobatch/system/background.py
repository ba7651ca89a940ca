"""Compile in a thread: a mini-batch that needs new code waits a moment for it, and is interpreted otherwise.

    AUTOBATCH_COMPILE_WAIT=seconds     how long a mini-batch waits for new code: 0.3 by default, `inf` without limit

The thread does one job after the other. LLVM runs without the interpreter's lock, so other threads go on. A process
that forks waits for the job that is being done; the child does what is left by itself.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from time import monotonic
from typing import Any, Generic, TypeVar

from autobatch.errors import BackendError
from autobatch.system.cache import cache_folder

T = TypeVar("T")

VARIABLE = "AUTOBATCH_COMPILE_WAIT"
PATIENCE_S = 0.3
SECONDS_UNTOLD = 2.0  # of compiling, before a line on standard error tells of it


class Job(Generic[T]):
    """A call that the thread makes, and its result.

    Args:
        run: is called without arguments.

    Attributes:
        asked: when it was asked for, on the monotonic clock.
    """

    def __init__(self, run: Callable[[], T]) -> None:
        self.asked = monotonic()
        self._run, self._done = run, threading.Event()
        self._result: T
        self._error: Exception | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has been done, or has failed."""
        return self._done.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until this long after the job was asked for; return whether it is done."""
        if self.is_done:
            return True
        left = self.asked + seconds - monotonic()
        return self._done.wait(None if left > threading.TIMEOUT_MAX else max(left, 0.0))

    def result(self) -> T:
        """Wait for the result; raise what the call raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result

    def do(self) -> None:
        """Make the call, and forget what it was."""
        try:
            self._result = self._run()
            del self._run
        except Exception as error:  # is raised where the result is asked for
            self._error = error
        self._done.set()

    def renew(self) -> None:
        """Forget threads of the parent process that waited, in a child."""
        self._done = threading.Event()


class _Worker:
    """The thread, started when there is a job."""

    def __init__(self) -> None:
        self.waiting: dict[Job[Any], None] = {}
        self._turn, self._busy = threading.Lock(), threading.Lock()  # to begin a job, and while it is done
        self.n_done, self.is_stopped, self.has_told = 0, False, False
        self._jobs: SimpleQueue[Job[Any]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._notice: threading.Timer | None = None

    def submit(self, job: Job[Any]) -> None:
        """Let the thread do a job."""
        with self._lock:
            self.waiting[job] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="autobatch compiling", daemon=True)
                self._thread.start()
            if self._notice is None:
                self.n_done = 0
                self._notice = threading.Timer(SECONDS_UNTOLD, self._tell)
                self._notice.daemon = True
                self._notice.start()
            self._jobs.put(job)

    def pause(self) -> None:
        """Wait for the job that is being done, and let the thread begin no other one."""
        if not self.is_stopped:
            self._turn.acquire()
            self._busy.acquire()

    def resume(self) -> None:
        """Let the thread go on."""
        if not self.is_stopped:
            self._busy.release()
            self._turn.release()

    def stop(self) -> None:
        """Let the thread never go on."""
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
                    del self.waiting[job]
                    self.n_done += 1
                    if not self.waiting and self._notice is not None:
                        self._notice.cancel()
                        self._notice = None
            finally:
                self._busy.release()
            del job  # what it made may be freed while the thread sleeps

    def _tell(self) -> None:
        if _quiet or self.has_told or not self.waiting:
            return
        self.has_told = True
        later = "" if cache_folder() is None else ", which later runs find in the cache"
        until = "" if _patience() == float("inf") else (
            f"; until then mini-batches are interpreted, with results equal up to rounding ({VARIABLE}=inf waits)"
        )  # fmt: skip
        n = self.n_done + len(self.waiting)
        sys.stderr.write(f"autobatch: compiling cells, {self.n_done} of {n} parts so far{later}{until}.\n")


_worker = _Worker()
_quiet: list[None] = []


class _Thread(threading.local):
    """Whether a thread waits for what it needs, whatever the variable says."""

    waits = False


_THREAD = _Thread()


def submit(job: Job[Any]) -> None:
    """Let the thread do a job, after those that were submitted before."""
    _worker.submit(job)


def n_waiting() -> int:
    """How many jobs are neither done nor failed: while there are any, times say little."""
    return len(_worker.waiting)


def wait_for_all() -> None:
    """Wait until all jobs are done, or have failed: before something is measured."""
    for job in tuple(_worker.waiting):
        job.wait(float("inf"))


def patience() -> float:
    """The seconds that this thread waits for the code of a mini-batch.

    Raises:
        BackendError: the variable is not a number of seconds.
    """
    return float("inf") if _THREAD.waits else _patience()


def _patience() -> float:
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or PATIENCE_S)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0.0:
        raise BackendError(f"{VARIABLE} must be a number of seconds, such as 0.3 or inf, got {text!r}")
    return seconds


@contextmanager
def waiting_for_code() -> Iterator[None]:
    """Let this thread wait in the block for all code that it needs: for measurements."""
    before, _THREAD.waits = _THREAD.waits, True
    try:
        yield
    finally:
        _THREAD.waits = before


@contextmanager
def untold() -> Iterator[None]:
    """Print nothing while the block runs, which shows what is compiled by itself."""
    _quiet.append(None)
    try:
        yield
    finally:
        _quiet.pop()


@atexit.register
def _stop() -> None:
    """Let no job run while the process ends, which frees what LLVM needs."""
    _worker.stop()


def _renew() -> None:
    """Do in a child what its parent had not done at the fork."""
    global _worker
    left, _worker = list(_worker.waiting), _Worker()
    for job in left:
        job.renew()
        _worker.submit(job)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: _worker.pause(), after_in_parent=lambda: _worker.resume(), after_in_child=_renew)
