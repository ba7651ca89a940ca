"""Print PQ-trees: as a line of text, an indented picture, Graphviz, and an image."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from autobatch.errors import PlanError
from autobatch.memplan.pqtree.node import Branch, Leaf, Node, PNode, branches_below, leaves_below, walk
from autobatch.release import pip_install

INCHES_PER_LEAF, INCHES_PER_LEVEL = 0.5, 0.6


def to_text(root: Node) -> str:
    """Format the tree as text: P-nodes in round brackets, Q-nodes in square ones."""
    parts: list[str] = []
    stack: list[Node | str] = [root]
    while stack:
        part = stack.pop()
        if isinstance(part, Branch):
            opening, closing = "()" if isinstance(part, PNode) else "[]"
            children = part.children()
            stack.append(closing)
            for child in reversed(children):
                stack += [child, " "] if child is not children[0] else [child]
            part = opening
        parts.append(part if isinstance(part, str) else name(part))
    return "".join(parts)


def to_picture(root: Node) -> str:
    """Format the tree as a line for each node, with its children indented."""
    lines: list[str] = []
    stack = [(root, "", "")]
    while stack:
        node, before, below = stack.pop()
        lines.append(before + name(node))
        children = node.children() if isinstance(node, Branch) else []
        stack += [
            (child, below + "└─ ", below + "   ") if child is children[-1] else (child, below + "├─ ", below + "│  ")
            for child in reversed(children)
        ]
    return "\n".join(lines)


def to_dot(root: Node) -> str:
    """Format the tree as a Graphviz digraph, children from left to right."""
    number = {node: at for at, (node, _) in enumerate(walk(root))}
    nodes = [f"  n{at} [shape={_shape(node)}, label={json.dumps(name(node))}];" for node, at in number.items()]
    edges = [f"  n{number[node]} -> n{number[child]};" for node, children in walk(root) for child in children]
    return "\n".join(["digraph {", "  graph [ordering=out];", "  edge [dir=none];", *nodes, *edges, "}"])


def name(node: Node) -> str:
    """Return the name of a node: the item of a leaf, P or Q."""
    if isinstance(node, Leaf):
        return str(node.item)
    return "P" if isinstance(node, PNode) else "Q"


def _shape(node: Node) -> str:
    if isinstance(node, Leaf):
        return "plaintext"
    return "circle" if isinstance(node, PNode) else "box"


def plot(root: Node, path: Path) -> None:
    """Draw leaves in a row, and every node above the middle of its children; P-nodes round, Q-nodes square."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise PlanError(
            f"drawing a PQ-tree to {path}: matplotlib is not installed; {pip_install('plot')}, "
            "or use `picture` or `to_dot`."
        ) from None
    x: dict[Node, float] = {leaf: float(at) for at, leaf in enumerate(leaves_below(root))}
    level: dict[Node, int] = dict.fromkeys(x, 0)
    lines: list[tuple[Branch, Node]] = []
    for node, children in branches_below(root):
        x[node] = sum(x[child] for child in children) / max(len(children), 1)
        level[node] = 1 + max((level[child] for child in children), default=0)
        lines += [(node, child) for child in children]
    width, height = max(x.values()) + 2, level[root] + 2
    figure = figures.Figure(figsize=(width * INCHES_PER_LEAF, height * INCHES_PER_LEVEL))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-1, width - 1), ylim=(-1, height - 1))
    axes.set_axis_off()
    for parent, child in lines:
        axes.plot([x[parent], x[child]], [level[parent], level[child]], color="gray", zorder=1)
    for drawn, at in x.items():
        box = "circle" if isinstance(drawn, PNode) else "square"
        frame = {"boxstyle": box, "facecolor": "white", "edgecolor": "white" if isinstance(drawn, Leaf) else "black"}
        axes.text(at, level[drawn], name(drawn), ha="center", va="center", bbox=frame, zorder=2, parse_math=False)
    figure.savefig(path)
