"""Test trees, the reader of tree files, the vocabulary and the generator of list operations."""

from __future__ import annotations

import copy
import pickle
import re
import statistics
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autobatch.errors import DataError
from autobatch.models.data.dataset import load_trees
from autobatch.models.data.listops import OPERATIONS, draw_trees
from autobatch.models.data.sst import parse_tree, read_trees
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import UNKNOWN, Vocabulary
from autobatch.readers.brackets import escape, to_label, unescape
from helpers.data.datasets import SMALL, real
from helpers.runs.ways import each

NEW_LABELS = pytest.mark.filterwarnings("ignore:the development data:UserWarning")
"""The development data has labels that the training data lacks."""

WORDS = st.text(st.characters(exclude_characters=" \t()\n\r", exclude_categories=["Cs"]), min_size=1).filter(
    lambda word: unescape(word) == word
)
TREES = st.recursive(
    st.builds(Tree.leaf, st.integers(0, 4), WORDS),
    lambda children: st.builds(Tree.inner, st.integers(0, 4), children, children),
    max_leaves=12,
)


# --- trees ---


def test_postorder_visits_children_before_parents_and_left_before_right() -> None:
    tree = parse_tree("(4 (3 (0 a) (1 b)) (2 c))")
    assert [node.label for node in tree.postorder()] == [0, 1, 3, 2, 4]
    assert tree.words() == ["a", "b", "c"]


def test_trees_are_equal_when_labels_words_and_shape_are() -> None:
    tree = parse_tree("(3 (2 a) (2 (1 b) (1 c)))")
    assert tree == parse_tree(repr(tree))
    assert tree != parse_tree("(3 (2 (1 a) (1 b)) (2 c))")
    assert tree != parse_tree("(3 (2 a) (2 (1 b) (0 c)))")
    assert tree != parse_tree("(3 (2 a) (2 (1 b) (1 d)))")
    assert tree != "(3 (2 a) (2 (1 b) (1 c)))"


def test_trees_can_be_copied_and_pickled() -> None:
    tree = parse_tree("(3 (2 a) (2 b))")
    assert copy.deepcopy(tree) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree


def test_a_leaf_has_no_children_and_an_inner_node_no_word() -> None:
    tree = parse_tree("(3 (2 a) (2 b))")
    with pytest.raises(AttributeError, match="left"):
        _ = tree.left.left
    with pytest.raises(AttributeError, match="word"):
        _ = tree.word


# --- reading ---


@pytest.mark.slow
@given(TREES)
def test_a_printed_tree_reads_as_itself(tree: Tree[str]) -> None:
    assert parse_tree(repr(tree)) == tree


@given(WORDS)
def test_words_survive_escaping(word: str) -> None:
    assert unescape(escape(word)) == word


def tree_or_none(text: str) -> Tree[str] | None:
    """Read a tree, or return None if a `DataError` names a column of the text."""
    try:
        return parse_tree(text)
    except DataError as error:
        column = re.search(r"column (\d+): expected", str(error))
        assert column is not None
        assert 1 <= int(column[1]) <= len(text) + 1
        return None


@given(st.text() | st.text("() 0123456789ab\u00a0\t\\/-", max_size=40))
def test_any_text_reads_or_is_a_data_error(text: str) -> None:
    tree = tree_or_none(text)
    if tree is not None:
        assert parse_tree(repr(tree)) == tree


@given(TREES, st.data())
def test_a_tree_with_one_character_gone_reads_or_is_a_data_error(tree: Tree[str], data: st.DataObject) -> None:
    text = repr(tree)
    gone = data.draw(st.integers(0, len(text) - 1))
    tree_or_none(text[:gone] + text[gone + 1 :])


@each(
    "text, column, expected, found",
    [
        ("", 1, "'(' to open a tree", "the end of the line"),
        ("good", 1, "'(' to open a tree", "'good'"),
        (")", 1, "'(' to open a tree", "')'"),
        ("(", 2, "a label after '('", "the end of the line"),
        ("( (2 a) (2 b))", 3, "a label after '('", "'('"),
        ("()", 2, "a label after '('", "')'"),
        ("(3 (film))", 9, "one word and ')', or two subtrees", "')'"),
        ("(3)", 3, "one word and ')', or two subtrees", "')'"),
        ("(3 good", 8, "')' after the word of a node", "the end of the line"),
        ("(3 (2 a) (3 (3 good", 20, "')' after the word of a node", "the end of the line"),
        ("(3 (2 a) (3 (3 good \t", 22, "')' after the word of a node", "the end of the line"),
        ("(3 (2 a) (3 (3", 15, "one word and ')', or two subtrees", "the end of the line"),
        ("(3 (2 a) (3 good (2 a)", 13, "one word and ')', or two subtrees", "'good'"),
        ("(3 very good)", 4, "one word and ')', or two subtrees", "'very'"),
        ("(3 (2 a) b)", 10, "'(' to open the second", "'b'"),
        ("(3 (2 a))", 9, "'(' to open the second", "')'"),
        ("(3 (2 a) (2 b)", 15, "')' after the second", "the end of the line"),
        ("(3 (2 a) (2 b) (2 c))", 16, "')' after the second", "'('"),
        ("(3 a) (2 b)", 7, "the end of the line after a whole tree", "'('"),
        ("(3 a))", 6, "the end of the line after a whole tree", "')'"),
    ],
)
def test_a_malformed_line_is_named_with_its_column(text: str, column: int, expected: str, found: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_tree(text, place="trees.txt, line 7")
    message = str(caught.value)
    assert message.startswith(f"cannot read a tree from trees.txt, line 7, column {column}: expected {expected}")
    assert message.endswith(f"found {found}.")


def test_a_file_is_read_with_its_traps(tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    text = "\ufeff(3 (2 8\u00a01\\/2) (2 -LRB-))\r\n\n( 1  ok )\n\n\n"
    path.write_bytes(text.encode())
    first, second = read_trees(path)
    assert first.words() == ["8\u00a01/2", "("]
    assert repr(first) == "(3 (2 8\u00a01\\/2) (2 -LRB-))"
    assert repr(second) == "(1 ok)"


def test_a_malformed_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    path.write_text("(1 ok)\n\n(9)\n")
    with pytest.raises(DataError, match=r"trees\.txt, line 3, column 3: expected one word and '\)', or two subtrees"):
        read_trees(path)


@given(st.lists(st.sampled_from(["0", "7", "12", "-1", "02", "٣", "NP", "S", "-NONE-", "ADJP|<JJ>"]), min_size=1))
def test_labels_are_of_any_number_and_text(labels: list[str]) -> None:
    """Labels are read as numbers where possible. Classes are sorted by number, followed by texts."""
    text = reduce(lambda left, label: f"({label} {left} (0 x))", labels, "(0 x)")
    tree = parse_tree(text)
    assert repr(tree) == text
    assert tree.label == (int(labels[-1]) if labels[-1] in ("0", "7", "12") else labels[-1])
    with TemporaryDirectory() as folder:
        (Path(folder) / "trees.txt").write_text(f"{text}\n" * 9, encoding="utf-8")
        data = load_trees(str(Path(folder) / "trees.txt"), np.random.default_rng(0))
    classes = data.vocabularies["classes"]
    assert data.sizes["n_classes"] == len({*labels, "0"}) == len(classes)
    assert data.items[0].map(lambda word: "x", lambda label: to_label(classes.word(label))) == tree
    numbers = [number for number in ("0", "7", "12") if number in ("0", *labels)]
    assert classes.words == [*numbers, *sorted({*labels} - {*numbers})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file holds none"),
        (b" \n\n", "the file holds none"),
        (b"(1 ok)\n(2 caf\xe9)\n", "line 2, column 7: byte 0xe9 is not UTF-8"),
        ("(1 ok)\n(2 caf\u00e9".encode() + b"\xe9)\n", "line 2, column 8: byte 0xe9 is not UTF-8"),
    ],
)
def test_a_file_without_trees_is_a_data_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trees.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_trees(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a directory; give a readable text file"):
        read_trees(tmp_path)


def test_reading_needs_no_recursion() -> None:
    depth = 20_000
    text = "(2 " * depth + "(1 deep)" + " (0 end))" * depth
    tree = parse_tree(text)
    assert repr(tree) == text
    assert len(Vocabulary.count(tree.words())) == 3
    assert sum(1 for _ in Vocabulary([]).encode(tree).postorder()) == 2 * depth + 1


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "n_trees", "largest", "mean"), [(SMALL, 64, 109, 32), real(8550, 103, 37)])
def test_a_treebank_reads_and_prints_back(folder: Path, n_trees: int, largest: int, mean: int) -> None:
    path = folder / "sst" / "train.txt"
    trees = read_trees(path)
    assert [repr(tree) for tree in trees] == path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    sizes = [sum(1 for _ in tree.postorder()) for tree in trees]
    assert (len(trees), max(sizes), round(statistics.mean(sizes))) == (n_trees, largest, mean)


# --- vocabulary ---


def test_words_are_numbered_by_frequency_and_then_spelling() -> None:
    vocabulary = Vocabulary.count(["b", "a", "c", "b", "a", "d"])
    assert [vocabulary.word(number) for number in range(len(vocabulary))] == ["<unknown>", "a", "b", "c", "d"]


def test_rare_and_unseen_words_are_unknown() -> None:
    vocabulary = Vocabulary.count(["b", "a", "b", "<unknown>"], min_count=2)
    assert [vocabulary.id(word) for word in ("b", "a", "z", "<unknown>")] == [1, UNKNOWN, UNKNOWN, UNKNOWN]
    encoded = vocabulary.encode(parse_tree("(3 (2 b) (2 a))"))
    assert repr(encoded) == "(3 (2 1) (2 0))"
    assert repr(vocabulary.decode(encoded)) == "(3 (2 b) (2 <unknown>))"


# --- list operations ---


def value_of(tree: Tree[str]) -> int:
    """Evaluate an expression by its definition, collecting the arguments of each operator."""
    if tree.is_leaf:
        return int(tree.word)
    arguments = []
    while not tree.is_leaf:
        arguments.append(value_of(tree.right))
        tree = tree.left
    median = int(np.median(arguments))
    return {
        "MAX": max(arguments), "MIN": min(arguments), "MED": median, "SUM_MOD": sum(arguments) % 10
    }[tree.word]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_the_label_of_every_node_is_the_value_of_what_it_spans(seed: int) -> None:
    for tree in draw_trees(40, np.random.default_rng(seed), max_depth=5, nesting=0.5):
        for node in tree.postorder():
            assert node.label == (0 if node.is_leaf and node.word in OPERATIONS else value_of(node))


def test_list_operations_stay_in_their_bounds() -> None:
    trees = draw_trees(200, np.random.default_rng(0), max_depth=1, max_arguments=3)
    assert {len(tree.words()) for tree in trees} == {3, 4}
    assert {word for tree in trees for word in tree.words()} == {*OPERATIONS, *"0123456789"}
    assert not any(tree.is_leaf for tree in trees)


def test_the_same_seed_draws_the_same_trees() -> None:
    assert draw_trees(20, np.random.default_rng(3)) == draw_trees(20, np.random.default_rng(3))
    assert draw_trees(20, np.random.default_rng(3)) != draw_trees(20, np.random.default_rng(4))


# --- data sets ---


def test_a_generator_is_data() -> None:
    data = load_trees("listops", np.random.default_rng(0))
    assert (len(data.train), len(data.dev), dict(data.sizes)) == (4000, 500, {"n_words": 15, "n_classes": 10})
    assert {word for tree in data.items for word in tree.words()} == {*range(1, 15)}


@NEW_LABELS
def test_a_folder_is_data_with_a_vocabulary_of_its_training_words(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("(3 (2 good) (2 film))\n(3 (2 good) (2 film))\n")
    (tmp_path / "dev.txt").write_text("(1 (2 bad) (2 film))\n")
    data = load_trees(str(tmp_path), np.random.default_rng(0))
    assert (data.name, dict(data.sizes)) == (str(tmp_path), {"n_words": 3, "n_classes": 2})
    assert repr(data.dev) == "[(-1 (0 0) (0 1))]"  # -1: the class does not occur in training


def test_a_tenth_of_a_single_file_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    path.write_text("".join(f"({number % 5} word)\n" for number in range(25)))
    data = load_trees(str(path), np.random.default_rng(0))
    assert (len(data.train), len(data.dev)) == (23, 2)
    assert [tree.label for tree in data.items] == [number % 5 for number in range(25)]


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'listop': no such file, folder or generator; did"):
        load_trees("listop", np.random.default_rng(0))
    (tmp_path / "train.txt").write_text("(1 ok)\n")
    with pytest.raises(DataError, match=r"dev\.txt: no such file or directory"):
        load_trees(str(tmp_path), np.random.default_rng(0))
