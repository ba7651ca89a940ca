"""Binary trees whose inner nodes have one of two random kinds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from autobatch.models.data.dataset import Dataset, load_trees
from autobatch.models.data.tree import Tree


@dataclass(frozen=True)
class TwoTypeTree:
    """A tree, and the kind of each inner node in postorder: the index of its set of parameters, 0 or 1."""

    tree: Tree[int]
    kinds: list[int]


def draw_kinds(tree: Tree[int], seed: int) -> list[int]:
    """Draw a kind, 0 or 1 with equal probability, for each inner node.

    The kinds depend only on the seed and the words of the tree, so they are the same wherever the tree occurs.

    >>> tree = Tree.inner(3, Tree.inner(3, Tree.leaf(2, 5), Tree.leaf(2, 6)), Tree.leaf(2, 7))
    >>> [draw_kinds(tree, seed) for seed in range(3)]
    [[1, 0], [0, 0], [1, 1]]
    """
    words = tree.words()
    rng = np.random.default_rng([seed, crc32(np.array(words, np.int64).tobytes())])
    kinds: list[int] = rng.integers(2, size=len(words) - 1).tolist()
    return kinds


def draw_all_kinds(dataset: Dataset, rng: np.random.Generator) -> Dataset:
    """Draw the kinds of the inner nodes of all trees."""
    seed = int(rng.spawn(1)[0].integers(2**32))
    train, dev = ([TwoTypeTree(tree, draw_kinds(tree, seed)) for tree in part] for part in (dataset.train, dataset.dev))
    return replace(dataset, train=train, dev=dev)


load_two_type_trees = replace(load_trees, finish=draw_all_kinds)
