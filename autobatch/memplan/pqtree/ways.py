"""Paths from the leaves of a PQ-tree to its root, to query a few items without walking the whole tree.

The leaves of items are found with errors for unknown and repeated items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise

from autobatch.errors import PlanError
from autobatch.memplan.pqtree.node import Leaf, Node, QNode, walk


class Ways:
    """The path from each node of a tree to its root, valid until the tree changes. Cost: O(nodes).

    Attributes:
        root: the root of the tree.
        parent: of each node below the root.
        place: of each node among its siblings.
        position: of each leaf in the frontier.
    """

    __slots__ = ("parent", "place", "position", "root")

    def __init__(self, root: Node) -> None:
        self.root = root
        self.parent: dict[Node, Node] = {}
        self.place: dict[Node, int] = {}
        self.position: dict[Node, int] = {}
        for node, children in walk(root):
            if isinstance(node, Leaf):
                self.position[node] = len(self.position)
            for at, child in enumerate(children):
                self.parent[child], self.place[child] = node, at

    def meet(self, left: Node, right: Node) -> tuple[Node, Node, Node]:
        """Return the deepest node above both leaves, and its children on the paths to them. Cost: O(depth)."""
        parent = self.parent
        way: dict[Node, Node] = {}
        while left is not self.root:
            way[parent[left]] = left
            left = parent[left]
        while parent[right] not in way:
            right = parent[right]
        return parent[right], way[parent[right]], right

    def constraints(self, leaves: Sequence[Leaf]) -> list[list[int]]:
        """Return the tree's constraints on the order of these leaves: sets of consecutive positions in `leaves`.

        They are the `constraints` of the tree `restricted` to the leaves. Cost: O(leaves * depth).
        """
        below = self._branches_above(leaves)
        items: dict[Node, list[int]] = {leaf: [at] for at, leaf in enumerate(leaves)}
        is_p: set[Node] = set()
        found: list[list[int]] = []
        for node, children in below:
            # As in `rebuild`: a Q-node left with two children is a P-node, and a node left with one is that child.
            if len(children) > 2 and isinstance(node, QNode):
                found += [items[left] + items[right] for left, right in pairwise(children)]
            elif len(children) > 1:
                found += [items[child] for child in children if child in is_p]
                is_p.add(node)
            elif children[0] in is_p:
                is_p.add(node)
            items[node] = [at for child in children for at in items[child]]
        return found

    def _branches_above(self, leaves: Sequence[Leaf]) -> list[tuple[Node, list[Node]]]:
        """Return the nodes above these leaves, descendants first, with their children on the paths to the leaves."""
        below: dict[Node, list[Node]] = {}
        for leaf in leaves:
            node: Node = leaf
            while node is not self.root:
                above = self.parent[node]
                is_met = above in below
                below.setdefault(above, []).append(node)
                if is_met:  # so the rest of the way is known
                    break
                node = above
        found: list[tuple[Node, list[Node]]] = []
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node in below:
                found.append((node, sorted(below[node], key=self.place.__getitem__)))
                stack += found[-1][1]
        return found[::-1]


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
