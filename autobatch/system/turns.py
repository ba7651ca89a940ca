"""Locks: one for each function that records, one for tracing, and one for running.

A function records for one thread at a time. Functions of torch modules share a lock, because their recordings replace
cells in the modules, where all threads see them. Cells are traced for one thread at a time, because tracing changes how
classes read attributes. One run runs at a time: the call of a batched function once its mini-batch is recorded, a step
of an optimizer, or anything that reads or changes all parameters of a module. That lock belongs to the process, because
functions may share parameters, their memory, backends and policies. Recordings and a run may go on at once; eager calls
take no lock.

A thread that records cannot run, because batched functions are refused there, so there is no deadlock.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from weakref import WeakSet


class RenewedLock:
    """A lock that is free in a forked process, where the thread that held it does not exist.

    Attributes:
        lock: to be entered; a thread that has it may take it again.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _locks.renewed.add(self)


class _Locks:
    """The locks of the process; a thread that has one may take it again."""

    def __init__(self) -> None:
        self.renewed = WeakSet[RenewedLock]()
        self.renew()

    def renew(self) -> None:
        """Create new locks: after a fork, the threads that held the old ones no longer exist."""
        self.tracing, self.running, self.next = threading.RLock(), threading.RLock(), threading.Lock()
        for recording in self.renewed:
            recording.lock = threading.RLock()


_locks = _Locks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_locks.renew)
OF_TORCH = RenewedLock()


def tracing_lock() -> AbstractContextManager[object]:
    """Return the lock of tracing."""
    return _locks.tracing


def run_lock() -> AbstractContextManager[object]:
    """Return the lock of runs, to be entered at once; threads get it in the order in which they ask.

    The next thread waits here, so that the last one, back with another call, queues behind it. The lock itself is
    returned, because an interrupt never leaves that locked.

    Cost: 0.3 us.
    """
    lock = _locks.running
    if not lock._is_owned():  # type: ignore[attr-defined]
        with _locks.next, lock:
            pass
    return lock
