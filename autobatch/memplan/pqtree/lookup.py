"""Find the leaves of items in a PQ-tree, with errors for unknown and repeated items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from autobatch.errors import PlanError
from autobatch.memplan.pqtree.node import Leaf


def find_leaves(leaf: Mapping[Hashable, Leaf], subset: Iterable[Hashable]) -> list[Leaf]:
    """Look up the leaves of some items.

    Args:
        leaf: the leaf of each item of a tree.
        subset: some of the items, each once.

    Raises:
        PlanError: an item is not in the tree, or is given twice.
    """
    items = list(subset)
    try:
        leaves = [leaf[item] for item in items]
    except KeyError as error:
        raise PlanError(
            f"looking up {len(items)} items in a PQ-tree of {len(leaf)}: {error.args[0]!r} is not among its "
            "items, which never change."
        ) from None
    if len(set(items)) < len(items):
        raise PlanError(
            f"looking up {len(items)} items in a PQ-tree: each must be given once, but "
            f"{first_repeated(items)!r} is repeated."
        )
    return leaves


def first_repeated(items: list[Hashable]) -> Hashable:
    """Return the first item that is in the list more than once."""
    times = Counter(items)
    return next(item for item in items if times[item] > 1)
