"""Actions of a shift-reduce parser that build a labelled binary tree of a text.

`SHIFT` pushes the next word on a stack; `REDUCE` + l combines the two topmost elements to an inner node with label l.
Labels of leaves are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from autobatch.models.data.tree import Tree
from autobatch.readers.brackets import escape

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
