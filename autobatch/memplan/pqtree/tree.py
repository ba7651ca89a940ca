"""PQ-trees: represent all orders of items in which given subsets are consecutive, in linear space.

The children of a P-node may be permuted in any way, those of a Q-node only reversed; this permits exactly the orders in
which every reduced subset is consecutive. A reduction finds the pertinent part of the tree from the leaves upwards,
then rewrites it by templates (`reduction`).
Source: Booth and Lueker, Testing for the consecutive ones property, interval graphs, and graph planarity using PQ-tree
algorithms, J. Comput. Syst. Sci. 13 (1976).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

from autobatch.errors import PlanError
from autobatch.keywords import suggesting
from autobatch.memplan.pqtree import order as pqtree_order
from autobatch.memplan.pqtree import print as pqtree_print
from autobatch.memplan.pqtree.node import UNMARKED, Leaf, Node, PNode, check_nodes, leaves_below, rebuild
from autobatch.memplan.pqtree.reduction import apply_all, bubble, changes_anything, match_all, pertinent_branches
from autobatch.memplan.pqtree.ways import Ways, find_leaves, first_repeated


class PQTree:
    """All orders of `items` that keep the reduced subsets together; at first, all orders.

    Args:
        items: any hashable values, each once. The frontier begins in their order.

    Attributes:
        n_changes: reductions so far that left fewer orders.

    Raises:
        PlanError: an item is repeated.

    Cost: O(items).
    Source: Booth and Lueker 1976.

    >>> tree = PQTree("abcde")
    >>> tree.reduce("bc"), tree.reduce("cd"), tree.reduce("bd")
    (True, True, False)
    >>> print(tree)
    (a e [b c d])
    >>> tree.n_orders()
    12
    """

    __slots__ = ("_leaf", "_root", "_ways", "n_changes")
    __hash__ = None  # type: ignore[assignment]  # reductions change equality

    @suggesting()
    def __init__(self, items: Iterable[Hashable]) -> None:
        ordered = list(items)
        self._leaf = {item: Leaf(item) for item in ordered}
        if len(self._leaf) < len(ordered):
            raise PlanError(
                f"making a PQ-tree of {len(ordered)} items: each must be given once, but "
                f"{first_repeated(ordered)!r} is repeated."
            )
        leaves: list[Node] = list(self._leaf.values())
        self._root: Node = leaves[0] if len(leaves) == 1 else PNode(leaves)
        self._ways: Ways | None = None
        self.n_changes = 0

    def __len__(self) -> int:
        return len(self._leaf)

    def reduce(self, subset: Iterable[Hashable]) -> bool:
        """Keep only those orders in which the items of `subset` are consecutive.

        The frontier may depend on the order in which `subset` lists its items.

        Returns:
            Whether there are such orders. If not, the tree does not change.

        Raises:
            PlanError: an item is not in the tree, or is given twice.

        Cost: O(subset + pertinent subtree), whatever the size of the tree; a rejection may climb to the root. Over all
        reductions that succeed: O(items + the sizes of the subsets).

        >>> tree = PQTree("abcd")
        >>> tree.reduce("ab"), tree.reduce("cd"), tree.reduce("bd"), tree.reduce("ad")
        (True, True, True, False)
        >>> print(tree)
        [c d b a]
        """
        leaves = self.leaves_of(subset)
        if len(leaves) < 2 or len(leaves) == len(self._leaf):
            return True
        visited: list[Node] = [*leaves]
        top = bubble(visited)
        matched = match_all(pertinent_branches(top)) if top is not None else None
        if matched is not None:
            self.n_changes += changes_anything(matched)
            self._ways = None
            root = apply_all(matched, visited)
            if matched[-1].node is self._root:
                self._root = root
        for node in visited:
            node.mark = UNMARKED
        return matched is not None

    def reduce_all(self, subsets: Iterable[Iterable[Hashable]]) -> bool:
        """Reduce every subset, or none.

        Returns:
            Whether all of them can be consecutive at once. If not, the tree does not change; `conflict` names the
            reason.

        Raises:
            PlanError: as for `reduce`; the tree does not change.

        Cost: O(nodes + items + the sizes of the subsets).

        >>> tree = PQTree("abcd")
        >>> tree.reduce_all(["ab", "bc", "bd"]), tree.reduce_all(["ab", "bc"])
        (False, True)
        >>> print(tree)
        (d [a b c])
        """
        trial = self.copy()
        fits = all(trial.reduce(subset) for subset in subsets)
        if fits:
            self._root, self._leaf, self._ways = trial._root, trial._leaf, trial._ways
            self.n_changes += trial.n_changes
        return fits

    def conflict(self, subsets: Iterable[Iterable[Hashable]]) -> list[int]:
        """Find a minimal set of subsets that cannot be consecutive together in an order that the tree permits.

        The subsets are reduced until one is rejected: that one belongs to the set, and those after it are not needed.
        The next pass reduces the set found so far first, and so on until the set itself is rejected. Each member is
        rejected after the members found before it and the subsets before it in the list, which fit without it; so
        dropping any one member resolves the conflict.

        Returns:
            Ascending positions in `subsets`; none if all fit. A single position means that the tree itself forbids that
            subset.

        Raises:
            PlanError: as for `reduce`.

        Cost: one more pass over the subsets than the set has members, each as for `reduce_all`; the tree does not
        change.

        >>> PQTree("abcd").conflict(["cd", "ab", "bc", "abc", "bd"])
        [0, 2, 4]
        """
        candidates = [list(subset) for subset in subsets]
        found: list[int] = []
        core = self.copy()
        while True:
            trial = core.copy()
            refused = next((at for at, subset in enumerate(candidates) if not trial.reduce(subset)), None)
            if refused is None:
                return found
            found.insert(0, refused)
            if not core.reduce(candidates[refused]):
                return found
            del candidates[refused:]

    def frontier(self) -> list[Hashable]:
        """Return one order that keeps all reduced subsets together. Cost: O(nodes).

        >>> tree = PQTree([3, 1, 2])
        >>> tree.frontier(), tree.reduce([3, 2]), tree.frontier()
        ([3, 1, 2], True, [1, 3, 2])
        """
        return [leaf.item for leaf in leaves_below(self._root)]

    def n_orders(self) -> int:
        """Count the permitted orders exactly: k! for a P-node with k children, times 2 for a Q-node. Cost: O(nodes).

        >>> from math import factorial
        >>> tree = PQTree(range(30))
        >>> tree.reduce(range(25)), tree.n_orders() == factorial(25) * factorial(6)
        (True, True)
        """
        return pqtree_order.n_orders(self._root)

    def orders(self) -> Iterator[list[Hashable]]:
        """Generate all permitted orders, each once; the first is the frontier.

        A reduction does not affect an iteration that has begun. Cost: O(nodes) per order.

        >>> tree = PQTree("abcd")
        >>> tree.reduce("abc"), tree.reduce("cb")
        (True, True)
        >>> [*map("".join, tree.orders())]
        ['dacb', 'acbd', 'dcba', 'cbad', 'dabc', 'abcd', 'dbca', 'bcad']
        """
        return pqtree_order.orders(self._root)

    def implied(self) -> Iterator[list[Hashable]]:
        """Yield every set of two or more items that is consecutive in all permitted orders, as lists in frontier order.

        These are the items below a node, and those below two or more consecutive children of a Q-node.

        Cost: O(items) per set. A Q-node with k children has k * (k - 1) / 2 of them.

        >>> tree = PQTree("abcde")
        >>> tree.reduce_all(["ab", "bc"])
        True
        >>> [*map("".join, tree.implied())]
        ['deabc', 'ab', 'abc', 'bc']
        """
        return pqtree_order.implied(self._root)

    def constraints(self) -> list[list[Hashable]]:
        """Return subsets that rebuild this tree from its items alone.

        There is one for each P-node below a P-node, and one for each pair of neighbours in a Q-node; those overlap, so
        they also keep the Q-node and each of its children together.

        Cost: O(nodes + their sizes).

        >>> tree = PQTree("abcdef")
        >>> tree.reduce_all(["abcd", "bcd", "cd", "de"])
        True
        >>> print(tree)
        (f [a b c d e])
        >>> [*map("".join, tree.constraints())]
        ['ab', 'bc', 'cd', 'de']
        """
        return pqtree_order.constraints(self._root)

    def restricted(self, items: Iterable[Hashable]) -> PQTree:
        """Return the tree of some of the items: its orders are the permitted ones without all other items.

        With `constraints`, this carries the constraints on one list of items over to another.

        Raises:
            PlanError: as for `reduce`.

        Cost: O(nodes).

        >>> tree = PQTree("abcdef")
        >>> tree.reduce_all(["abc", "cd", "de"])
        True
        >>> print(tree, tree.restricted("abde"), tree.restricted("cdf"))
        (f [(a b) c d e]) [(a b) d e] (f (c d))
        """
        return self._rebuilt({leaf.item for leaf in self.leaves_of(items)})

    def copy(self) -> PQTree:
        """Return an equal tree that shares nothing with this one. Cost: O(nodes)."""
        return self._rebuilt(None)

    __copy__ = copy

    def arrange(self, order: Iterable[Hashable]) -> bool:
        """Choose as frontier an order in which these items, some or all, have the given relative order.

        Children of P-nodes are permuted and Q-nodes reversed; the permitted orders stay the same.

        Returns:
            Whether a permitted order has that property. If not, the frontier does not change.

        Raises:
            PlanError: as for `reduce`.

        Cost: O(nodes * log(nodes)).

        >>> tree = PQTree("abcde")
        >>> tree.reduce_all(["ab", "bc"]), tree.arrange("ceb"), tree.arrange("edca"), tree.frontier()
        (True, False, True, ['e', 'd', 'c', 'b', 'a'])
        """
        self._ways = None
        return pqtree_order.arrange(self._root, [leaf.item for leaf in self.leaves_of(order)])

    def arrange_all(self, orders: Iterable[Iterable[Hashable]]) -> bool:
        """Choose as frontier an order in which the items of each list have their given relative order.

        Returns:
            Whether a permitted order has that property. If not, the frontier does not change.

        Raises:
            PlanError: as for `reduce`.

        Cost: O(nodes + items listed * depth of the tree).

        >>> tree = PQTree("abcde")
        >>> tree.reduce_all(["ab", "bc"]), tree.arrange_all(["ed", "ca", "da"]), tree.frontier()
        (True, True, ['e', 'd', 'c', 'b', 'a'])
        >>> tree.arrange_all(["ab", "cb"]), tree.arrange_all(["ab", "bd", "da"])
        (False, False)
        """
        fits = pqtree_order.arrange_all(self.ways(), [self.leaves_of(order) for order in orders])
        self._ways = None if fits else self._ways
        return fits

    def reverse(self, items: Iterable[Hashable]) -> None:
        """Reverse the children of the deepest node with all these items below it, but not the children's own children.

        The frontier changes, but not the permitted orders. With fewer than two items nothing changes.

        Raises:
            PlanError: as for `reduce`.

        Cost: O(nodes).

        >>> tree = PQTree("abcde")
        >>> tree.reduce_all(["abc", "cd"])
        True
        >>> tree.reverse("ad")
        >>> print(tree)
        (e [d c (a b)])
        """
        self._ways = None
        pqtree_order.reverse(self._root, {leaf.item for leaf in self.leaves_of(items)})

    def __eq__(self, other: object) -> bool:
        """Return whether two trees have the same items and permit the same orders. Cost: O(nodes * log(nodes))."""
        if not isinstance(other, PQTree):
            return NotImplemented
        if self._leaf.keys() != other._leaf.keys():
            return False
        number = {item: at for at, item in enumerate(self._leaf)}
        return pqtree_order.normal_form(self._root, number) == pqtree_order.normal_form(other._root, number)

    def __str__(self) -> str:
        return pqtree_print.to_text(self._root)

    def __repr__(self) -> str:
        return f"<PQTree {self}>"

    def picture(self) -> str:
        """Format the tree as a line for each node, its children indented below it.

        >>> tree = PQTree("abcd")
        >>> tree.reduce_all(["abc", "cd"])
        True
        >>> print(tree.picture())
        Q
        ├─ P
        │  ├─ a
        │  └─ b
        ├─ c
        └─ d
        """
        return pqtree_print.to_picture(self._root)

    def to_dot(self) -> str:
        """Format the tree in Graphviz's language: P-nodes are circles, Q-nodes boxes.

        >>> tree = PQTree("ab")
        >>> print(tree.to_dot())
        digraph {
          graph [ordering=out];
          edge [dir=none];
          n0 [shape=circle, label="P"];
          n1 [shape=plaintext, label="a"];
          n2 [shape=plaintext, label="b"];
          n0 -> n1;
          n0 -> n2;
        }
        """
        return pqtree_print.to_dot(self._root)

    def plot(self, path: str | Path) -> None:
        """Draw the tree into an image file, in the format of its suffix (.png, .svg, .pdf).

        Raises:
            PlanError: matplotlib is not installed.
        """
        pqtree_print.plot(self._root, Path(path))

    def check(self) -> None:
        """Check from the definition that this is a PQ-tree of its items. Cost: O(nodes).

        Raises:
            PlanError: a defect of this module; the message names the place.
        """
        check_nodes(self._root, self._leaf)

    def leaves_of(self, subset: Iterable[Hashable]) -> list[Leaf]:
        return find_leaves(self._leaf, subset)

    def ways(self) -> Ways:
        """Return the paths from all nodes to the root; the same object until the tree or its frontier changes."""
        if self._ways is None:
            self._ways = Ways(self._root)
        return self._ways

    def _rebuilt(self, only: set[Hashable] | None) -> PQTree:
        tree = PQTree([])
        tree._root = rebuild(self._root, only) or tree._root
        tree._leaf = {leaf.item: leaf for leaf in leaves_below(tree._root)}
        return tree
