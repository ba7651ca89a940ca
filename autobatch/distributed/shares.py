"""Division of mini-batches among processes, with balanced predicted costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from heapq import heapify, heapreplace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import check_int
from autobatch.engine.group import ENTERED
from autobatch.errors import DataError
from autobatch.graph.graph import Graph, work_of
from autobatch.keywords import checked
from autobatch.nn.minibatches import BucketBy, minibatches, sizes_of
from autobatch.trace.owning import list_owned

MOST_PROCESSES = 2**20


class Share(list[Any]):
    """A list of instances of a mini-batch, with their positions in it.

    Args:
        instances: the instances of this share; arrays and buffers from an iterator are copied.
        positions: index of each instance in the mini-batch, which seeds its random numbers if it is not recorded yet.
        size: number of instances of the whole mini-batch.
        digest: digest of the whole mini-batch, to check that all processes have the same one.
    """

    @checked()
    def __init__(self, instances: Iterable[Any], positions: Iterable[int], size: int, digest: bytes = b"") -> None:
        super().__init__(list_owned(instances, is_stored=True))
        self.positions: NDArray[np.int64] = np.fromiter(positions, np.int64)
        self.size, self.digest = size, digest


@checked()
def shares(
    instances: Sequence[Any],
    size: int,
    rng: np.random.Generator | None = None,
    *,
    cost: Callable[[Any], float] | Sequence[float] | NDArray[Any] | None = None,
    bucket_by: BucketBy[Any] | None = None,
) -> Iterator[Share]:
    """Yield this process's share of each mini-batch of `size` instances.

    All processes must pass the same data, and generators in the same state; they compute the same division without
    communication. A greedy rule balances the predicted costs: the most expensive remaining instance goes to the process
    with the lowest total. Outside a group, a share is the whole mini-batch.

    Args:
        instances: all training data: graphs from `record_all`, or any instances that the function takes.
        size: instances per mini-batch, over all processes.
        rng: shuffles, as in `ab.minibatches`.
        cost: predicted cost of an instance, in any unit: a function of it, or a number per instance. The default for
            recorded graphs is the work of their nodes (`autobatch.graph.graph.work_of`); others cost the same.
        bucket_by: as in `ab.minibatches`.

    Raises:
        DataError: there is not one cost per instance, or a cost is negative or not finite; or as for `ab.minibatches`.

    >>> import autobatch as ab
    >>> [share.size for share in ab.distributed.shares(range(10), 4)]
    [4, 4, 2]
    """
    joined, costs = ENTERED.group, costs_of(instances, cost)
    sizes = None if bucket_by is None else sizes_of(instances, bucket_by)
    for batch in minibatches(range(len(instances)), size, rng, bucket_by=sizes):
        whole = [instances[i] for i in batch]
        if joined is None or joined.size == 1:
            yield Share(whole, range(len(whole)), len(whole))
            continue
        own = spread(costs[batch], joined.size)[joined.rank]
        yield Share([whole[k] for k in own], own, len(whole), _digest(whole))


@checked()
def spread(costs: Sequence[float] | NDArray[Any], n: int) -> list[list[int]]:
    """Divide positions among processes so that their total costs are balanced.

    Args:
        costs: cost of each of B positions, in any unit.
        n: number of processes.

    Returns:
        A sorted list of positions per process.

    Cost: O(B log B).

    Source: Graham, Bounds on Multiprocessing Timing Anomalies (1969): the largest total is at most 4/3 of the optimum.

    >>> spread([5.0, 1.0, 1.0, 1.0, 4.0], 2)
    [[0, 2], [1, 3, 4]]
    """
    n = check_int("n of spread", n, at_least=1, below=MOST_PROCESSES)
    busy = [(0.0, process) for process in range(n)]
    heapify(busy)
    found: list[list[int]] = [[] for _ in range(n)]
    numbers = np.asarray(costs, np.float64)
    if numbers.ndim != 1:
        raise DataError(f"costs of spread must be a list of numbers, got an array of shape {numbers.shape}.")
    for position in np.argsort(-numbers, kind="stable").tolist():  # all processes break ties alike
        load, process = busy[0]
        heapreplace(busy, (load + float(numbers[position]), process))
        found[process].append(position)
    return [sorted(own) for own in found]


def costs_of(instances: Sequence[Any], cost: Any = None) -> NDArray[np.float64]:
    """Return the predicted cost of each of B instances, float64 (B,); see `shares`."""
    if cost is None:
        given = [float(work_of(x.type_id, x.types).sum()) if isinstance(x, Graph) else 1.0 for x in instances]
    else:
        given = [cost(x) for x in instances] if callable(cost) else cost
    costs = np.asarray(given, np.float64)
    if costs.shape != (len(instances),):
        raise DataError(
            f"cost must give one number per instance, got costs of shape {costs.shape} for {len(instances)} instances."
        )
    wrong = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
    if wrong.size:
        raise DataError(f"cost must be finite and at least 0, got {costs[wrong[0]]} for instance {wrong[0]}.")
    return costs


def _digest(batch: Sequence[Any]) -> bytes:
    """Compute a digest of the recorded graphs, and of the number and places of other instances."""
    return sha256(b"".join([x.digest if isinstance(x, Graph) else b"?" for x in batch])).digest()
