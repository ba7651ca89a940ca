"""The nodes of a PQ-tree, their links, walks over them, and a check from the definition that they form a PQ-tree.

A P-node holds its children in a dictionary: their order is arbitrary, and a child is removed in constant time. A Q-node
refers only to its two endmost children. Every child of a Q-node refers to its siblings, in no order, so a Q-node is
reversed by exchanging its ends, and the children of one are spliced into another in constant time. `parent` is valid
for the root, for children of P-nodes and for endmost children of Q-nodes. Inside a Q-node it may be out of date; a
reduction finds it again when needed (Booth and Lueker 1976, section 3). Walks are iterative, because a tree may be as
deep as its number of items.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import pairwise

from autobatch.errors import PlanError

UNMARKED, QUEUED, BLOCKED, UNBLOCKED = range(4)  # the state of a node during bubbling up
PARTIAL, FULL = 1, 2  # labels of pertinent nodes during one reduction; other nodes are empty


class Node:
    """A leaf, a P-node or a Q-node.

    A child of a Q-node has two siblings, in no order, or one if it is endmost; other nodes have no siblings.
    """

    __slots__ = ("label", "mark", "parent", "sib_a", "sib_b")

    def __init__(self) -> None:
        self.parent: Branch | None = None
        self.sib_a: Node | None = None
        self.sib_b: Node | None = None
        self.mark = UNMARKED
        self.label = FULL  # of leaves; a reduction labels the pertinent branches before it reads their labels

    def other_sibling(self, sibling: Node | None) -> Node | None:
        """Return the sibling on the side opposite to `sibling`."""
        return self.sib_b if self.sib_a is sibling else self.sib_a

    def put_sibling(self, old: Node | None, new: Node | None) -> None:
        """Replace the sibling `old` by `new`; None stands for no sibling."""
        if self.sib_a is old:
            self.sib_a = new
        else:
            self.sib_b = new


class Leaf(Node):
    """One item."""

    __slots__ = ("item",)

    def __init__(self, item: Hashable) -> None:
        super().__init__()
        self.item = item


class Branch(Node):
    """A P-node or a Q-node, with the notes of one reduction about its children."""

    __slots__ = ("partial", "pertinent")

    def __init__(self) -> None:
        super().__init__()
        self.pertinent: list[Node] = []
        self.partial: list[QNode] = []

    def children(self) -> list[Node]:
        """Return the children in the order of the frontier. Cost: O(children)."""
        raise NotImplementedError

    def reverse(self) -> None:
        raise NotImplementedError


class PNode(Branch):
    """Children that may be permuted in any way: two or more (none in a tree without items)."""

    __slots__ = ("members",)

    def __init__(self, members: list[Node]) -> None:
        super().__init__()
        self.members = dict.fromkeys(members)
        for child in members:
            child.parent, child.sib_a, child.sib_b = self, None, None

    def children(self) -> list[Node]:
        return list(self.members)

    def reverse(self) -> None:
        self.members = dict.fromkeys(reversed(self.members))


class QNode(Branch):
    """Children whose order may be reversed and is fixed otherwise: three or more, fewer only within a reduction."""

    __slots__ = ("first", "last")

    def __init__(self, children: list[Node]) -> None:
        super().__init__()
        self.first = self.last = children[0]
        self.first.parent, self.first.sib_a, self.first.sib_b = self, None, None
        for child in children[1:]:
            self.append(child)

    def children(self) -> list[Node]:
        found: list[Node] = []
        before, node = None, self.first
        while True:
            found.append(node)
            after = node.other_sibling(before)
            if after is None:
                return found
            before, node = node, after

    def append(self, child: Node) -> None:
        child.parent, child.sib_a, child.sib_b = self, self.last, None
        self.last.put_sibling(None, child)
        self.last = child

    def prepend(self, child: Node) -> None:
        self.reverse()
        self.append(child)
        self.reverse()

    def reverse(self) -> None:
        self.first, self.last = self.last, self.first


def replace(old: Node, new: Node) -> None:
    """Put `new` in the place of `old`: same parent, same siblings, same mark. Cost: O(1)."""
    # The mark too: during a reduction it tells the siblings of a node that it is pertinent.
    new.parent, new.sib_a, new.sib_b, new.mark = old.parent, old.sib_a, old.sib_b, old.mark
    for sibling in (old.sib_a, old.sib_b):
        if sibling is not None:
            sibling.put_sibling(old, new)
    if old.sib_a is not None and old.sib_b is not None:
        return  # inside a Q-node, where `parent` may be out of date
    match old.parent:
        case PNode() as parent:
            del parent.members[old]
            parent.members[new] = None
        case QNode() as parent if parent.first is old:
            parent.first = new
        case QNode() as parent:
            parent.last = new


def walk(root: Node) -> list[tuple[Node, list[Node]]]:
    """Return every node with its children in order: a node before its children, and left before right.

    Cost: O(nodes).
    """
    found: list[tuple[Node, list[Node]]] = []
    stack = [root]
    while stack:
        node = stack.pop()
        children = node.children() if isinstance(node, Branch) else []
        found.append((node, children))
        stack += children[::-1]
    return found


def leaves_below(root: Node) -> list[Leaf]:
    """Return the leaves from left to right. Cost: O(nodes)."""
    return [node for node, _ in walk(root) if isinstance(node, Leaf)]


def branches_below(root: Node) -> list[tuple[Branch, list[Node]]]:
    """Return every P- and Q-node with its children in order: a node after its descendants. Cost: O(nodes)."""
    return [(node, children) for node, children in walk(root) if isinstance(node, Branch)][::-1]


def rebuild(root: Node, only: set[Hashable] | None = None) -> Node | None:
    """Copy the tree below `root`, with all its items or those in `only`.

    The remaining items keep all the orders that they had: a node left with one child is replaced by that child, and a
    Q-node left with two becomes a P-node.

    Returns:
        The new root; None if no item is left.

    Cost: O(nodes).
    """
    made: dict[Node, Node] = {}
    for node, children in reversed(walk(root)):
        if isinstance(node, Leaf):
            if only is None or node.item in only:
                made[node] = Leaf(node.item)
            continue
        kept = [made[child] for child in children if child in made]
        if len(kept) == 1:
            made[node] = kept[0]
        elif kept:
            made[node] = QNode(kept) if isinstance(node, QNode) and len(kept) > 2 else PNode(kept)
    return made.get(root)


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
