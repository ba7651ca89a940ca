"""Cutting a data set into mini-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from autobatch.errors import DataError

T = TypeVar("T")


def minibatches(instances: Sequence[T], size: int, rng: np.random.Generator | None = None) -> Iterator[list[T]]:
    """Yield lists of `size` instances, the last one shorter; shuffled by `rng`, in order without it.

    >>> [len(batch) for batch in minibatches(range(10), 4)]
    [4, 4, 2]
    """
    if size < 1:
        raise DataError(f"mini-batches of {size} instances; a mini-batch has at least one.")
    order = np.arange(len(instances)) if rng is None else rng.permutation(len(instances))
    for start in range(0, len(order), size):
        yield [instances[i] for i in order[start : start + size]]
