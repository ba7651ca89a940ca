"""Test generated sentences, lattices, graphs and scenes, and data sets of all kinds with their vocabularies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.models.data import brackets, python_ast, reviews
from autobatch.models.data.agreement import draw_texts
from autobatch.models.data.circuit import draw_circuits
from autobatch.models.data.comparison import draw_edits
from autobatch.models.data.dag import draw_dags, draw_lattices, draw_named_lattices
from autobatch.models.data.dataset import (
    FORMATS,
    GENERATORS,
    Dataset,
    Load,
    load_circuits,
    load_comparisons,
    load_conformations,
    load_described_trees,
    load_labelled_trees,
    load_lattices,
    load_molecules,
    load_pairs,
    load_pictures,
    load_repeats,
    load_sentences,
    load_spelled_sentences,
    load_texts,
    load_trees,
)
from autobatch.models.data.force_field import draw_conformations
from autobatch.models.data.labelled_tree import LabelledTree
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.listops import draw_operations
from autobatch.models.data.listops import draw_trees as draw_listops
from autobatch.models.data.molecule import draw_compounds
from autobatch.models.data.ordered_tree import ACTIONS, ADVERBS, draw_commands
from autobatch.models.data.pair import ADJECTIVES, FUTURE, JOINTS, NOUNS, VERBS, draw_pairs
from autobatch.models.data.picture import COLOURS, THINGS, Picture, draw_scenes
from autobatch.models.data.python_ast import N_CLASSES
from autobatch.models.data.repeats import draw_moves
from autobatch.models.data.sentence import GROUP_VERBS, PREPOSITIONS, TITLES, Sentence, draw_rare_names, draw_sentences
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import UNKNOWN, Vocabulary
from autobatch.models.lattice_lstm_ner import load_character_lattices
from autobatch.models.metric import find_entities

NEW_LABELS = pytest.mark.filterwarnings("ignore:the development data:UserWarning")
"""The development data has labels that the training data lacks."""

DRAWERS: dict[str, Callable[[int, np.random.Generator], list[Any]]] = {
    "listops": draw_listops,
    "python-ast": python_ast.draw_trees,
    "operations": draw_operations,
    "functions": python_ast.draw_functions,
    "tagging": draw_sentences,
    "rare-names": draw_rare_names,
    "lattices": draw_lattices,
    "lattice-names": draw_named_lattices,
    "random-dag": draw_dags,
    "scenes": draw_scenes,
    "translation": draw_pairs,
    "reviews": reviews.draw_reviews,
    "brackets": brackets.draw_brackets,
    "commands": draw_commands,
    "agreement": draw_texts,
    "compounds": draw_compounds,
    "force-field": draw_conformations,
    "edits": draw_edits,
    "circuits": draw_circuits,
    "moves": draw_moves,
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", GENERATORS)
def test_the_same_seed_draws_the_same(name: str) -> None:
    draw = DRAWERS[name]
    assert draw(20, np.random.default_rng(3)) == draw(20, np.random.default_rng(3))
    assert draw(20, np.random.default_rng(3)) != draw(20, np.random.default_rng(4))
    assert len(draw(7, np.random.default_rng(3))) == 7


# --- the made-up language ---


def test_what_stands_beside_a_name_tells_its_type() -> None:
    for sentence in draw_sentences(300, np.random.default_rng(0)):
        padded = ["", *sentence.words, ""]
        for kind, first, last in find_entities(sentence.tags):
            before, after = padded[first], padded[last + 2]
            assert {"PER": before in TITLES, "LOC": before in PREPOSITIONS, "ORG": after in GROUP_VERBS}[kind]
            assert sentence.tags[first] == f"B-{kind}"
            assert last - first < 3


def test_names_alone_tell_nothing() -> None:
    sentences = draw_sentences(2000, np.random.default_rng(0))
    named: dict[str, set[str]] = {}
    for sentence in sentences:
        for kind, first, last in find_entities(sentence.tags):
            named.setdefault(kind, set()).update(sentence.words[first : last + 1])
    assert named["PER"] == named["LOC"] == named["ORG"]
    assert 8 < statistics.fmean(len(sentence.words) for sentence in sentences) < 9


# --- the small language and its translation ---


def test_translations_have_another_order() -> None:
    """In each clause, the nouns are compared from the end of the sentence and from the start of the translation."""
    for pair in draw_pairs(300, np.random.default_rng(0)):
        joints = [JOINTS[word] for word in pair.source if word in JOINTS]
        assert [word for word in pair.target if word in JOINTS.values()] == joints
        for source, target in zip(clauses(pair.source, JOINTS), clauses(pair.target, JOINTS.values()), strict=True):
            verb = next(place for place, word in enumerate(source) if word in VERBS)
            nouns = [tell(phrase) for phrase in (source[verb + 1 :], source[:verb])]
            ending = [VERBS[source[verb]], *([FUTURE] if "will" in source else [])]
            assert target == [*nouns[0], *nouns[1], *ending]


def clauses(words: list[str], joints: Collection[str]) -> list[list[str]]:
    return [list(part) for is_joint, part in groupby(words, lambda word: word in joints) if not is_joint]


def tell(phrase: list[str]) -> list[str]:
    """Translate a noun with its article and adjectives."""
    nouns = [NOUNS[word] for word in phrase if word in NOUNS] * (1 + phrase.count("two"))
    return nouns + [ADJECTIVES[word] for word in phrase[::-1] if word in ADJECTIVES]


# --- reviews, brackets and commands ---


def test_the_label_of_a_review_is_its_last_opinion() -> None:
    """Check that "not" inverts an opinion, and that "although" discounts the first one, for the words of every node."""
    roots = []
    for tree in reviews.draw_reviews(300, np.random.default_rng(0)):
        nodes = [node for node in tree.postorder() if not node.is_leaf] or [tree]
        for node in nodes:
            assert node.label == judge(node.words()), node
        roots.append(tree.label)
        leaves = [leaf for leaf in tree.postorder() if leaf.is_leaf]
        assert leaves
        assert [leaf.label for leaf in leaves] == [judge([leaf.word]) for leaf in leaves]
    assert set(roots) == {reviews.BAD, reviews.GOOD}
    assert 120 < roots.count(reviews.GOOD) < 180


def judge(words: list[str]) -> int:
    said = [
        2 - reviews.OPINIONS[word] if before == "not" else reviews.OPINIONS[word]
        for before, word in pairwise(["", *words])
        if word in reviews.OPINIONS
    ]
    discounted = words[0] == "although"
    return said[-1] if len(said) > discounted else reviews.OPEN


def test_brackets_have_one_tree() -> None:
    """A stack of open brackets rebuilds the tree from the words alone."""
    for tree in brackets.draw_brackets(300, np.random.default_rng(0)):
        stack: list[Tree[str]] = []
        for word in tree.words():
            item = Tree.leaf(brackets.WORD, word)
            if word == "end":
                opened = stack.pop()
                item = Tree.inner({"list": 2, "set": 3}[opened.words()[0]], opened, item)
            if stack and word not in ("list", "set"):
                item = Tree.inner(brackets.OPEN, stack.pop(), item)
            stack.append(item)
        assert stack == [tree]


def test_commands_tell_their_trees() -> None:
    for one in draw_commands(300, np.random.default_rng(0)):
        actions = one.tree.children
        assert one.words == [node.label for node in one.tree.preorder() if node.label in (*ACTIONS, *ADVERBS)]
        for tree in (tree.children[0] if tree.label in ADVERBS else tree for tree in actions):
            parts = [
                node.label if not node.children else (node.label, node.children[0].label) for node in tree.children
            ]
            assert parts == ACTIONS[tree.label]
        assert 1 <= len(actions) <= 3


# --- lattices and graphs ---


def check_lattice(lattice: Lattice[str]) -> None:
    """Check the definition: no arcs at position 0, at least one elsewhere, all from earlier positions."""
    assert len(lattice.tags) == len(lattice.arcs)
    assert (lattice.tags[0], lattice.arcs[0]) == ("0", [])
    for end, arcs in enumerate(lattice.arcs[1:], start=1):
        starts = [start for start, _ in arcs]
        assert 0 <= min(starts) <= max(starts) < end
        assert len(set(starts)) == len(starts)


def test_arcs_spell_the_text_and_every_word_that_is_meant() -> None:
    for lattice in draw_lattices(200, np.random.default_rng(0)):
        check_lattice(lattice)
        text = "".join(lattice.characters())
        assert len(text) == len(lattice.tags) - 1
        for end, arcs in enumerate(lattice.arcs):
            assert [word for _, word in arcs] == [text[start:end] for start, _ in arcs]
        begin = 0
        for end, tag in enumerate(lattice.tags[1:], start=1):
            begin = end - 1 if tag in "BS" else begin
            if tag in "ES":
                assert (begin, text[begin:end]) in lattice.arcs[end]
        assert set(lattice.tags[1:]) <= set("BMES")


def test_the_tag_of_a_node_is_its_longest_way() -> None:
    """Compared with the longest of all paths, in graphs of up to 9 nodes."""
    for dag in draw_dags(200, np.random.default_rng(0), max_nodes=9):
        check_lattice(dag)

        def longest(node: int, arcs: list[list[tuple[int, str]]] = dag.arcs) -> int:
            return max((1 + longest(start) for start, _ in arcs[node]), default=0)

        assert dag.tags == [str(longest(node) % 6) for node in range(len(dag.tags))]


# --- scenes ---


def test_scenes_are_sky_over_one_shore() -> None:
    """The tags determine what each pixel shows, and its colour must be a valid one."""
    sides = set()
    for picture in draw_scenes(200, np.random.default_rng(0)):
        shown = [
            [{thing: place for place, thing in THINGS.items()}.get(tag, tag) for tag in row.tags]
            for row in picture.rows
        ]
        below = [row for row in shown if row[0] != "sky"]
        assert shown == [["sky"] * len(row) for row in shown[: -len(below)]] + [below[0]] * len(below)
        assert 0 < len(below) < len(shown)
        assert len(list(groupby(below[0]))) <= 2
        sides.add(below[0][0])
        for row, places in zip(picture.rows, shown, strict=True):
            for word, tag, place in zip(row.words, row.tags, places, strict=True):
                assert (word == "red") == (tag == THINGS[place])
                if word != "red":
                    assert word in COLOURS[place]
    assert sides == {"sea", "land"}


# --- data sets ---

LOADERS: dict[str, Load] = {
    "listops": load_trees,
    "operations": load_labelled_trees,
    "tagging": load_sentences,
    "rare-names": load_spelled_sentences,
    "lattices": load_lattices,
    "lattice-names": load_character_lattices,
    "random-dag": load_lattices,
    "scenes": load_pictures,
    "translation": load_pairs,
    "reviews": load_trees,
    "brackets": load_trees,
    "commands": load_described_trees,
    "agreement": load_texts,
    "compounds": load_molecules,
    "force-field": load_conformations,
    "edits": load_comparisons,
    "circuits": load_circuits,
    "moves": load_repeats,
}


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("operations", {"n_words": 15, "n_labels": 11}),
        ("tagging", {"n_words": 49, "n_tags": 8}),
        ("rare-names", {"n_words": 207, "n_characters": 30, "n_tags": 5}),
        ("lattices", {"n_characters": 9, "n_words": 73, "n_tags": 5}),
        ("lattice-names", {"n_characters": 9, "n_words": 73, "n_tags": 11}),
        ("random-dag", {"n_characters": 9, "n_words": 9, "n_tags": 7}),
        ("scenes", {"n_words": 6, "n_tags": 7}),
        ("translation", {"n_source_words": 27, "n_target_words": 25}),
        ("reviews", {"n_words": 25, "n_classes": 3}),
        ("brackets", {"n_words": 10, "n_classes": 4}),
        ("agreement", {"n_words": 37}),
        ("commands", {"n_words": 12, "n_labels": 28}),
        ("compounds", {"n_atoms": 5, "n_bonds": 4}),
        ("force-field", {"n_elements": 5}),
        ("edits", {"n_words": 5, "n_classes": 6}),
        ("circuits", {"n_kinds": 7, "n_tags": 3}),
        ("moves", {"n_words": 4, "n_tags": 7}),
    ],
)
def test_a_generator_is_data(name: str, sizes: dict[str, int]) -> None:
    data = LOADERS[name](name, np.random.default_rng(0))
    assert (len(data.train), len(data.dev), dict(data.sizes)) == (4000, 500, sizes)


@pytest.mark.slow
def test_the_standard_library_is_data() -> None:
    data = load_trees("python-ast", np.random.default_rng(0))
    assert len(data.train) > 1000
    assert len(data.dev) == len(data.items) // 9
    assert data.sizes["n_classes"] == N_CLASSES
    assert {tree.label for tree in data.dev} <= {tree.label for tree in data.train}


def write_folder(folder: Path, train: str, dev: str) -> str:
    (folder / "train.txt").write_text(train)
    (folder / "dev.txt").write_text(dev)
    return str(folder)


@NEW_LABELS
def test_words_and_tags_that_training_never_used_are_unknown(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "Paris|I-LOC Paris|O once|O\n", "once|O never|I-PER Paris|O\n")
    data = load_sentences(folder, np.random.default_rng(0))
    assert (data.train[0].words, data.train[0].tags) == ([1, 1, UNKNOWN], [2, 1, 1])
    assert (data.dev[0].words, data.dev[0].tags) == ([UNKNOWN, UNKNOWN, 1], [1, UNKNOWN, 1])
    assert dict(data.sizes) == {"n_words": 2, "n_tags": 3}


@NEW_LABELS
def test_ids_that_training_never_used_are_unknown(tmp_path: Path) -> None:
    """Characters and words have separate numbers: word 7 is not character 7."""
    train = "2\n\n3\n0 4 4\n0\n1 0 7\n2 1 7 0 7\n\n3\n0 4 4\n0\n1 0 7\n2 1 7 0 7\n"
    dev = "1\n3\n0 4 5\n0\n1 0 8\n2 1 7 0 9\n"
    data = load_lattices(write_folder(tmp_path, train, dev), np.random.default_rng(0))
    assert data.train[0] == Lattice([UNKNOWN, 1, 1], [[], [(0, 1)], [(1, 1), (0, 1)]])
    assert data.dev[0] == Lattice([UNKNOWN, 1, UNKNOWN], [[], [(0, UNKNOWN)], [(1, 1), (0, UNKNOWN)]])
    assert dict(data.sizes) == {"n_characters": 2, "n_words": 2, "n_tags": 2}


@NEW_LABELS
def test_trees_and_pictures_are_encoded(tmp_path: Path) -> None:
    """Fields of JSON lines have their own names. Values not in training are unknown, and missing labels stay None."""
    (tmp_path / "train.jsonl").write_text('{"word": "a", "label": 3, "children": [{"word": "b"}, {"word": "a"}]}\n')
    (tmp_path / "dev.jsonl").write_text('{"word": "a", "label": 4, "children": [{"word": "b", "label": 3}]}\n')
    trees = load_labelled_trees(str(tmp_path), np.random.default_rng(0))
    assert trees.train == [LabelledTree(1, [LabelledTree(UNKNOWN), LabelledTree(1)], 1)]
    assert trees.dev == [LabelledTree(1, [LabelledTree(UNKNOWN, label=1)], UNKNOWN)]
    assert dict(trees.sizes) == {"n_words": 2, "n_labels": 2}
    folder = write_folder(tmp_path, "a|X b|X\na|Y b|X\n", "b|Y c|Z\n")
    pictures = load_pictures(folder, np.random.default_rng(0))
    assert pictures.train == [Picture([Sentence([1, 2], [1, 1]), Sentence([1, 2], [2, 1])])]
    assert pictures.dev == [Picture([Sentence([2, UNKNOWN], [2, UNKNOWN])])]
    assert dict(pictures.sizes) == {"n_words": 3, "n_tags": 3}


@pytest.mark.parametrize("name", LOADERS)
def test_known_vocabularies_encode_other_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vocabularies are rebuilt from their words, as stored with a trained model."""
    monkeypatch.setattr("autobatch.models.data.dataset.N_DRAWN", 90)
    load = LOADERS[name]
    data = load(name, np.random.default_rng(0))
    kept = {what: Vocabulary(vocabulary.words, vocabulary.closed) for what, vocabulary in data.vocabularies.items()}
    again: Dataset = load(name, np.random.default_rng(0), kept)
    assert (again.items[:50], again.sizes) == (data.items[:50], data.sizes)
    few = {what: Vocabulary([]) for what in kept}
    assert set(load(name, np.random.default_rng(0), few).sizes.values()) == {1}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: next(iter(form.generators)))
def test_data_of_another_kind_is_not_found(form: Any) -> None:
    other = next(name for name in GENERATORS if name not in form.generators)
    for data, reason in (
        (other, "that generator does not fit the model"),
        ("nothing", "no such file, folder or generator"),
    ):
        with pytest.raises(
            DataError, match=f"'{data}': {reason}; give a path, or one of: {next(iter(form.generators))}"
        ):
            form.find(data, np.random.default_rng(0), True)
