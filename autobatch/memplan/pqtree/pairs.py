"""Detect contradictory demands on the order of pairs of items, without trying orders.

The order of two items is decided at the deepest node above both (`Ways.meet`). A Q-node decides all its pairs at once,
a P-node each pair of its children separately. Lists whose items must have one order tie decisions together, as equal or
as opposite; lists in fixed order tie decisions to a constant. If a decision is tied to its own opposite, no order
exists. This test is necessary, not sufficient: the decisions at a P-node must also form an order of its children, which
takes a search to find.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations, pairwise
from typing import TypeAlias

from autobatch.memplan.pqtree.node import Leaf, QNode
from autobatch.memplan.pqtree.ways import Ways

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
