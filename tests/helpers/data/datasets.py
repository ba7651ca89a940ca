"""Paths of data: small files of this repository in the formats of the real data sets, and the real ones if present.

The small files come from the models' generators; `python tests/helpers/data/datasets.py` draws them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.models.data.dag import draw_lattices
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.listops import draw_trees
from autobatch.models.data.pair import draw_pairs
from autobatch.models.data.sentence import draw_sentences
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary

SMALL, REAL = Path(__file__).parents[2] / "data", Path(__file__).parents[4] / "shared" / "data"
N_TRAIN, N_DEV = 64, 8
needs_real = pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data, which is missing")


def real(*values: Any) -> Any:
    """Return a case on the real data, with the expected values."""
    return pytest.param(REAL, *values, marks=needs_real)


def draw_files() -> dict[str, str]:
    """Draw the small files: their texts by relative path."""
    rng = np.random.default_rng(0)
    trees = [_with_five_labels(tree) for tree in draw_trees(N_TRAIN + N_DEV, rng)]
    lattices = _with_numbers(draw_lattices(N_TRAIN + N_DEV, rng, max_words=8))
    sentences = draw_sentences(N_TRAIN + N_DEV, rng)
    pairs = draw_pairs(N_TRAIN + N_DEV, rng)
    files = {}
    for name, part in (("train", slice(N_TRAIN)), ("dev", slice(N_TRAIN, None))):
        files[f"sst/{name}.txt"] = _lines(map(repr, trees[part]), "\n")
        files[f"wikiner/{name}.txt"] = _lines(map(str, sentences[part]), "\n")
        files[f"lattice/{name}.txt"] = _lines([str(len(lattices[part])), *map(str, lattices[part])], "\n\n")
        files[f"iwslt15/{name}.en"] = _lines((" ".join(pair.source) for pair in pairs[part]), "\n")
        files[f"iwslt15/{name}.vi"] = _lines((pair.reference for pair in pairs[part]), "\n")
    return files


def _lines(parts: Iterable[str], separator: str) -> str:
    return separator.join(parts) + "\n"


def _with_five_labels(tree: Tree[str]) -> Tree[str]:
    """Map the labels of a tree to the five of the treebank."""
    done: list[Tree[str]] = []
    for node in tree.postorder():
        label = node.label % 5
        if node.is_leaf:
            done.append(Tree.leaf(label, node.word))
        else:
            right, left = done.pop(), done.pop()
            done.append(Tree.inner(label, left, right))
    return done[0]


def _with_numbers(lattices: list[Lattice[str]]) -> list[Lattice[int]]:
    """Replace tags, characters and words by ids; the first position has tag 0."""
    tags = Vocabulary.count(tag for lattice in lattices for tag in lattice.tags[1:])
    characters = Vocabulary.count(word for lattice in lattices for word in lattice.characters())
    words = Vocabulary.count(word for lattice in lattices for word in lattice.words())
    return [
        Lattice(
            [0, *(tags.id(tag) for tag in lattice.tags[1:])],
            [
                [(start, (characters if start == end - 1 else words).id(word)) for start, word in arcs]
                for end, arcs in enumerate(lattice.arcs)
            ],
        )
        for lattice in lattices
    ]


def _write() -> None:
    for name, text in draw_files().items():
        path = SMALL / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write()
