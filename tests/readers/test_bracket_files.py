"""Test trees in brackets: what NLTK reads, malformed files, and depth."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.models.data.sst import read_trees
from autobatch.readers import read_brackets
from helpers.data.datasets import SMALL, real
from helpers.data.files import show_tree, write_brackets, write_sst
from helpers.runs.ways import each


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file to write."""
    return tmp_path / "file.mrg"


@pytest.mark.parametrize("seed", range(5))
def test_trees_are_read_as_drawn_and_as_by_nltk(path: Path, seed: int) -> None:
    drawn = write_brackets(path, np.random.default_rng(seed), 20)
    assert read_brackets(path) == drawn
    nltk = pytest.importorskip("nltk", reason="needs the extra interop")

    def convert(tree: Any) -> dict[str, Any]:
        if isinstance(tree[0], str):
            return {"label": tree.label(), "word": tree[0].replace("\\/", "/")}
        return {"label": tree.label(), "children": [convert(child) for child in tree]}

    text = path.read_text("utf-8").replace("\u00a0", "_")  # NLTK splits at no-break spaces
    expected = [json.loads(json.dumps(tree, ensure_ascii=False).replace("\u00a0", "_")) for tree in drawn]
    assert [convert(nltk.Tree.fromstring(tree)[0]) for tree in re.split(r"\n(?=\( )", text)] == expected


def test_labelled_binary_trees_are_read(path: Path) -> None:
    drawn = write_sst(path, np.random.default_rng(0), 20)
    assert read_brackets(path) == drawn


@pytest.mark.parametrize("folder", [SMALL, real()])
def test_the_sentiment_treebank_is_read_as_by_its_own_reader(folder: Path) -> None:
    expected = read_trees(folder / "sst" / "dev.txt")
    for tree, own in zip(read_brackets(folder / "sst" / "dev.txt"), expected, strict=True):
        waiting = [(tree, own)]
        while waiting:
            node, other = waiting.pop()
            assert node["label"] == str(other.label)
            assert ("word" in node) == other.is_leaf
            if other.is_leaf:
                assert node["word"] == other.word
            else:
                waiting += zip(node["children"], (other.left, other.right), strict=True)


def test_several_trees_may_be_in_a_line(path: Path) -> None:
    path.write_bytes("\ufeff(NN a)(NN 8\u00a0m)\r\n\r\n((-LRB- -LRB-)\r\n) (word)".encode())
    assert read_brackets(path) == [
        {"label": "NN", "word": "a"}, {"label": "NN", "word": "8\u00a0m"}, {"label": "-LRB-", "word": "("},
        {"word": "word"},
    ]  # fmt: skip


@each(
    "text, line, column, expected",
    [
        ("(S (NP a)\n(VP b)\n\n", 3, 1, "')' for every '(' of the tree that begins in line 1"),
        ("(S a)\n (S b))", 2, 7, "'(' to open a tree"),
        ("film", 1, 1, "'(' to open a tree"),
        ("(S a)\n\n()", 3, 2, "a label or a word"),
        ("(NP the\n old film)", 2, 2, "'(' to open a node, or ')'"),
        ("(NP a\n (c d))", 2, 2, "')' after a word"),
    ],
)
def test_malformed_trees_are_named_with_their_place(
    path: Path, text: str, line: int, column: int, expected: str
) -> None:
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_brackets(path)
    assert f"{path}, line {line}, column {column}: expected {expected}" in str(error.value)


def test_trees_may_have_any_depth(path: Path) -> None:
    n = 100_000
    path.write_text("(S (X y)\n" * n + "(Z w)" + ")" * n)
    (node,) = read_brackets(path)
    for _ in range(n):
        assert node["children"][0] == {"label": "X", "word": "y"}
        node = node["children"][1]
    assert show_tree(node) == "(Z w)"
