"""Draw nested list operations, such as [MAX 2 9 [MIN 4 7] 0], as binary trees for tree models.

`[MAX 2 9]` becomes `((MAX 2) 9)`: operators and digits are leaves, and every inner node adds an argument to an
operation. The label of a node, 0 to 9, is the value of its subtree: a digit is itself, `(MAX 2)` is 2, `((MAX 2) 9)` is
9. The label of an operator is 0.

Operations: MAX, MIN, MED (median; of an even number, the mean of the middle two, rounded down), SUM_MOD (sum modulo
10). Source: Nangia and Bowman 2018, ListOps: a diagnostic dataset for latent tree learning (arXiv:1804.06028). As
there, operations have 2 to 5 arguments, but they are nested less deeply, to be learned in minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.models.data.labelled_tree import LabelledTree
from autobatch.models.data.tree import Tree

N_CLASSES = 10


def draw_trees(
    n_trees: int, rng: np.random.Generator, *, max_depth: int = 4, max_arguments: int = 5, nesting: float = 0.3
) -> list[Tree[str]]:
    """Draw expressions.

    Args:
        n_trees: number of expressions.
        rng: draws all choices.
        max_depth: largest number of operations on a path from the root; 1 for no nesting.
        max_arguments: largest number of arguments; numbers from 2 on are equally likely.
        nesting: the probability that an argument is itself an operation, if depth allows; otherwise it is a digit.

    Returns:
        Trees of about 31 nodes on average, by default, with words such as "MAX" and "7".

    >>> draw_trees(1, np.random.default_rng(1), max_depth=1)
    [(0 (0 (7 (7 (0 MIN) (7 7)) (9 9)) (0 0)) (1 1))]
    """
    return [_draw_operation(rng, max_depth, max_arguments, nesting)[0] for _ in range(n_trees)]


def draw_operations(n_trees: int, rng: np.random.Generator, **bounds: Any) -> list[LabelledTree[str]]:
    """Draw the same expressions as trees with all arguments as children of their operator; only operators have labels.

    Args:
        n_trees: number of expressions.
        rng: draws all choices.
        bounds: `max_depth`, `max_arguments` and `nesting`, as for `draw_trees`.

    Returns:
        Trees of about 16 nodes on average, by default.

    >>> draw_operations(1, np.random.default_rng(11), max_depth=1, max_arguments=2)
    [{"word": "MAX", "label": "7", "children": [{"word": "1"}, {"word": "7"}]}]
    """
    return [_unfold(tree) for tree in draw_trees(n_trees, rng, **bounds)]


def _unfold(tree: Tree[str]) -> LabelledTree[str]:
    arguments = []
    operation = tree
    while not operation.is_leaf:
        arguments.append(_unfold(operation.right))
        operation = operation.left
    return LabelledTree(operation.word, arguments[::-1], str(tree.label) if arguments else None)


def to_brackets(tree: Tree[str]) -> str:
    """Write an expression in the paper's notation.

    >>> to_brackets(draw_trees(1, np.random.default_rng(11), max_depth=2)[0])
    '[MAX 5 [MED 1 4 9]]'
    """
    arguments: list[str] = []
    while not tree.is_leaf:
        arguments.append(to_brackets(tree.right))
        tree = tree.left
    return f"[{' '.join([tree.word, *reversed(arguments)])}]" if arguments else tree.word


def _draw_operation(rng: np.random.Generator, depth: int, max_arguments: int, nesting: float) -> tuple[Tree[str], int]:
    """Draw an operation with up to `depth` operations on a path; return it with its value."""
    name = _NAMES[rng.integers(len(_NAMES))]
    tree: Tree[str] = Tree.leaf(0, name)
    values: list[int] = []
    for _ in range(rng.integers(2, max_arguments, endpoint=True)):
        if depth > 1 and rng.random() < nesting:
            argument, value = _draw_operation(rng, depth - 1, max_arguments, nesting)
        else:
            value = int(rng.integers(10))
            argument = Tree.leaf(value, str(value))
        values.append(value)
        tree = Tree.inner(OPERATIONS[name](values), tree, argument)
    return tree, tree.label


def _median(values: Sequence[int]) -> int:
    ordered, middle = sorted(values), len(values) // 2
    # `~middle` counts from the end: the same element if their number is odd, else the one below.
    return (ordered[middle] + ordered[~middle]) // 2


OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "MAX": max,
    "MIN": min,
    "MED": _median,
    "SUM_MOD": lambda values: sum(values) % 10,
}
_NAMES = tuple(OPERATIONS)
