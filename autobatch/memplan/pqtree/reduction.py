"""Reduce a PQ-tree by a set: bubbling up, then the templates of Booth and Lueker (1976), section 3.

Bubbling up (procedure BUBBLE) finds the part of the tree that a reduction concerns.

The parent of a child inside a Q-node is unknown. Such a node is *blocked* until its parent is known, and then
*unblocked*. An endmost child knows its parent; an inner one gets it from an unblocked sibling. A run of blocked
siblings is a block.

A template is a pattern of a node's children, and their replacement.

A reduction makes the leaves of a set S consecutive. A node is *full* when all leaves below it are in S, *empty* when
none is, else *partial*; it is *pertinent* when it is not empty. The *root* is the deepest node that has all of S below
it. Templates are applied from the leaves up to the root; below the root, a partial node becomes a Q-node with its empty
children at one end and its full ones at the other, which its parent then absorbs. A template fits by the labels of the
children only, so all nodes are matched first, and replaced afterwards: a rejected set leaves the tree unchanged. (The
paper does both at each node.) In the pictures below, e is an empty child, f a full one; P-nodes are (round), Q-nodes
[square]. L1, the template for leaves, labels a leaf in S as full; leaves are made with this label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from autobatch.memplan.pqtree.node import (
    BLOCKED,
    FULL,
    PARTIAL,
    QUEUED,
    UNBLOCKED,
    UNMARKED,
    Branch,
    Leaf,
    Node,
    PNode,
    QNode,
    replace,
)

Template = Callable[[Any], Node]  # replaces a P- or a Q-node, and returns the replacement


class Match(NamedTuple):
    """A pertinent node, and the template that fits it."""

    node: Branch
    template: Template


def match_all(branches: list[Branch]) -> list[Match] | None:
    """Match pertinent nodes to templates, descendants first, the root last.

    Returns:
        A match for each; None if one fits no template, so that S cannot be consecutive.

    Cost: O(nodes + their pertinent children).
    """
    matches: list[Match] = []
    for node in branches:
        template = match(node, is_root=node is branches[-1])
        if template is None:
            return None
        matches.append(Match(node, template))
    return matches


def apply_all(matches: list[Match], visited: list[Node]) -> Node:
    """Replace all matched nodes; add new nodes to `visited`, because they inherit marks.

    Returns:
        The node in the place of the root.

    Cost: O(nodes + their pertinent children).
    """
    for node, template in matches:
        parent = node.parent  # read first, because the template may put `node` below its replacement
        replaced = template(node)
        visited.append(replaced)
        # `pertinent` keeps the matched nodes, whose labels templates read; the replacements are in `partial`.
        if node.label == PARTIAL and node is not matches[-1].node:
            assert parent is not None
            assert isinstance(replaced, QNode)
            parent.partial.append(replaced)
    return replaced


def changes_anything(matches: list[Match]) -> bool:
    """Return whether the reduction excludes any order: not if S is already consecutive in all permitted orders."""
    node, template = matches[-1]
    if template in (template_p1, template_q1):
        return False
    # A Q-node keeps a run of full children together anyway; only dissolving partial ones excludes orders.
    return isinstance(node, PNode) or any(child.label == PARTIAL for child in node.pertinent)


def match(node: Branch, *, is_root: bool) -> Template | None:
    """Choose the template that fits a node whose pertinent children are labelled, and label the node.

    Returns:
        The template; None if S cannot be consecutive.

    Cost: O(pertinent children).
    """
    node.partial = []
    partial = [child for child in node.pertinent if child.label == PARTIAL]
    if isinstance(node, PNode):
        template = _match_p(node, len(partial), is_root)
    else:
        assert isinstance(node, QNode)
        template = _match_q(node, partial, is_root)
    node.label = FULL if template in (template_p1, template_q1) else PARTIAL
    return template


def _match_p(node: PNode, n_partial: int, is_root: bool) -> Template | None:
    if len(node.pertinent) == len(node.members) and n_partial == 0:
        return template_p1
    if n_partial > (2 if is_root else 1):
        return None
    return ((template_p2, template_p4, template_p6) if is_root else (template_p3, template_p5))[n_partial]


def _match_q(node: QNode, partial: list[Node], is_root: bool) -> Template | None:
    ends = _ends_of_run(node.pertinent)
    if ends is None or any(child not in ends for child in partial):
        return None
    endmost = [end for end in ends if end is node.first or end is node.last]
    # A single pertinent child is both ends of its run.
    if not partial and len(endmost) == 2 and endmost[0] is not endmost[1]:
        return template_q1
    # Next to other pertinent children, a partial child has its empty end outside; a single one can be reversed.
    outer = [end for end in endmost if end not in partial or len(node.pertinent) == 1]
    if len(partial) < 2 and outer:
        return template_q2
    return template_q3 if is_root else None


def _ends_of_run(pertinent: list[Node]) -> tuple[Node, Node] | None:
    """Return the two ends of the run that the given siblings form; None if they do not form one run."""
    n_found = 1
    ends: list[Node] = []
    for sibling in (pertinent[0].sib_a, pertinent[0].sib_b):
        end = pertinent[0]
        while sibling is not None and sibling.mark != UNMARKED:
            end, sibling = sibling, sibling.other_sibling(end)
            n_found += 1
        ends.append(end)
    return (ends[0], ends[1]) if n_found == len(pertinent) else None


def template_p1(node: PNode) -> Node:
    """Keep a P-node with full children only, which is full: `(f f f)` stays."""
    return node


def template_p2(node: PNode) -> Node:
    """Move the full children of the root, a P-node without partial children, to a new P-node.

    `(e e f f)` becomes `(e e (f f))`.
    """
    full = _take_full(node)
    assert full is not None
    node.members[full] = None
    full.parent = node
    return node


def template_p3(node: PNode) -> Node:
    """Turn a P-node below the root, without partial children, into a Q-node of its empty and its full children.

    `(e e f f)` becomes `[(e e) (f f)]`.
    """
    full = _take_full(node)
    assert full is not None
    partial = QNode([full])
    replace(node, partial)
    partial.prepend(_shrunk(node))
    return partial


def template_p4(node: PNode) -> Node:
    """Move the full children of the root, a P-node with one partial child, to the full end of that child.

    `(e e [e f] f f)` becomes `(e e [e f (f f)])`.
    """
    (partial,) = node.partial
    full = _take_full(node)
    if full is not None:
        partial.append(full)
    return _without_single_child(node)


def template_p5(node: PNode) -> Node:
    """Replace a P-node below the root with one partial child by that child, adding empty and full ones at its ends.

    `(e e [e f] f f)` becomes `[(e e) e f (f f)]`.
    """
    (partial,) = node.partial
    full = _take_full(node)
    if full is not None:
        partial.append(full)
    del node.members[partial]
    replace(node, partial)
    if node.members:
        partial.prepend(_shrunk(node))
    return partial


def template_p6(node: PNode) -> Node:
    """Join the two partial children of the root, a P-node, with its full children in the middle.

    `(e e [e f] f f [e f])` becomes `(e e [e f (f f) f e])`.
    """
    partial, second = node.partial
    full = _take_full(node)
    if full is not None:
        partial.append(full)
    del node.members[second]
    # Both children have their full end last, so `second` follows in reverse. Siblings have no order, so linking the
    # two ends does that in constant time; only the new endmost child must know its parent.
    partial.last.put_sibling(None, second.last)
    second.last.put_sibling(None, partial.last)
    partial.last = second.first
    partial.last.parent = partial
    return _without_single_child(node)


def template_q1(node: QNode) -> Node:
    """Keep a Q-node with full children only, which is full: `[f f f]` stays."""
    return node


def template_q2(node: QNode) -> Node:
    """Dissolve the partial child, if there is one, of a Q-node whose full children are at one end.

    `[e e [e f] f f]` becomes `[e e e f f f]`, its first child empty and its last one full.
    """
    # The parent's template expects the full end last (p4, p5, p6).
    first_is_full = node.first.mark != UNMARKED and node.first not in node.partial
    last_is_empty = node.last.mark == UNMARKED
    if first_is_full or last_is_empty:
        node.reverse()
    return template_q3(node)


def template_q3(node: QNode) -> Node:
    """Dissolve the partial children of the root, a Q-node, around its consecutive full children.

    `[e [e f] f f [e f] e]` becomes `[e e f f f f e e]`. The node may be a pseudonode: a run of children inside a Q-node
    whose ends were not searched for.
    """
    # Find the sides before any child is dissolved: the nodes that replace it may lack the marks that tell them apart.
    empty_sides = [_empty_side(child) for child in node.partial]
    for child, empty_side in zip(node.partial, empty_sides, strict=True):
        full_side = child.other_sibling(empty_side)
        _sew(node, child, child.first, empty_side)
        _sew(node, child, child.last, full_side)
    return node


def _empty_side(child: Node) -> Node | None:
    """Return the sibling next to the empty end of a partial child; None if that end is at the end of the parent."""
    if child.sib_a is not None and child.sib_a.mark != UNMARKED:
        return child.sib_b
    if child.sib_b is not None and child.sib_b.mark != UNMARKED:
        return child.sib_a
    return child.sib_a if child.sib_b is None else child.sib_b


def _sew(node: QNode, child: Node, end: Node, sibling: Node | None) -> None:
    """Put `end`, an endmost child of `child`, next to `sibling`; at the end of `node` if that is None."""
    end.parent = node
    if sibling is not None:
        end.put_sibling(None, sibling)
        sibling.put_sibling(child, end)
    elif node.first is child:
        node.first = end
    else:
        node.last = end


def _take_full(node: PNode) -> Node | None:
    """Remove the full children of a node; return None, the only one, or a new P-node of them."""
    full = [child for child in node.pertinent if child.label == FULL]
    for child in full:
        del node.members[child]
    if len(full) < 2:
        return full[0] if full else None
    return PNode(full)


def _shrunk(node: PNode) -> Node:
    """Return the replacement of a P-node that lost children: the node itself, or its only child."""
    return node if len(node.members) > 1 else next(iter(node.members))


def _without_single_child(node: PNode) -> Node:
    """Replace a node by its child if it has only one."""
    left = _shrunk(node)
    if left is not node:
        replace(node, left)
    return left


def bubble(queue: list[Node]) -> Branch | None:
    """Climb from some leaves until one path upwards is left, listing in each node its pertinent children.

    If only a block is left, a pseudonode stands for the Q-node that contains the block. If blocks and other nodes are
    left, the leaves cannot be consecutive.

    Args:
        queue: two or more leaves; the visited nodes are added to it, with their marks.

    Returns:
        A node with all the leaves below it; None if they cannot be consecutive.

    Cost: O(leaves + pertinent subtree), amortized over reductions that succeed (Booth and Lueker 1976, section 4).
    """
    for node in queue:
        node.mark = QUEUED
    top: Branch | None = None
    n_open = len(queue)  # queued nodes, blocks, and the root of the whole tree once visited
    for node in queue:  # grows during the loop
        if n_open == 1:
            assert isinstance(node, Branch)
            return node
        sib_a, sib_b = node.sib_a, node.sib_b
        if sib_a is None or sib_b is None:
            parent = node.parent
        elif sib_a.mark == UNBLOCKED:
            parent = sib_a.parent
        elif sib_b.mark == UNBLOCKED:
            parent = sib_b.parent
        else:
            node.mark = BLOCKED
            # With the blocks beside it, the node is one block.
            n_open -= (sib_a.mark == BLOCKED) + (sib_b.mark == BLOCKED)
            continue
        node.mark = UNBLOCKED
        if parent is None:
            assert isinstance(node, Branch)
            top = node
            continue
        node.parent = parent
        if parent.mark == UNMARKED:
            parent.mark = QUEUED
            parent.pertinent = []
            # The parent takes the node's place among the open ones.
            queue.append(parent)
        else:
            n_open -= 1
        parent.pertinent.append(node)
        for sibling in (sib_a, sib_b):
            if sibling is not None and sibling.mark == BLOCKED:
                n_open -= 1
                _unblock(sibling, node, parent)
    if n_open > 1:
        return None
    return top if top is not None else _pseudonode([node for node in queue if node.mark == BLOCKED])


def _unblock(node: Node | None, before: Node, parent: Branch) -> None:
    """Set the parent of the block that begins with `node`, next to `before`."""
    while node is not None and node.mark == BLOCKED:
        node.mark = UNBLOCKED
        node.parent = parent
        parent.pertinent.append(node)
        before, node = node, node.other_sibling(before)


def _pseudonode(block: list[Node]) -> QNode:
    """Make a Q-node whose pertinent children are a block, without searching for its ends."""
    # The leaves stand for the unknown ends: no child of the block is endmost, so only q3 fits.
    pseudonode = QNode([Leaf(None), Leaf(None)])
    pseudonode.pertinent = block
    for node in block:
        node.parent = pseudonode
    return pseudonode


def pertinent_branches(top: Branch) -> list[Branch]:
    """Return the P- and Q-nodes of the pertinent subtree, descendants first; the root is the last.

    The root is the deepest node with all the leaves below it: the first on the way down from `top` that has more than
    one pertinent child.

    Cost: O(pertinent subtree + the path from `top`, which was visited on the way up).
    """
    root = top
    while len(root.pertinent) == 1 and isinstance(root.pertinent[0], Branch):
        root = root.pertinent[0]
    branches = [root]
    for node in branches:
        branches.extend([child for child in node.pertinent if isinstance(child, Branch)])
    return branches[::-1]
