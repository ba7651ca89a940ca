"""Find the data that a user names: a built-in generator, a file, or a folder of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from autobatch.errors import DataError
from autobatch.models.data import listops, sst
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary

N_DRAWN = 4000, 500  # training and development trees of a generator
HELD_OUT = 10  # of a single file, the last tenth is development data


@dataclass(frozen=True)
class Dataset:
    """Instances to learn from and to measure on."""

    name: str
    train: Sequence[Any]
    dev: Sequence[Any]
    vocabulary: Vocabulary
    sizes: Mapping[str, int]
    """What a model of the data must know, under the names of constructor arguments: `n_words`, `n_classes`."""

    @property
    def items(self) -> list[Any]:
        """All instances, in the order of the files they are from."""
        return [*self.train, *self.dev]


@dataclass(frozen=True)
class TreeGenerator:
    """Draws labelled trees: `draw(n_trees, rng)`."""

    summary: str
    n_classes: int
    draw: Callable[[int, np.random.Generator], list[Tree[str]]]


GENERATORS = {
    "listops": TreeGenerator(
        "nested list operations such as [MAX 2 9 [MIN 4 7] 0], labelled with their values 0 to 9",
        listops.N_CLASSES,
        listops.draw_trees,
    )
}
TREE_FILES = "labelled binary trees, one a line: (3 (2 good) (2 film)); a file, or a folder with train.txt and dev.txt"


def load_trees(data: str, rng: np.random.Generator, min_count: int = 2) -> Dataset:
    """Load labelled binary trees, words encoded by a vocabulary counted on the training trees.

    Args:
        data: name of a generator, or path of a file or of a folder with train.txt and dev.txt.
        rng: draws a generator's trees; not used for files.
        min_count: words that occur less often in the training trees are unknown words.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    if generator := GENERATORS.get(data):
        n_train, n_dev = N_DRAWN
        trees, n_classes = generator.draw(n_train + n_dev, rng), generator.n_classes
        train, dev = trees[:n_train], trees[n_train:]
    else:
        (train, dev), n_classes = _read_files(Path(data)), sst.N_CLASSES
    vocabulary = Vocabulary.count(chain.from_iterable(tree.words() for tree in train), min_count)
    return Dataset(
        name=data,
        train=[vocabulary.encode(tree) for tree in train],
        dev=[vocabulary.encode(tree) for tree in dev],
        vocabulary=vocabulary,
        sizes={"n_words": len(vocabulary), "n_classes": n_classes},
    )


def _read_files(path: Path) -> tuple[list[Tree[str]], list[Tree[str]]]:
    if path.is_dir():
        return sst.read_trees(path / "train.txt"), sst.read_trees(path / "dev.txt")
    if not path.exists():
        raise DataError(
            f"cannot load data {str(path)!r}: there is no such file or folder, and no generator of that name; "
            f"give a path, or one of: {', '.join(GENERATORS)}."
        )
    trees = sst.read_trees(path)
    n_train = len(trees) - len(trees) // HELD_OUT
    return trees[:n_train], trees[n_train:]
