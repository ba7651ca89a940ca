"""Bubbling up: find the part of a PQ-tree that a reduction concerns (procedure BUBBLE of Booth and Lueker 1976).

The parent of a child inside a Q-node is unknown. Such a node is *blocked* until its parent is known, and then
*unblocked*. An endmost child knows its parent; an inner one gets it from an unblocked sibling. A run of blocked
siblings is a block.
"""

from __future__ import annotations

from autobatch.memplan.pqtree.node import BLOCKED, QUEUED, UNBLOCKED, UNMARKED, Branch, Leaf, Node, QNode


def bubble(queue: list[Node]) -> Branch | None:
    """Climb from some leaves until one path upwards is left, listing in each node its pertinent children.

    If only a block is left, a pseudonode stands for the Q-node that contains the block. If blocks and other nodes are
    left, the leaves cannot be consecutive.

    Args:
        queue: two or more leaves; the visited nodes are added to it, with their marks.

    Returns:
        A node with all the leaves below it; None if they cannot be consecutive.

    Cost: O(leaves + pertinent subtree), summed over reductions that succeed (Booth and Lueker 1976, section 4).
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
