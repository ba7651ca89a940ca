"""Count, list and choose among the orders that a PQ-tree permits, and list the constraints behind them.

An order that keeps several lists of items in their order at once: the order of two items is decided at the deepest node
above both, by the order of two of its children. The lists must not require both directions of a Q-node, or a cycle
among the children of a P-node; then each node is arranged on its own.

Contradictory demands on the order of pairs of items are detected without trying orders. The order of two items is
decided at the deepest node above both (`Ways.meet`). A Q-node decides all its pairs at once, a P-node each pair of its
children separately. Lists whose items must have one order tie decisions together, as equal or as opposite; lists in
fixed order tie decisions to a constant. If a decision is tied to its own opposite, no order exists. This test is
necessary, not sufficient: the decisions at a P-node must also form an order of its children, which takes a search to
find.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, pairwise, permutations
from math import factorial, prod
from typing import TypeAlias

from autobatch.memplan.pqtree.node import Branch, Leaf, Node, PNode, QNode, branches_below, leaves_below, walk
from autobatch.memplan.pqtree.ways import Ways


def n_orders(root: Node) -> int:
    """Return the product, over all nodes, of the numbers of arrangements of their children."""
    return prod(2 if isinstance(node, QNode) else factorial(len(children)) for node, children in branches_below(root))


def orders(root: Node) -> Iterator[list[Hashable]]:
    """Enumerate the arrangements of all nodes like an odometer; the last node changes fastest."""
    wheels = branches_below(root)
    arrangements = [_arrangements(node, children) for node, children in wheels]
    arranged: dict[Node, tuple[Node, ...]] = {
        node: next(rest) for (node, _), rest in zip(wheels, arrangements, strict=True)
    }
    while True:
        yield _frontier(root, arranged)
        for at in reversed(range(len(wheels))):
            node, children = wheels[at]
            turned = next(arrangements[at], None)
            if turned is not None:
                arranged[node] = turned
                break
            arrangements[at] = _arrangements(node, children)
            arranged[node] = next(arrangements[at])
        else:
            return


def _arrangements(node: Branch, children: list[Node]) -> Iterator[tuple[Node, ...]]:
    return iter((tuple(children), tuple(children[::-1]))) if isinstance(node, QNode) else permutations(children)


def _frontier(root: Node, arranged: dict[Node, tuple[Node, ...]]) -> list[Hashable]:
    items: list[Hashable] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Leaf):
            items.append(node.item)
        else:
            stack.extend(reversed(arranged[node]))
    return items


def implied(root: Node) -> Iterator[list[Hashable]]:
    """Yield the items below each node, and below each run of two or more neighbours in a Q-node."""
    items, span = _spans(root)
    for node, children in walk(root):
        if isinstance(node, QNode):
            for at, first in enumerate(children):
                for last in children[at + 1 :]:
                    yield items[span[first][0] : span[last][1]]
        elif children:
            yield items[slice(*span[node])]


def constraints(root: Node) -> list[list[Hashable]]:
    """Return the items below each P-node in a P-node, and below each pair of neighbours in a Q-node."""
    items, span = _spans(root)
    found: list[list[Hashable]] = []
    for node, children in walk(root):
        if isinstance(node, QNode):
            found += [items[span[first][0] : span[second][1]] for first, second in pairwise(children)]
        else:
            found += [items[slice(*span[child])] for child in children if isinstance(child, PNode)]
    return found


def _spans(root: Node) -> tuple[list[Hashable], dict[Node, tuple[int, int]]]:
    """Return the frontier, and the range in it of the items below each node."""
    items = [leaf.item for leaf in leaves_below(root)]
    span: dict[Node, tuple[int, int]] = {}
    stop = len(items)
    for node, children in reversed(walk(root)):  # a node after those below it, and right before left
        if isinstance(node, Leaf):
            span[node] = (stop - 1, stop)
            stop -= 1
        elif children:
            span[node] = (span[children[0]][0], span[children[-1]][1])
    return items, span


def arrange(root: Node, order: list[Hashable]) -> bool:
    """Sort the children of every node by the positions in `order` of the items below them.

    Returns:
        Whether the tree permits such an order. If not, nothing changes.
    """
    position = {item: at for at, item in enumerate(order)}
    span: dict[Node, tuple[int, int]] = {}  # the positions of the first and the last given item below a node
    for leaf in leaves_below(root):
        if leaf.item in position:
            span[leaf] = (position[leaf.item], position[leaf.item])
    turned: list[QNode] = []
    sorted_members: list[tuple[PNode, list[Node]]] = []
    for node, children in branches_below(root):
        placed = [child for child in children if child in span]
        if not placed:
            continue
        if isinstance(node, PNode):
            placed.sort(key=span.__getitem__)
            rest = iter(placed)
            # Children without given items stay where they are.
            sorted_members.append((node, [next(rest) if child in span else child for child in children]))
        elif isinstance(node, QNode) and span[placed[0]] > span[placed[-1]]:
            placed.reverse()
            turned.append(node)
        if any(span[left][1] > span[right][0] for left, right in pairwise(placed)):
            return False
        span[node] = (span[placed[0]][0], span[placed[-1]][1])
    for q_node in turned:
        q_node.reverse()
    for p_node, members in sorted_members:
        p_node.members = dict.fromkeys(members)
    return True


def reverse(root: Node, items: set[Hashable]) -> None:
    """Reverse the children of the deepest node that has all the items below it."""
    n_below: dict[Node, int] = {leaf: leaf.item in items for leaf in leaves_below(root)}
    for node, children in branches_below(root):
        n_below[node] = sum(n_below[child] for child in children)
        if n_below[node] == len(items) > 1:
            node.reverse()
            return


def normal_form(root: Node, number: dict[Hashable, int]) -> list[tuple[str, int]]:
    """Return a description that is equal for trees that permit the same orders, given the items' numbers."""
    least: dict[Node, int] = {leaf: number[leaf.item] for leaf in leaves_below(root)}
    arranged: dict[Node, list[Node]] = {}
    for node, children in branches_below(root):
        if isinstance(node, PNode):
            arranged[node] = sorted(children, key=least.__getitem__)
        else:
            arranged[node] = children if least[children[0]] < least[children[-1]] else children[::-1]
        least[node] = min((least[child] for child in children), default=0)
    described: list[tuple[str, int]] = []
    stack = [root]
    while stack:
        below = stack.pop()
        if below in arranged:
            described.append((type(below).__name__, len(arranged[below])))
            stack.extend(arranged[below])
        else:
            described.append(("item", least[below]))
    return described


def arrange_all(ways: Ways, orders: Iterable[Sequence[Leaf]]) -> bool:
    """Arrange the children of all nodes so that each list of leaves is in order; if impossible, change nothing."""
    above, place = _sides(ways, orders), ways.place
    turned: list[QNode] = []
    arranged: list[tuple[PNode, list[Node]]] = []
    for node, sides in above.items():
        if isinstance(node, PNode):
            members = _sorted_children(node, sides, place)
            if members is None:
                return False
            arranged.append((node, members))
        elif isinstance(node, QNode):
            forward = {place[left] < place[right] for left, right in sides}
            if len(forward) > 1:
                return False
            if forward == {False}:
                turned.append(node)
    for q_node in turned:
        q_node.reverse()
    for p_node, members in arranged:
        p_node.members = dict.fromkeys(members)
    return True


def _sides(ways: Ways, orders: Iterable[Sequence[Leaf]]) -> dict[Node, list[tuple[Node, Node]]]:
    """Return, per node, the pairs of its children in required order."""
    sides: dict[Node, list[tuple[Node, Node]]] = {}
    for order in orders:
        for left, right in pairwise(order):
            node, first, second = ways.meet(left, right)
            sides.setdefault(node, []).append((first, second))
    return sides


def _sorted_children(node: PNode, sides: list[tuple[Node, Node]], place: dict[Node, int]) -> list[Node] | None:
    """Sort the children so that all pairs are in order, close to the present order; return None for a cycle."""
    before: dict[Node, set[Node]] = {child: set() for child in node.children()}
    for first, second in sides:
        before[second].add(first)
    sorter = TopologicalSorter(before)
    try:
        sorter.prepare()
    except CycleError:
        return None
    members: list[Node] = []
    ready: list[Node] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=place.__getitem__)
        members.append(ready.pop(0))
        sorter.done(members[-1])
    return members


Decision: TypeAlias = tuple[Hashable, bool]  # the decision, and whether the pair has it reversed
GIVEN: Hashable = "given"


class Pairs:
    """Decisions tied together in a union-find forest with parities: a link says equal or opposite."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Decision] = {}

    def fix(self, ways: Ways, order: Sequence[Leaf]) -> bool:
        """Require this order of the items; return False if it contradicts an earlier one.

        Cost: O(items * depth of the tree).
        """
        return all(self._tie((GIVEN, False), _decision(ways, *pair)) for pair in pairwise(order))

    def align(self, lists: Sequence[tuple[Ways, Sequence[Leaf]]]) -> bool:
        """Require one order for the items of all lists, which have one length; return False if that is contradictory.

        Cost: O(squares of the lengths * depth of the trees).
        """
        (ways, leaves), *others = lists
        for i, j in combinations(range(len(leaves)), 2):
            decision = _decision(ways, leaves[i], leaves[j])
            if not all(self._tie(decision, _decision(way, other[i], other[j])) for way, other in others):
                return False
        return True

    def _tie(self, one: Decision, other: Decision) -> bool:
        (root, turned), (root2, turned2) = self._find(one), self._find(other)
        if root == root2:
            return turned == turned2
        # `one` equals `other`, so their roots are equal if both have the same parity, and opposite if not.
        self._above[root2] = (root, turned != turned2)
        return True

    def _find(self, decision: Decision) -> Decision:
        what, turned = decision
        while what in self._above:
            what, opposite = self._above[what]
            turned ^= opposite
        return what, turned


def _decision(ways: Ways, left: Leaf, right: Leaf) -> Decision:
    node, first, second = ways.meet(left, right)
    is_turned = ways.place[first] > ways.place[second]
    if isinstance(node, QNode):
        return node, is_turned
    return ((second, first) if is_turned else (first, second)), is_turned
