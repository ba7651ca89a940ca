"""Locks: one per recording function, one for tracing, and one for runs.

A function records in one thread at a time. Functions of torch modules share a lock, because recording replaces cells in
the modules, where all threads see them. Tracing is process-wide exclusive, because it changes attribute access of
classes. So are runs: calls of batched functions after recording, optimizer steps, and reads or changes of all
parameters of a module, because functions may share parameters, their memory, backends and policies. Recordings and a
run may overlap; eager calls take no lock.

There is no deadlock: a recording thread never starts a run, because calling batched functions there is an error.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from weakref import WeakSet


class RenewedLock:
    """A lock that is released in a forked child, where the thread that held it does not exist.

    Attributes:
        lock: the reentrant lock.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _locks.renewed.add(self)


class _Locks:
    """The reentrant locks of the process."""

    def __init__(self) -> None:
        self.renewed = WeakSet[RenewedLock]()
        self.renew()

    def renew(self) -> None:
        """Replace all locks after a fork, because the threads that held them do not exist in the child."""
        self.tracing, self.running, self.next = threading.RLock(), threading.RLock(), threading.Lock()
        for recording in self.renewed:
            recording.lock = threading.RLock()


_locks = _Locks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_locks.renew)
OF_TORCH = RenewedLock()


def tracing_lock() -> AbstractContextManager[object]:
    """Return the tracing lock."""
    return _locks.tracing


def run_lock() -> AbstractContextManager[object]:
    """Return the run lock, to be entered at once; threads get it in the order of their requests.

    The next thread waits in this function, so that a thread that comes back with another call queues behind it. The
    lock itself is returned, not a context manager around it, because an interrupt cannot leave a lock's own `with`
    block locked.

    Cost: 0.3 us.
    """
    lock = _locks.running
    # A thread that has the lock must not queue: the next in line waits for it while it holds `next`.
    if not lock._is_owned():  # type: ignore[attr-defined]
        with _locks.next, lock:
            pass
    return lock
