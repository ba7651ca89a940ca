"""Prepare mini-batches ahead of their use, in a thread.

The thread draws and records the next mini-batch while the caller computes with this one. Recording is Python code, as
is most of the reference backend, and Python runs one thread at a time. Prefetching therefore saves only the time that
drawing and recording *wait* for files, a network, or NumPy. Elsewhere recording replaces the cells of a module by
generated functions. The caller's thread would see these, so the prefetching thread calls the cells themselves, which is
slower.

Training a Tree-LSTM of width 64 on treebank trees in mini-batches of 64, compared with recording on demand: 0.84 times
as fast without any waiting (with a process: 0.91), 1.18 times with a wait of 0.2 ms per tree
(`experiments/prefetch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _End:
    """The end of the items."""


def prefetch(items: Iterable[T], make: Callable[[T], R]) -> Iterator[R]:
    """Yield `make(item)` for each item, in order; a thread makes the next one while the last one is in use.

    One thread draws the items and calls `make`, for one item after the other. Exceptions of either are raised where the
    item would have been yielded. Leaving the loop, or an error, waits for the item in progress and ends the thread.

    Args:
        items: iterated in the thread.
        make: called in the thread.

    >>> list(prefetch([1, 2, 3], lambda number: number * number))
    [1, 4, 9]
    """
    from concurrent.futures import ThreadPoolExecutor  # imports logging, which would slow down `import autobatch`

    iterator = iter(items)

    def make_next() -> R | _End:
        for item in iterator:
            return make(item)
        return _End()

    with ThreadPoolExecutor(1, "autobatch-prefetch") as pool:
        future = pool.submit(make_next)
        while not isinstance(made := future.result(), _End):
            future = pool.submit(make_next)
            yield made
