"""Test functions of the standard library as trees, and list operations with all arguments at once."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.models.data import python_ast
from autobatch.models.data.labelled_tree import LabelledTree
from autobatch.models.data.listops import draw_operations, to_brackets
from autobatch.models.data.listops import draw_trees as draw_listops
from autobatch.models.data.python_ast import KINDS, N_CLASSES, VERBS, to_labelled_tree, to_tree
from helpers.runs.ways import each


def tree_of(source: str) -> str:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    return repr(to_tree(function))


def kind(name: str) -> int:
    return list(KINDS).index(name)


@each(
    "source, tree",
    [
        ("def size(self): return 1", "None"),
        ("def get(): 'Only words.'", "None"),
        ("def get(): pass", "({get} pass)"),
        ("def _get_it(): return None", "({get} None)"),
        ("def get(): 'Words.'; return -2.5", "({get} <float>)"),
        ("async def is_it(x): await x", "({is} ({definition} x) ({name} x))"),
        (
            "def set(x): x.y = 10",
            "({set} ({definition} x) ({assignment} ({attribute} ({name} x) ({attribute} y)) ({constant} <int>)))",
        ),
        (
            "def read(f, n): return g(f, n)",
            "({read} ({definition} ({name} f) ({name} n)) ({return} ({call} ({name} g) ({name} f)) ({name} n)))",
        ),
        (
            "def add(a): b = a + 1; c(b)",
            "({add} ({add} ({definition} a) ({assignment} ({name} b) ({operation} ({name} a) ({constant} 1)))) "
            "({call} ({name} c) ({name} b)))",
        ),
    ],
)
def test_functions_become_trees(source: str, tree: str) -> None:
    labels = {verb: len(KINDS) + number for number, verb in enumerate(VERBS)} | {name: kind(name) for name in KINDS}
    assert tree_of(source) == tree.format(**labels)


@pytest.mark.slow
def test_functions_of_the_library_are_small_and_different() -> None:
    trees = python_ast.draw_trees(60, np.random.default_rng(0), min_leaves=5, max_leaves=20)
    assert len({repr(tree) for tree in trees}) == 60
    for tree in trees:
        assert 5 <= len(tree.words()) <= 20
        labels = [node.label for node in tree.postorder()]
        assert len(KINDS) <= labels[-1] < N_CLASSES
        assert 0 <= min(labels) <= max(labels) < N_CLASSES


def test_a_python_without_its_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong.py").write_text("def get(: pass")
    (tmp_path / "null.py").write_bytes(b"\0")
    (tmp_path / "other.py").write_text("def other(): pass")
    monkeypatch.setattr("autobatch.models.data.python_ast.sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match="holds no source"):
        python_ast.draw_trees(1, np.random.default_rng(0))


def test_constructs_have_all_their_parts_as_children() -> None:
    (function,) = ast.parse("def add(a): b = f(a, 1, 2); c(b); return").body
    assert isinstance(function, ast.FunctionDef)
    tree = to_labelled_tree(function)
    assert tree is not None
    assert [node.word for node in tree.postorder()] == [
        "a", "b", "f", "a", "1", "2", "", "", "c", "b", "", "return", ""
    ]  # fmt: skip
    assert [(node.label, len(node.children)) for node in tree.postorder() if node.children] == [
        ("call", 4), ("assignment", 2), ("call", 2), ("add", 4)
    ]  # fmt: skip


def test_operations_are_the_list_operations_with_all_arguments_at_once() -> None:
    """They have the same brackets and values as the binary trees."""

    def write(tree: LabelledTree[str]) -> str:
        return f"[{' '.join([tree.word, *map(write, tree.children)])}]" if tree.children else tree.word

    binary = draw_listops(100, np.random.default_rng(0))
    trees = draw_operations(100, np.random.default_rng(0))
    assert [write(tree) for tree in trees] == list(map(to_brackets, binary))
    assert [tree.label for tree in trees] == [str(tree.label) for tree in binary]
    assert all((node.label is None) == (not node.children) for tree in trees for node in tree.postorder())
