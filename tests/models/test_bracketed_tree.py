"""Test trees of any shape in brackets, as in the Penn Treebank."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.models.data.labelled_tree import LabelledTree, parse_labelled_tree
from autobatch.readers.brackets import escape
from autobatch.readers.lines import Line
from helpers.runs.ways import each

LABELS = "S", "NP-SBJ", "-NONE-", "3", "ADJP|<JJ>", None
WORDS = "film", "(", "1/2", "8\u00a0m", "*T*-1"


def parse(text: str) -> LabelledTree[str]:
    return parse_labelled_tree(Line(Path("trees.txt"), 7, text))


def draw_tree(rng: np.random.Generator, depth: int) -> LabelledTree[str]:
    label = LABELS[rng.integers(len(LABELS))]
    if depth == 0 or rng.random() < 0.3:
        return LabelledTree(WORDS[rng.integers(len(WORDS))], [], label)
    return LabelledTree("", [draw_tree(rng, depth - 1) for _ in range(rng.integers(1, 5))], label)


def write(tree: LabelledTree[str], rng: np.random.Generator) -> str:
    label = "" if tree.label is None else f"{tree.label}{rng.choice([' ', '  ', chr(9)])}"
    gap = str(rng.choice(["", " ", "\t"]))
    return f"({gap}{label}{gap.join(write(child, rng) for child in tree.children) or escape(tree.word)}{gap})"


@pytest.mark.parametrize("seed", range(40))
def test_a_written_tree_reads_as_itself(seed: int) -> None:
    """Also within an additional pair of brackets, as in the treebank, whose root has no label."""
    rng = np.random.default_rng(seed)
    tree = draw_tree(rng, depth=4)
    tree.label = "S"
    assert parse(write(tree, rng)) == tree
    assert parse(f"( {write(tree, rng)})") == tree


@each(
    "text, column, expected, found",
    [
        ("(", 2, "')' for every '('", "the end of the line"),
        ("()", 2, "a label or a word after '('", "')'"),
        ("(S (NP a)", 10, "')' for every '('", "the end of the line"),
        ("(S (NP a) b)", 11, "'(' to open a node, or ')'", "'b'"),
        ("(NP very old film)", 10, "'(' to open a node, or ')'", "'old'"),
        ("(NP a (b c))", 7, "')' after a word", "'('"),
        ("(S a) (S b)", 7, "the end of the line after a whole tree", "'('"),
        ("(S a))", 6, "the end of the line after a whole tree", "')'"),
    ],
)
def test_a_malformed_tree_is_named_with_its_column(text: str, column: int, expected: str, found: str) -> None:
    with pytest.raises(DataError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith(
        f"cannot read a labelled tree from trees.txt, line 7, column {column}: expected {expected}"
    )
    assert message.endswith(f"found {found}.")


def test_reading_needs_no_recursion() -> None:
    n = 20 * sys.getrecursionlimit()
    tree = parse("(S (X y) " * n + "(Z w)" + ")" * n)
    assert sum(1 for _ in tree.postorder()) == 2 * n + 1
