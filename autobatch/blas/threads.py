"""Limit the threads of matrix products inside `with` blocks, to at most the usable cores.

A BLAS library has one number of threads for the whole process. So if several blocks are open, nested or in several
Python threads, the smallest of their numbers is in force, and no thread inside a block gets more than its share of the
cores. External limits, by OMP_NUM_THREADS or threadpoolctl, hold too: the largest number that any library had outside
all blocks is never exceeded.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from autobatch.errors import BackendError
from autobatch.system.processor import usable_cores


class ThreadPool(NamedTuple):
    """The threads of one library."""

    name: str
    get: Callable[[], int]
    set: Callable[[int], object]


OPENBLAS_NAMES = [
    f"{prefix}openblas_{{}}_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
]
NUMBER = itemgetter(1)
_lock = threading.RLock()
_asked: list[tuple[int, int]] = []  # Python thread and number of each open block
_before: dict[str, tuple[ThreadPool, int]] = {}  # the number of each library outside all blocks
_now: dict[str, int] = {}  # the current number of each library
_number = 1  # the number in force inside the open blocks
_pools: list[ThreadPool] | None = None
_is_torch_known = False


def limit_threads(n_threads: int = 1) -> Limit:
    """Limit every matrix product inside the block to at most `n_threads` threads.

    Args:
        n_threads: at least 1. The number of cores, enclosing blocks and the libraries' own settings are upper bounds.

    Returns:
        A context manager that yields the number in force, which falls when other Python threads open blocks.

    Raises:
        BackendError: `n_threads` is less than 1.

    Cost: a few microseconds.

    >>> with limit_threads(8) as outer, limit_threads(1) as inner:
    ...     inner
    1
    """
    if n_threads < 1:
        raise BackendError(f"the number of BLAS threads must be at least 1, got {n_threads}.")
    return Limit(n_threads)


class Limit:
    """A block in which the threads of matrix products are limited."""

    def __init__(self, n_threads: int) -> None:
        self._entry, self._is_open = (threading.get_ident(), n_threads), False

    def __enter__(self) -> int:
        try:
            with _lock:
                self._is_open = True
                _asked.append(self._entry)
                number = _put_in_force()
            return number
        except BaseException:  # an interrupt: Python does not call `__exit__` if `__enter__` raises
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        global _number
        with _lock:
            if not self._is_open:  # interrupted before the block began
                return
            self._is_open = False
            _asked.remove(self._entry)
            if _asked:
                _put_in_force()
                return
            for pool, number in _before.values():
                if _now[pool.name] != number:
                    pool.set(number)
            _before.clear()
            _now.clear()
            _number = 1


def most_threads() -> int:
    """Return the largest number of threads that a block would get now."""
    with _lock:
        return _granted([*_asked, (threading.get_ident(), usable_cores())])


def threads_in_force() -> dict[str, int]:
    """Return the number of threads of each library now, by its file or name."""
    return {pool.name: pool.get() for pool in _all_pools()}


def look_again() -> None:
    """Include libraries that were loaded since the last look."""
    global _pools
    with _lock:
        _pools = None
        if _asked:
            _put_in_force()


def _put_in_force() -> int:
    global _number
    pools = _pools if _pools is not None and (_is_torch_known or "torch" not in sys.modules) else _all_pools()
    for pool in pools:
        # Also a library that was loaded while blocks are open: the number it has now is the one outside.
        if pool.name not in _before:
            _now[pool.name] = number = pool.get()
            _before[pool.name] = (pool, number)
    smallest = min(map(NUMBER, _asked))
    _number = 1 if smallest == 1 else _granted(_asked)
    for pool in pools:
        if _now[pool.name] != _number:
            _now[pool.name] = _number  # first, so that `__exit__` undoes it after an interrupt in between
            pool.set(_number)
    return _number


def _renew() -> None:
    """End the blocks of threads that a fork did not copy, one of which may have held the lock."""
    global _lock
    _lock = threading.RLock()
    own = [block for block in _asked if block[0] == threading.get_ident()]
    if len(own) < len(_asked):
        _asked[:] = own
        with limit_threads():  # its end puts in force what the blocks ask for that are left
            pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def _granted(asked: Sequence[tuple[int, int]]) -> int:
    """Compute the number in force while these blocks are open."""
    smallest: int = min(map(NUMBER, asked))
    if smallest == 1:
        return 1
    n_python_threads = len({thread for thread, _ in asked})
    # Inside blocks, `get` would return the limit in force, so the numbers that were noted outside count.
    outside = (_before[pool.name][1] if pool.name in _before else pool.get() for pool in _all_pools())
    share = min(usable_cores(), max(outside, default=usable_cores())) // n_python_threads
    return max(1, min(smallest, share))


def _all_pools() -> list[ThreadPool]:
    """Return the pools of all libraries, including torch's own once torch is loaded."""
    global _pools, _is_torch_known
    if _pools is None or (not _is_torch_known and "torch" in sys.modules):
        from threadpoolctl import ThreadpoolController

        _pools = [_pool_of(one) for one in ThreadpoolController().select(user_api="blas").lib_controllers]
        torch = sys.modules.get("torch")
        _is_torch_known = torch is not None
        if torch is not None:
            _pools.append(ThreadPool("torch", torch.get_num_threads, torch.set_num_threads))
    return _pools


def _pool_of(library: Any) -> ThreadPool:
    """Return the pool of a library that threadpoolctl found.

    OpenBLAS has one pool per process. We call its functions directly, because threadpoolctl takes several times as long
    and affects only one Python thread, while our limits are shared by all.
    """
    if library.internal_api == "openblas" and library.threading_layer != "openmp":
        for name in OPENBLAS_NAMES:
            if hasattr(library.dynlib, name.format("set")):
                get, put = (getattr(library.dynlib, name.format(verb)) for verb in ("get", "set"))
                return ThreadPool(library.filepath, get, put)
    return ThreadPool(library.filepath, library.get_num_threads, library.set_num_threads)
