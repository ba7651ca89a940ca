r"""Ordered trees with any number of children, each with a text that describes it: of a file, or random commands.

A line of a file has the text and its tree, separated by a tab:

    twice hop turn\t(do (twice (hop lift land)) (turn left))

A node is its label, or its label and children in brackets. Labels contain neither blanks nor brackets. Trees may have
any depth, as no function recurses. If answers are not required, a line may contain only the text.

A random command is a few words, and its tree the robot actions that they describe: one to three actions, which become
the children of "do". Each action stands for a fixed small tree, and may follow an adverb that becomes its parent.
Siblings with the same label have the same children, because a network that only knows the labels above a node could not
distinguish them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from autobatch.readers.lines import Line, parse_lines

V = TypeVar("V")
W = TypeVar("W")

_TOKEN = re.compile(r"[^ \t()]+|[()]")
_EXAMPLE = "such as (turn left)"


class OrderedTree(Generic[W]):
    """A node with a `label` and a list of `children`: labels are strings as read, ints after encoding.

    >>> tree = OrderedTree("turn", [OrderedTree("left")])
    >>> tree
    (turn left)
    >>> [node.label for node in tree.preorder()]
    ['turn', 'left']
    """

    __slots__ = ("children", "label")

    def __init__(self, label: W, children: list[OrderedTree[W]] | None = None) -> None:
        self.label, self.children = label, children or []

    def preorder(self) -> Iterator[OrderedTree[W]]:
        """Visit every node once, parents before their children and children in order."""
        waiting = [self]
        while waiting:
            tree = waiting.pop()
            yield tree
            waiting += reversed(tree.children)

    def edges(self) -> list[tuple[W, W]]:
        """List the edges as pairs of the labels of a node and its child.

        >>> OrderedTree("turn", [OrderedTree("left"), OrderedTree("left")]).edges()
        [('turn', 'left'), ('turn', 'left')]
        """
        return [(node.label, child.label) for node in self.preorder() for child in node.children]

    def map(self, replace: Callable[[W], V]) -> OrderedTree[V]:
        """Copy the tree with other labels.

        >>> OrderedTree("turn", [OrderedTree("left")]).map(len)
        (4 4)
        """
        root = OrderedTree(replace(self.label))
        waiting = [(self, root)]
        while waiting:
            tree, copy = waiting.pop()
            copy.children = [OrderedTree(replace(child.label)) for child in tree.children]
            waiting += zip(tree.children, copy.children, strict=True)
        return root

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OrderedTree):
            return NotImplemented
        return _outline(self) == _outline(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts: list[str] = []
        waiting: list[OrderedTree[W] | str] = [self]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                parts.append(item)
            elif item.children:
                parts.append(f"({item.label}")
                waiting.append(")")
                for child in reversed(item.children):
                    waiting += (child, " ")
            else:
                parts.append(str(item.label))
        return "".join(parts)


@dataclass(frozen=True)
class DescribedTree(Generic[W]):
    """A text and the `OrderedTree` that it describes; None if not given."""

    words: list[W]
    tree: Any


def read_described_trees(path: Path, answered: bool = True) -> list[DescribedTree[str]]:
    """Read every text of a file, with its tree.

    Args:
        path: a UTF-8 text file, a text, a tab and a tree in each line; blank lines are skipped.
        answered: whether every text must have a tree.

    Raises:
        DataError: the file cannot be read, holds no tree, or a line is malformed; names file, line and column.
    """
    parse = partial(parse_described_tree, answered=answered)
    return parse_lines(path, "texts with trees", parse, "one per line, separated by a tab", blank=" ")


def parse_described_tree(line: Line, answered: bool = True) -> DescribedTree[str]:
    """Read a text and its tree, which is optional unless `answered`.

    Raises:
        DataError: malformed text; the message has the place, the column, and the expected and actual text.

    >>> parse_described_tree(Line(Path("x.txt"), 1, "turn around\\t(turn left left)")).tree.children
    [left, left]
    """
    tab = line.text.find("\t")
    if tab < 0 and answered:
        raise line.fault("a tree", len(line.text), "a text, a tab and a tree")
    words = [word for word in line.text.partition("\t")[0].split(" ") if word]
    if not answered and (tab < 0 or not line.text[tab:].strip(" \t")):
        return DescribedTree(words, None)
    return DescribedTree(words, _parse_tree(line, tab + 1))


def _parse_tree(line: Line, start: int) -> OrderedTree[str]:
    """Read the tree from position `start` to the end of a line."""
    # A node above the tree, so that every node, including the root, is a child of the last open one.
    root: OrderedTree[str] = OrderedTree("")
    open_nodes, after_bracket = [root], False
    for token in _TOKEN.finditer(line.text, start):
        word, is_whole = token[0], len(open_nodes) == 1 and bool(root.children)
        if after_bracket and word in "()":
            raise line.fault("a tree", token.start(), f"a label after '(', {_EXAMPLE}")
        if is_whole and not after_bracket:
            raise line.fault("a tree", token.start(), "the end of the line after a whole tree")
        if word == ")" and len(open_nodes) == 1:
            raise line.fault("a tree", token.start(), f"a label or '(', {_EXAMPLE}")
        if word == ")":
            open_nodes.pop()
        elif word != "(":
            node = OrderedTree(word)
            open_nodes[-1].children.append(node)
            open_nodes += [node] if after_bracket else []
        after_bracket = word == "("
    end = len(line.text)
    if after_bracket:
        raise line.fault("a tree", end, f"a label after '(', {_EXAMPLE}")
    if len(open_nodes) > 1:
        raise line.fault("a tree", end, "')' after the children of a node")
    if not root.children:
        raise line.fault("a tree", end, f"a tree, {_EXAMPLE}")
    return root.children[0]


def _outline(tree: OrderedTree[W]) -> list[tuple[W, int]]:
    """List labels and numbers of children, parents first; equal lists mean equal trees."""
    return [(node.label, len(node.children)) for node in tree.preorder()]


ROOT = "do"
ADVERBS = ("twice", "slowly", "backwards")
ACTIONS: dict[str, list[str | tuple[str, str]]] = {
    "hop": ["bend", "rise"],
    "salute": [("raise", "arm"), "nod"],
    "wait": [],
    "turn": ["left"],
    "dance": ["left", ("raise", "leg"), "right"],
    "fetch": [("go", "there"), ("take", "ball"), ("come", "back")],
    "bow": [("bend", "head")],
    "leave": ["right", ("go", "there")],
}
"""The children of each action: labels, or a label with the label of its only child."""


def draw_commands(n_commands: int, rng: np.random.Generator) -> list[DescribedTree[str]]:
    """Draw commands of 1 to 3 actions, with their trees.

    Returns:
        Commands of about 3 words on average, and trees of about 9 nodes.

    >>> draw_commands(1, np.random.default_rng(1))[0].tree
    (do (salute (raise arm) nod))
    """
    return [_draw_command(rng) for _ in range(n_commands)]


def _draw_command(rng: np.random.Generator) -> DescribedTree[str]:
    words: list[str] = []
    trees = []
    adverbs = rng.permutation(ADVERBS).tolist()  # each once: siblings with one label need equal children
    for _ in range(rng.integers(1, len(ADVERBS), endpoint=True)):
        action = list(ACTIONS)[rng.integers(len(ACTIONS))]
        parts = [OrderedTree(*_split(part)) for part in ACTIONS[action]]
        tree = OrderedTree(action, parts)
        if rng.random() < 0.4:
            adverb = adverbs.pop()
            words.append(adverb)
            tree = OrderedTree(adverb, [tree])
        words.append(action)
        trees.append(tree)
    return DescribedTree(words, OrderedTree(ROOT, trees))


def _split(part: str | tuple[str, str]) -> tuple[str, list[OrderedTree[str]]]:
    label, *below = (part,) if isinstance(part, str) else part
    return label, [OrderedTree(word) for word in below]
