"""Reference checks for PQ-trees, written from the definitions: all permutations, and certificates."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import cache
from itertools import pairwise, permutations

import numpy as np

MAX_ITEMS = 7


@cache
def all_orders(n: int) -> list[tuple[int, ...]]:
    """Return all permutations of 0 ... n-1."""
    return list(permutations(range(n)))


@cache
def order_numbers(n: int) -> dict[tuple[Hashable, ...], int]:
    """Return the index of each order in `all_orders(n)`."""
    return {order: at for at, order in enumerate(all_orders(n))}


@cache
def orders_with(n: int) -> list[int]:
    """For each subset (a mask of items), return a mask of the orders in `all_orders` that keep it consecutive."""
    orders = np.array(all_orders(n), np.int8).reshape(math.factorial(n), n)
    position = np.argsort(orders, axis=1)
    masks = []
    for subset in range(2**n):
        at = position[:, members(subset)]
        together = np.ptp(at, axis=1) == at.shape[1] - 1 if at.shape[1] else np.ones(len(orders), np.bool_)
        masks.append(int.from_bytes(np.packbits(together, bitorder="little").tobytes(), "little"))
    return masks


def members(subset: int) -> list[int]:
    """Return the items of a bit mask."""
    return [item for item in range(subset.bit_length()) if subset >> item & 1]


def mask_of(subset: Iterable[Hashable]) -> int:
    """Return the bit mask of some items, which are ints."""
    return sum(1 << item for item in subset if isinstance(item, int))


def are_consecutive(order: Sequence[Hashable], subsets: Iterable[Collection[Hashable]]) -> bool:
    """Return whether an order keeps each subset together."""
    position = {item: at for at, item in enumerate(order)}
    places = ([position[item] for item in subset] for subset in subsets)
    return all(not at or max(at) - min(at) == len(at) - 1 for at in places)


def is_refuted(subsets: Iterable[Collection[Hashable]]) -> bool:
    """Return whether no order keeps all subsets together, proven by contradictory forced comparisons.

    If a subset contains a and b but not c, then c is not between them: a stands before c exactly if b does. This ties
    comparisons to each other, and if (x before y) is tied to (y before x), no order exists. The converse also holds
    (McConnell 2004, A certifying algorithm for the consecutive-ones property). Items that are in the same subsets are
    interchangeable, so one of them is enough.
    """
    groups = [frozenset(subset) for subset in subsets]
    kinds = {frozenset(at for at, group in enumerate(groups) if item in group): item for item in set().union(*groups)}
    items = list(kinds.values())
    n = len(items)
    leader = list(range(n * n))  # the comparison (x before y) is x * n + y

    def find(comparison: int) -> int:
        while leader[comparison] != comparison:
            leader[comparison] = leader[leader[comparison]]
            comparison = leader[comparison]
        return comparison

    for group in groups:
        inside = [at for at, item in enumerate(items) if item in group]
        outside = [at for at, item in enumerate(items) if item not in group]
        for c in outside:
            for a, b in pairwise(inside):
                leader[find(a * n + c)] = find(b * n + c)
                leader[find(c * n + a)] = find(c * n + b)
    return any(find(x * n + y) == find(y * n + x) for x in range(n) for y in range(x))


def random_subset(rng: np.random.Generator, n: int) -> list[int]:
    """Draw a shuffled subset of two items or more, never all of three or more; all sizes are equally likely."""
    size = int(rng.integers(2, max(n, 3))) if n > 1 else n
    return [int(item) for item in rng.permutation(n)[:size]]


def random_interval(rng: np.random.Generator, hidden: Sequence[int]) -> list[int]:
    """Draw a shuffled interval of a hidden order."""
    start, stop = np.sort(rng.integers(0, len(hidden) + 1, 2))
    return [int(item) for item in rng.permutation(hidden[start:stop])]


def random_system(rng: np.random.Generator, n: int, n_subsets: int, share_wrong: float) -> list[list[int]]:
    """Draw intervals of a hidden order; with probability `share_wrong`, each is a random subset instead."""
    hidden = rng.permutation(n).tolist()
    return [
        random_subset(rng, n) if rng.random() < share_wrong else random_interval(rng, hidden) for _ in range(n_subsets)
    ]
