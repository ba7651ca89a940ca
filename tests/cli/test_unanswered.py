"""`predict` and `serve` accept inputs without answers for every model; `train` and `eval` refuse them in a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autobatch.cli.serving.predictor import Predictor
from autobatch.cli.training.trained import Trained
from autobatch.models import MODELS, find_model
from helpers.data.readers import (
    CIRCUITS,
    COMPARISONS,
    CONFORMATIONS,
    DESCRIBED_TREES,
    LABELLED,
    MOLECULES,
    PICTURES,
    REPEATS,
    SENTENCES,
    TEXTS,
    TREES,
)
from helpers.runs.commands import Command

LATTICES = "2\n3\n0 B-PER E-PER\n0\n1 0 17\n2 1 18 0 93\n\n1\n0\n0\n"
PAIRS = "a cat\na dog b\n"

UNANSWERED = {
    "trees": (
        TREES,
        ["((good) (film))", "( (3 (a) (1 b)) (never seen) )", "(film)", "(\t(good)\t(2\tfilm)\t)", "(NP (DT x) (y))"],
    ),
    "texts of trees": (TREES, ["good film", "((good) (film))", "good", "-LRB- a\\/b\tfilm"]),
    "labelled trees": (LABELLED, ['{"word": "MAX", "children": [{"word": "2 x"}]}', "{}"]),
    "sentences": (SENTENCES, ["010 is", "either|or| | x", "8\u00a0m\tis\t", "a|O b|O"]),
    "lattices": (
        LATTICES,
        ["1\n3\n\n0\n1 0 17\n2 1 18 0 93", "1\n3\n0\n1 0 17\n2 1 18 0 93", "1\n1\n0\n", "1\n1\n0\n0"],
    ),
    "pictures": (PICTURES, ["blue red", "blue red\nred blue\n", "blue|sky"]),
    "pairs": (PAIRS, ["a dog", "never\tseen", "", "a  "]),
    "texts with trees": (DESCRIBED_TREES, ["turn twice", "turn\t", "turn\tdo"]),
    "texts": (TEXTS, ["the key", "the\tkey"]),
    "molecules": (MOLECULES, ["CCO", " CCO \t", "CCO,", "[NH4+].C 1.5"]),
    "conformations": (
        CONFORMATIONS,
        [
            "2\n\nC 0 0 0\nO 1 0 0",
            "1\nProperties=species:S:1:pos:R:3\nH 0 0 0",
            "1\nenergy=2 a b\nC 1 1 1",
            "1\nx\nC 1 1 1 0 0 0",
        ],
    ),
    "pairs of texts": (COMPARISONS, ["a cat\tan animal", "a cat\tan animal\t", "a\tb\tyes"]),
    "repeated words": (REPEATS, ["right*3 left*0", "a*b|c*2", "right*3|F"]),
    "circuits": (CIRCUITS, ["true() not(0)", "false()", "true()|1\tnot(0)|0"]),
}
"""For each kind of data, the text of a training file, and instances without answers or with some."""

KINDS = {
    "labelled binary trees": "trees",
    "trees of any shape": "labelled trees",
    "tagged sentences": "sentences",
    "lattices": "lattices",
    "pictures": "pictures",
    "sentences with translations": "pairs",
    "a text, a tab and a tree": "texts with trees",
    "sentences without tags": "texts",
    "molecules in SMILES": "molecules",
    "molecules in space": "conformations",
    "two texts and a label": "pairs of texts",
    "words with counts and tags": "repeated words",
    "graphs, one per line": "circuits",
}
ANSWERED = ("labelled trees", "texts")
"""Kinds of data whose files never need answers."""


def kind_of(model: str) -> str:
    """Return the kind of data that a model is trained on."""
    reads = find_model(model).reads
    (kind,) = (kind for mark, kind in KINDS.items() if reads.startswith(mark))
    return "texts of trees" if model in ("early-exit", "stack-lstm-parser") else kind


def test_every_kind_of_data_is_in_the_table() -> None:
    assert {kind_of(model) for model in MODELS} == UNANSWERED.keys()


@pytest.mark.parametrize("model", MODELS)
def test_inputs_need_no_answers(model: str, command: Command, tmp_path: Path) -> None:
    """One input in a file, and as a request; training and evaluation need answers."""
    train, inputs = UNANSWERED[kind_of(model)]
    (tmp_path / "train.en").write_text(train, encoding="utf-8")
    if kind_of(model) == "pairs":
        (tmp_path / "train.de").write_text(train)
    if kind_of(model) == "lattices":
        (tmp_path / "train.en").write_text(train.replace("1\n0\n0\n", "2\n0 O\n0\n1 0 5\n"))
    data = "--data", tmp_path / "train.en"
    given = "--dim", 4, "--epochs", 1, "--backend", "reference", "--checkpoint", tmp_path / "run"
    status, _, err = command("train", model, *data, *given)
    assert (status, err) == (0, "")
    predictor = Predictor.of(Trained(model, tmp_path / "run").read())
    (tmp_path / "new").mkdir()
    n_refused = 0
    for number, text in enumerate(inputs):
        path = tmp_path / "new" / f"{number}.txt"
        path.write_text(text + "\n", encoding="utf-8")
        asked = "--checkpoint", tmp_path / "run", "--data", path
        status, out, err = command("predict", model, *asked)
        assert status == 0, err
        assert len(out.splitlines()) == 1
        assert not re.search("of its (classes|labels|tags|target words)", err)
        assert "<unknown>" not in json.dumps({**json.loads(out), "tree": None})
        instance = predictor.read(text)
        assert predictor.spec.given(instance) is not None
        status, _, err = command("eval", model, *asked)
        assert status in (0, 2)
        n_refused += status == 2
    assert n_refused > 0 or kind_of(model) in ANSWERED


@pytest.mark.parametrize("model", ["bilstm-tagger", "nested-rnn", "random-dag", "dag-rnn"])
def test_a_line_with_tags_at_some_words_alone_is_refused(model: str, command: Command, tmp_path: Path) -> None:
    train, inputs = UNANSWERED[kind_of(model)]
    (tmp_path / "train.txt").write_text(train, encoding="utf-8")
    given = "--dim", 4, "--epochs", 1, "--checkpoint", tmp_path / "run", "--backend", "reference"
    assert command("train", model, "--data", tmp_path / "train.txt", *given)[0] == 0
    words = inputs[0].split()
    (tmp_path / "new.txt").write_text(f"{words[0]}|O {' '.join(words[1:])}\n")
    status, _, err = command("predict", model, "--checkpoint", tmp_path / "run", "--data", tmp_path / "new.txt")
    assert status == 2
    assert f"line 1, column {len(words[0]) + 4}: expected " in err
    assert "like the other tokens of the line, or no tags at all" in err


def test_blank_lines_keep_the_numbers_of_translations(command: Command, tmp_path: Path) -> None:
    for suffix in ("en", "de"):
        (tmp_path / f"train.{suffix}").write_text("a b\nb a\n" * 10)
    given = "--dim", 4, "--epochs", 1, "--checkpoint", tmp_path / "run", "--backend", "reference"
    assert command("train", "seq2seq", "--data", tmp_path / "train.en", *given)[0] == 0
    (tmp_path / "new.en").write_text("a\n\nb b\n \t\n")
    status, out, _ = command("predict", "seq2seq", "--checkpoint", tmp_path / "run", "--data", tmp_path / "new.en")
    translations = [json.loads(line)["translation"] for line in out.splitlines()]
    assert (status, len(translations)) == (0, 4)
    assert translations[1] == translations[3] == ""
