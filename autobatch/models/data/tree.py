"""Binary trees with a label at every node, their one-line text format, and the actions of a parser that build them.

The format is that of the Stanford Sentiment Treebank, `(3 (2 good) (2 film))`. Trees may have any depth, as no function
recurses.

The actions are those of a shift-reduce parser.

`SHIFT` pushes the next word on a stack; `REDUCE` + l combines the two topmost elements to an inner node with label l.
Labels of leaves are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Generic, TypeVar

from autobatch.readers.brackets import escape

V = TypeVar("V")
W = TypeVar("W")


class Tree(Generic[W]):
    """A leaf with a `word`, or an inner node with `left` and `right`; each has a `label`.

    A word is a string as read, and an int after encoding by a `Vocabulary`. A label is a number or text (see
    `to_label`), an id after encoding, and None if not given. Reading `left` or `right` of a leaf, or `word` of an inner
    node, raises an AttributeError.

    >>> tree = Tree.inner(3, Tree.leaf(2, "good"), Tree.leaf(2, "film"))
    >>> tree
    (3 (2 good) (2 film))
    >>> tree.left.word, tree.is_leaf
    ('good', False)
    """

    __slots__ = ("is_leaf", "label", "left", "right", "word")

    label: Any
    is_leaf: bool
    word: W
    left: Tree[W]
    right: Tree[W]

    @classmethod
    def leaf(cls, label: Any, word: W) -> Tree[W]:
        """Make a leaf."""
        tree = cls()
        tree.label, tree.word, tree.is_leaf = label, word, True
        return tree

    @classmethod
    def inner(cls, label: Any, left: Tree[W], right: Tree[W]) -> Tree[W]:
        """Make a node over two trees."""
        tree = cls()
        tree.label, tree.left, tree.right, tree.is_leaf = label, left, right, False
        return tree

    def postorder(self) -> Iterator[Tree[W]]:
        """Visit every node once, children before their parent and left before right."""
        waiting: list[Tree[W]] = []
        parents_first: list[Tree[W]] = []
        tree = self
        while True:
            parents_first.append(tree)
            if not tree.is_leaf:
                # The right child comes next, so the list is the reverse of postorder.
                waiting.append(tree.left)
                tree = tree.right
            elif waiting:
                tree = waiting.pop()
            else:
                return reversed(parents_first)

    def fold(self, leaf: Callable[[W], V], merge: Callable[[V, V], V]) -> Iterator[tuple[Tree[W], V]]:
        """Compute a value for every node from its word or its children's values; yield each node with its value.

        Nodes come in postorder, the root last. Does not recurse, so any depth works.

        >>> tree = Tree.inner(3, Tree.leaf(2, "good"), Tree.leaf(2, "film"))
        >>> [length for _, length in tree.fold(len, lambda left, right: left + right)]
        [4, 4, 8]
        """
        waiting: list[V] = []
        for node in self.postorder():
            if node.is_leaf:
                value = leaf(node.word)
            else:
                right = waiting.pop()
                value = merge(waiting.pop(), right)
            waiting.append(value)
            yield node, value

    def words(self) -> list[W]:
        """List the leaves' words, from left to right."""
        return [tree.word for tree in self.postorder() if tree.is_leaf]

    def labels(self) -> Iterator[str]:
        """Return the labels of all labelled nodes, as text."""
        return (str(node.label) for node in self.postorder() if node.label is not None)

    def map(self, replace: Callable[[W], V], replace_label: Callable[[Any], Any] = lambda label: label) -> Tree[V]:
        """Copy the tree with other words and labels; missing labels stay missing."""
        done: list[Tree[V]] = []
        for node in self.postorder():
            label = None if node.label is None else replace_label(node.label)
            if node.is_leaf:
                done.append(Tree.leaf(label, replace(node.word)))
            else:
                right, left = done.pop(), done.pop()
                done.append(Tree.inner(label, left, right))
        return done[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return _outline(self) == _outline(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts: list[str] = []
        waiting: list[Tree[W] | str] = [self]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                parts.append(item)
            elif item.is_leaf:
                parts.append(f"({_prefix(item.label)}{escape(item.word)})")
            else:
                parts.append(f"({_prefix(item.label)}")
                waiting += (")", item.right, " ", item.left)
        return "".join(parts)


def _prefix(label: object) -> str:
    return "" if label is None else f"{label} "


def _outline(tree: Tree[W]) -> list[tuple[Any, bool, W | None]]:
    """List label, kind and word in postorder; equal lists mean equal trees."""
    return [(node.label, node.is_leaf, node.word if node.is_leaf else None) for node in tree.postorder()]


SHIFT, REDUCE = 0, 1


def actions_of(tree: Tree[int]) -> list[int]:
    """List the actions that build a tree, children first.

    >>> actions_of(Tree.inner(3, Tree.leaf(0, 7), Tree.leaf(0, 8)))
    [0, 0, 4]
    """
    return [SHIFT if node.is_leaf else REDUCE + node.label for node in tree.postorder()]


def brackets_in(tree: Tree[int]) -> set[tuple[int, int, int]]:
    """Collect the inner nodes of a tree as `brackets_of` does; labels without an action are allowed.

    >>> brackets_in(Tree.inner(3, Tree.leaf(0, 7), Tree.leaf(0, 8)))
    {(3, 0, 1)}
    """
    places = count()
    spans = tree.fold(lambda word: (place := next(places), place), lambda left, right: (left[0], right[1]))
    return {(node.label, *span) for node, span in spans if not node.is_leaf}


def brackets_of(actions: Sequence[int]) -> set[tuple[int, int, int]]:
    """Collect the label, the first and the last word of each inner node that actions build.

    >>> brackets_of([0, 0, 4])
    {(3, 0, 1)}
    """
    brackets, firsts, n_shifted = set(), list[int](), 0
    for action in actions:
        if action == SHIFT:
            firsts.append(n_shifted)
            n_shifted += 1
        else:
            # `firsts` has the first word of each element on the stack; the joined element keeps that of the left one.
            firsts.pop()
            brackets.add((action - REDUCE, firsts[-1], n_shifted - 1))
    return brackets


def write_tree(actions: Sequence[int], words: Sequence[str], labels: Sequence[str]) -> str:
    """Write the tree that actions build from words; leaves have no labels.

    >>> write_tree([0, 0, 2], ["good", "film"], ["NP", "S"])
    '(S good film)'
    """
    left, done = iter(words), list[str]()
    for action in actions:
        if action == SHIFT:
            done.append(escape(next(left)))
        else:
            right = done.pop()
            done.append(f"({labels[action - REDUCE]} {done.pop()} {right})")
    return done[0]
