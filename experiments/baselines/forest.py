"""Many trees as one forest: rows for their nodes, ordered in levels, by NumPy.

By height, a node's level is one above the higher of its children: leaves are the first level, and there are as few
levels as possible. By depth, the deepest come first and roots last: all children of a level's nodes are in the level
just before, which suits autograd, because a gradient then has the size of a level instead of the forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autobatch.models.data.tree import Tree

Ints: TypeAlias = npt.NDArray[np.int64]
LEFT, RIGHT, WORD, LABEL, HEIGHT, DEPTH = range(6)
NONE = -1


class Forest(NamedTuple):
    """N nodes of B trees, L leaves and M inner nodes. By height, leaves are rows 0 to L - 1.

    Attributes:
        words: words of the leaves, in the order of their rows, (L,).
        labels, trees: the label and the tree's number of each row, (N,).
        children: rows of the inner nodes' children, in the order of their rows: left, right, left, ... (2M,).
        slots: the place of each row among `children`; 2M for roots, (N,).
        levels: (leaves, inner nodes) of each level.
        n_trees: B.
    """

    words: Tensor
    labels: Tensor
    trees: Tensor
    children: Tensor
    slots: Tensor
    levels: list[tuple[int, int]]
    n_trees: int


def list_nodes(tree: Tree[int]) -> Ints:
    """Number the nodes of a tree in postorder: a column for each, with its children's numbers, word, label, levels."""
    columns = np.full((6, sum(1 for _ in tree.postorder())), NONE)
    columns[HEIGHT] = columns[DEPTH] = 0
    waiting: list[int] = []
    for number, node in enumerate(tree.postorder()):
        columns[LABEL, number] = node.label
        if node.is_leaf:
            columns[WORD, number] = node.word
        else:
            children = columns[RIGHT, number], columns[LEFT, number] = waiting.pop(), waiting.pop()
            columns[HEIGHT, number] = 1 + columns[HEIGHT, children].max()
        waiting.append(number)
    for number in range(columns.shape[1] - 1, -1, -1):
        if columns[LEFT, number] != NONE:
            columns[DEPTH, columns[[LEFT, RIGHT], number]] = 1 + columns[DEPTH, number]
    return columns


def merge_trees(trees: Sequence[Ints], by_depth: bool = False) -> Forest:
    """Order the nodes of all trees in levels; within a level leaves come first."""
    sizes = [columns.shape[1] for columns in trees]
    nodes = np.concatenate(trees, axis=1)
    is_inner = nodes[LEFT] != NONE
    level = nodes[DEPTH].max() - nodes[DEPTH] if by_depth else nodes[HEIGHT]
    key = (2 * level + is_inner).astype(np.uint16)
    order = np.argsort(key, kind="stable")
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    counts = np.bincount(key, minlength=2 * int(level.max()) + 2).reshape(-1, 2)

    first = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    inner = order[is_inner[order]]
    children = row[nodes[[LEFT, RIGHT]][:, inner] + first[inner]].T.ravel()
    slots = np.full(len(order), len(children))
    slots[children] = np.arange(len(children))
    words = nodes[WORD][order]
    return Forest(
        torch.from_numpy(words[words != NONE]),
        torch.from_numpy(nodes[LABEL][order]),
        torch.from_numpy(np.repeat(np.arange(len(trees)), sizes)[order]),
        torch.from_numpy(children),
        torch.from_numpy(slots),
        [(int(leaves), int(inner)) for leaves, inner in counts],
        len(trees),
    )
