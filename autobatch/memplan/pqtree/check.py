"""Check from the definition that linked nodes form a PQ-tree."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import pairwise

from autobatch.errors import PlanError
from autobatch.memplan.pqtree.node import UNMARKED, Leaf, Node, PNode, QNode, walk


def check_nodes(root: Node, leaves: Mapping[Hashable, Leaf]) -> None:
    """Check the tree below `root`, which must have these leaves, by item.

    Raises:
        PlanError: a leaf is missing or repeated; a P-node has one child, or a Q-node fewer than three; a child has a
            wrong parent or wrong siblings; or a reduction left a mark behind.

    Cost: O(nodes).
    """
    if root.parent is not None or root.sib_a is not None or root.sib_b is not None:
        _fail("its root must have no parent and no siblings")
    met: list[Leaf] = []
    for node, children in walk(root):
        if node.mark != UNMARKED:
            _fail("a reduction left a mark behind")
        if isinstance(node, Leaf):
            met.append(node)
        elif isinstance(node, PNode):
            _check_p(node, children, may_be_empty=not leaves)
        elif isinstance(node, QNode):
            _check_q(node, children)
    if len(met) != len(leaves) or any(leaves.get(leaf.item) is not leaf for leaf in met):
        _fail(f"it must have one leaf for each of {list(leaves)}, got {[leaf.item for leaf in met]}")


def _check_p(node: PNode, children: list[Node], *, may_be_empty: bool) -> None:
    if len(children) < 2 and not (may_be_empty and not children):
        _fail(f"a P-node must have two or more children, got {len(children)}")
    if any(child.parent is not node or child.sib_a is not None or child.sib_b is not None for child in children):
        _fail("a child of a P-node has another parent, or a sibling")


def _check_q(node: QNode, children: list[Node]) -> None:
    if len(children) < 3:
        _fail(f"a Q-node must have three or more children, got {len(children)}")
    if children[0].parent is not node or children[-1].parent is not node:
        _fail("an endmost child of a Q-node has another parent")
    if children[-1] is not node.last:
        _fail("the children of a Q-node do not lead from its first to its last")
    siblings = [set[Node | None]() for _ in children]
    for (left, right), (left_child, right_child) in zip(pairwise(siblings), pairwise(children), strict=True):
        left.add(right_child)
        right.add(left_child)
    siblings[0].add(None)
    siblings[-1].add(None)
    if any({child.sib_a, child.sib_b} != known for child, known in zip(children, siblings, strict=True)):
        _fail("a child of a Q-node does not know its siblings")


def _fail(what: str) -> None:
    raise PlanError(f"checking a PQ-tree: {what}; this is a bug in autobatch; please report it.")
