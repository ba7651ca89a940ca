"""Divide a data set into mini-batches: in order, shuffled, or bucketed by size.

Bucketing groups instances of similar size and keeps some randomness: the shuffled data set is cut into windows of
several mini-batches, each window is sorted by size and cut, and all mini-batches are shuffled. autobatch does not pad,
so bucketing saves launches: a mini-batch takes about as many as its deepest instance, and small instances are shallow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import refusal
from autobatch.errors import DataError
from autobatch.graph.graph import Graph
from autobatch.graph.queued import QueuedBatch
from autobatch.keywords import checked
from autobatch.ops.eager import unwrap
from autobatch.ops.randomness import check_generator

T = TypeVar("T")
BucketBy = Literal["nodes"] | Callable[[T], float] | Sequence[float] | NDArray[Any]
WINDOW = 100  # mini-batches


@checked(bucket_by=None)
def minibatches(
    instances: Sequence[T],
    size: int,
    rng: np.random.Generator | None = None,
    *,
    bucket_by: BucketBy[T] | None = None,
    window: int | None = WINDOW,
    ahead: int = 0,
) -> Iterator[list[T]]:
    """Yield lists of `size` instances, with each instance once; one list may be shorter.

    With `bucket_by`, the instances of a mini-batch have similar sizes. This is faster if launches cost more than
    arithmetic, as in small models with instances of very different sizes: on the Stanford Sentiment Treebank with
    mini-batches of 64 it saves 28% of the batches, and training at width 64 was about 10% faster
    (`experiments/bucketing.py`). Gradients of such mini-batches are noisier.

    Args:
        instances: graphs from `record_all`, or any instances that the function takes.
        size: instances per mini-batch.
        rng: shuffles instances and mini-batches, reproducibly; without it they stay in order, sorted only within
            windows.
        bucket_by: "nodes" for the node counts of recorded graphs; a function from an instance to its size; or the
            sizes of all instances, in their order. By default sizes do not matter.
        window: mini-batches per window; fewer give more randomness, and None sorts the whole data set.
        ahead: the number of mini-batches to plan while one runs, see `plan_ahead`.

    Raises:
        DataError: `size` or `window` is below 1, `ahead` is below 0, `bucket_by` does not give one size per instance,
            or it is "nodes" and an instance is not a recorded graph.

    Cost: O(N log(window · size)) for N instances, before the first mini-batch.

    >>> [len(batch) for batch in minibatches(range(10), 4)]
    [4, 4, 2]
    >>> words = ["a", "wonderful", "old", "film", "of", "remarkable", "wit"]
    >>> list(minibatches(words, 3, bucket_by=len))
    [['a', 'of', 'old'], ['wit', 'film', 'wonderful'], ['remarkable']]
    """
    if size < 1:
        raise DataError(f"size of minibatches must be at least 1, got {size}.")
    if rng is not None:
        check_generator(rng)
    size = int(size)  # products of NumPy's short ints would wrap around
    order = np.arange(len(instances)) if rng is None else rng.permutation(len(instances))
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    if bucket_by is not None:
        batches = _bucketed(order, size, sizes_of(instances, bucket_by), window)
        if rng is not None:
            rng.shuffle(batches)
    found = ([instances[i] for i in batch] for batch in batches)
    yield from found if ahead == 0 else plan_ahead(found, ahead)


@checked(batches=None)
def plan_ahead(batches: Iterable[Sequence[T]], n: int = 2) -> Iterator[list[T]]:
    """Yield the mini-batches of an iterable, such as a PyTorch `DataLoader`, and plan the next ones meanwhile.

    While a batched function runs a mini-batch, a thread plans the next `n` for the same function and options: the core
    plans without holding the GIL. Schedules, results and their order are the same. This helps if mini-batches consist
    of recorded graphs and are new each time, as in shuffled training. Nothing is planned ahead if no core is free, that
    is, if the process may use no more cores than the function has threads; for policies and planners that are written
    in Python, such as learned ones; for `threads="auto"`; and for instances that are not recorded.

    An error of an instance is raised by the call that runs its mini-batch. With `max_bytes`, a mini-batch is planned
    ahead only if the waiting plans and the memory of the run are estimated to take less than that together, and the run
    is not split into parts.

    Args:
        batches: mini-batches, sequences of graphs from `record_all`; fetched `n` ahead.
        n: the number of mini-batches to plan while one runs; two hide planning unless it takes longer than the run.

    Raises:
        DataError: `n` is below 0, or `batches` is not an iterable of mini-batches.

    >>> [batch for batch in plan_ahead([["a", "b"], ["c"]])]
    [['a', 'b'], ['c']]
    """
    if n < 0:
        raise DataError(f"the number of mini-batches to plan ahead must be at least 0, got {n}.")
    if isinstance(batches, str) or not isinstance(batches, Iterable):
        raise refusal("batches of plan_ahead", "an iterable of mini-batches", batches)
    remaining, queue = iter(batches), deque[QueuedBatch]()
    while True:
        # An iterator, so that each loop goes on after the last fetched one; the queue holds the next and `n` more.
        for batch in remaining:
            if isinstance(batch, str) or not isinstance(batch, Iterable):
                raise refusal("a mini-batch", "a list of instances", batch)
            queue.append(QueuedBatch(batch, queue))
            if len(queue) > n:
                break
        if not queue:
            return
        yield queue.popleft()


def _bucketed(order: NDArray[Any], size: int, sizes: NDArray[Any], window: int | None) -> list[NDArray[Any]]:
    """Cut `order` into windows, sort each by size and cut it into mini-batches; equal sizes keep their order."""
    if window is not None and window < 1:
        raise DataError(f"window of minibatches must be at least 1, or None for a single window, got {window}.")
    length = size * window if window is not None else max(len(order), 1)
    windows = [order[start : start + length] for start in range(0, len(order), length)]
    ordered = [part[np.argsort(sizes[part], kind="stable")] for part in windows]
    return [part[start : start + size] for part in ordered for start in range(0, len(part), size)]


def sizes_of(instances: Sequence[T], bucket_by: BucketBy[T]) -> NDArray[Any]:
    """Return the size of each instance, (N,); see `minibatches`."""
    if isinstance(bucket_by, str):
        if bucket_by != "nodes" or not all(isinstance(instance, Graph) for instance in instances):
            raise DataError(
                f"bucket_by must be a function of an instance, a sequence of sizes, or 'nodes' if all instances are "
                f"graphs from record_all, got {bucket_by!r}."
            )
        return np.array([instance.n_nodes for instance in instances if isinstance(instance, Graph)])
    sizes = unwrap([bucket_by(instance) for instance in instances] if callable(bucket_by) else bucket_by)
    if sizes.shape != (len(instances),) or sizes.dtype.kind not in "biuf":
        raise DataError(
            f"bucket_by must give one number per instance, got sizes of shape {sizes.shape} and type {sizes.dtype} "
            f"for {len(instances)} instances."
        )
    return sizes
