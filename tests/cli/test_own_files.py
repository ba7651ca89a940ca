"""`autobatch train` reads files by the reader that a user's class names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.models import find_model
from helpers.data.files import write_conll, write_tu
from helpers.runs.commands import Command

MODULE = """
import autobatch as ab
from autobatch import readers
import numpy as np

class Tagger(ab.Module):
    "Tags words."
    files = readers.Files(lambda path: readers.read_conll(path, {"word": 0, "tag": 1}), words=["word"], labels=["tag"])
    predict = ab.scan("step", "start", each="best")

    def __init__(self, n_word, n_tag, dim, rng):
        self.words, self.cell = ab.Embedding(n_word, dim, rng=rng), ab.GRUCell(dim, dim, rng=rng)
        self.start, self.output = ab.Parameter(np.zeros(dim)), ab.Linear(dim, n_tag, rng=rng)

    @ab.cell
    def step(self, state, word):
        return self.cell(self.words(word), state)

    @ab.cell
    def best(self, state):
        return ab.argmax(self.output(state))

    @ab.cell
    def error(self, state, tag):
        return ab.cross_entropy(self.output(state), tag)

    def loss(self, sentence):
        return ab.mean_n(self.predict(sentence, each=self.error))

class Graphs(ab.Module):
    files = readers.Files(readers.read_tu)

    def __init__(self, rng):
        self.bias = ab.Parameter(np.zeros(2))

    @ab.cell
    def error(self, label):
        return ab.cross_entropy(self.bias, label)

    def loss(self, graph):
        return self.error(graph["label"])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with models, in the working directory."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return name


OPTIONS = "--dim", 8, "--backend", "reference", "--batch-size", 16, "--lr", 0.02


def losses(out: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"dev loss (\S+)", out)]


def test_a_model_is_trained_resumed_and_measured(module: str, command: Command) -> None:
    write_conll(Path("all.conll"), np.random.default_rng(0), 200)
    words = "train", f"{module}:Tagger", "--data", "all.conll", *OPTIONS, "--checkpoint", "run"
    status, out, error = command(*words, "--epochs", 2)
    assert (status, error) == (0, "")
    assert "180 instances to train on, 20 to measure on" in out
    assert losses(out)[1] < losses(out)[0]
    status, more, error = command(*words, "--epochs", 3, "--resume")
    assert (status, error) == (0, "")
    status, whole, _ = command(*words[:-1], "again", "--epochs", 3)
    assert losses(out) + losses(more) == losses(whole)
    write_conll(Path("new.conll"), np.random.default_rng(1), 30)
    status, out, error = command("eval", f"{module}:Tagger", "--checkpoint", "run", "--data", "new.conll")
    assert (status, error) == (0, "")
    assert "loss 0." in out


def test_a_trained_model_is_exported_with_its_vocabularies(module: str, command: Command) -> None:
    write_conll(Path("all.conll"), np.random.default_rng(0), 200)
    trained = f"{module}:Tagger", "--checkpoint", "run"
    assert command("train", *trained, "--data", "all.conll", *OPTIONS, "--epochs", 2)[0] == 0
    status, _, error = command("export", *trained, "--out", "tagger.ab")
    assert (status, error) == (0, "")
    Path("new.jsonl").write_text('{"word": ["the", "film", "unheard"]}\n')
    files = "--model", "tagger.ab", "--data", "new.jsonl", "--out", "found.jsonl"
    assert command("predict", *files, "--backend", "reference")[0] == 0
    tags = ab.readers.restore(ab.load("tagger.ab").about)["tag"]
    assert tags.decode(json.loads(Path("found.jsonl").read_text())["result"])[:2] == ["ADJ", "NOUN"]
    status, _, error = command("predict", *trained)
    assert status
    assert "cannot predict with" in error


def test_a_folder_has_training_and_development_data(module: str, command: Command) -> None:
    folder = Path("data")
    folder.mkdir()
    write_conll(folder / "train.conll", np.random.default_rng(0), 30)
    write_conll(folder / "dev.conll", np.random.default_rng(1), 7)
    status, out, _ = command("train", f"{module}:Tagger", "--data", folder, *OPTIONS, "--epochs", 1)
    assert (status, "30 instances to train on, 7 to measure on" in out) == (0, True)
    write_tu(Path("MADE"), np.random.default_rng(0), 40)
    status, out, _ = command("train", f"{module}:Graphs", "--data", "MADE", "--backend", "reference", "--epochs", 1)
    assert (status, "36 instances to train on, 4 to measure on" in out) == (0, True)
    write_tu(folder / "graphs" / "train", np.random.default_rng(0), 12)
    write_tu(folder / "graphs" / "dev", np.random.default_rng(0), 5)
    graphs = "train", f"{module}:Graphs", "--data", folder / "graphs", "--backend", "reference", "--epochs", 1
    assert "12 instances to train on, 5 to measure on" in command(*graphs)[1]


def test_vocabularies_are_those_of_the_training_data(module: str, tmp_path: Path) -> None:
    Path("all.conll").write_text("a X\nb X\n\na Y\n")
    spec, rng = find_model(f"{module}:Tagger"), np.random.default_rng(0)
    data = spec.load("all.conll", rng)
    assert data.sizes == {"n_word": 2, "n_tag": 2}
    assert data.items == [{"word": [1, 0], "tag": [0, 0]}, {"word": [1], "tag": [1]}]
    again: Any = spec.load("all.conll", rng, data.vocabularies)
    assert again.items == data.items
    assert spec.build(data, 8, rng).parameters()["words.weight"].shape == (2, 8)
    changed = spec.load("all.conll", rng).digest
    Path("all.conll").write_text("a X\nb X\n\na X\n")
    assert spec.load("all.conll", rng).digest != changed


def test_what_is_missing_is_said_in_a_sentence(module: str, command: Command) -> None:
    for data, told in (
        ((), "the model has no data of its own; give a file or a folder with --data"),
        (("--data", "none"), "there is no 'none'"),
        (("--data", "bad.conll"), "bad.conll, line 2, column 2: expected column 1 with the tag"),
    ):
        Path("bad.conll").write_text("\nx\n")
        status, _, error = command("train", f"{module}:Tagger", *data, *OPTIONS)
        assert status
        assert told in error
    write_conll(Path("all.conll"), np.random.default_rng(0), 20)
    assert command("train", f"{module}:Tagger", "--data", "all.conll", *OPTIONS, "--checkpoint", "run")[0] == 0
    Path("new.conll").write_text("film VERB\n")
    status, _, error = command("eval", f"{module}:Tagger", "--checkpoint", "run", "--data", "new.conll")
    assert status
    assert "an instance of new.conll: a label must be one of the 2 labels 'ADJ', 'NOUN', got 'VERB'" in error


def test_files_are_checked() -> None:
    wrong: Any = "words"
    with pytest.raises(ab.DataError, match="words of Files must be"):
        ab.readers.Files(ab.readers.read_jsonl, words=wrong)
