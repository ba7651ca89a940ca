"""Count, list and choose among the orders that a PQ-tree permits, and list the constraints behind them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import pairwise, permutations
from math import factorial, prod

from autobatch.memplan.pqtree.node import Branch, Leaf, Node, PNode, QNode, branches_below, leaves_below, walk


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
