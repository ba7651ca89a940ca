"""Pairs of items that come in one order, or in opposite ones: whether any order can serve, found without trying.

Which of two items comes first is decided at the deepest node above both (`Ways.meet`). A Q-node decides all its pairs
at once, a P-node each pair of its children by itself. So lists that shall have their items in one order tie decisions
together, as equal or as opposite, and fixed lists tie them to what is given. A decision that is tied to its own
opposite refuses all orders. That is necessary, not sufficient: decisions at a P-node must also make an order of its
children, which only a search tells.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations, pairwise
from typing import TypeAlias

from autobatch.memplan.pqtree.node import Leaf, QNode
from autobatch.memplan.pqtree.ways import Ways

Decision: TypeAlias = tuple[Hashable, bool]  # what is decided, and whether the pair has it the other way round
GIVEN: Hashable = "given"


class Pairs:
    """Decisions tied together, in a forest with parities: each knows one that it equals, or is the opposite of."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Decision] = {}

    def fix(self, ways: Ways, order: Sequence[Leaf]) -> bool:
        """Have the items in this order; False if that cannot be. Cost: O(items * depth of the tree)."""
        return all(self._tie((GIVEN, False), _decision(ways, *pair)) for pair in pairwise(order))

    def align(self, lists: Sequence[tuple[Ways, Sequence[Leaf]]]) -> bool:
        """Have the items of all lists, which are of one length, in one order; False if that cannot be.

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
    """What decides whether `left` comes first."""
    node, first, second = ways.meet(left, right)
    is_turned = ways.place[first] > ways.place[second]
    if isinstance(node, QNode):
        return node, is_turned
    return ((second, first) if is_turned else (first, second)), is_turned
