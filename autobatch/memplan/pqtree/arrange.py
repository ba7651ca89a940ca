"""Choose, among the orders that a PQ-tree permits, one that keeps several lists of items in their order at once.

The order of two items is decided at the deepest node above both, by the order of two of its children. The lists must
not require both directions of a Q-node, or a cycle among the children of a P-node; then each node is arranged on its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from autobatch.memplan.pqtree.node import Leaf, Node, PNode, QNode
from autobatch.memplan.pqtree.ways import Ways


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
