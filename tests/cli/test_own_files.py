"""`autobatch train` reads files by the reader that a user's class names."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.serving.predictor import Predictor
from autobatch.cli.training.stored import BEST
from autobatch.cli.training.trained import Trained
from autobatch.models import find_model
from autobatch.params.checkpoint import load_checkpoint, save_checkpoint
from helpers.data.files import write_conll, write_tu
from helpers.runs.commands import Command
from helpers.runs.ways import each

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
    for data, n in (("new.conll", 30), ("all.conll", 200)):
        status, out, error = command("eval", f"{module}:Tagger", "--checkpoint", "run", "--data", data)
        assert (status, error) == (0, "")
        assert f"{data}, {n} instances:  loss 0." in out


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
    told = "autobatch export.* --model FILE"
    status, _, error = command("predict", *trained)
    assert (status, bool(re.search(told, error))) == (2, True), error
    with pytest.raises(ab.DataError, match=told):
        Predictor.of(Trained(f"{module}:Tagger", Path("run")).read())


def test_a_model_without_a_fold_is_not_exported(module: str, command: Command) -> None:
    write_tu(Path("MADE"), np.random.default_rng(0), 12)
    trained = f"{module}:Graphs", "--checkpoint", "run"
    assert command("train", *trained, "--data", "MADE", "--backend", "reference", "--epochs", 1)[0] == 0
    status, _, error = command("export", *trained, "--out", "graphs.ab")
    assert (status, Path("graphs.ab").exists()) == (2, False)
    assert f"{module}:Graphs: its attribute predict must be an ab.fold, ab.scan or ab.fold_edges" in error


def test_a_folder_has_training_and_development_data(module: str, command: Command) -> None:
    folder = Path("data")
    folder.mkdir()
    write_conll(folder / "train.conll", np.random.default_rng(0), 30)
    write_conll(folder / "dev.conll", np.random.default_rng(1), 7)
    status, out, _ = command("train", f"{module}:Tagger", "--data", folder, *OPTIONS, "--epochs", 1)
    assert (status, "30 instances to train on, 7 to measure on" in out) == (0, True)
    write_tu(Path("MADE"), np.random.default_rng(0), 40)
    words = f"{module}:Graphs", "--data", "MADE", "--checkpoint", "run"
    status, out, _ = command("train", *words, "--backend", "reference", "--epochs", 1)
    assert (status, "36 instances to train on, 4 to measure on" in out) == (0, True)
    assert command("eval", *words)[1].startswith("MADE, 40 instances:")
    assert command("eval", words[0], *words[3:])[1].startswith("MADE, 4 instances:")
    write_tu(folder / "graphs" / "train", np.random.default_rng(0), 12)
    write_tu(folder / "graphs" / "dev", np.random.default_rng(0), 5)
    graphs = "train", f"{module}:Graphs", "--data", folder / "graphs", "--backend", "reference", "--epochs", 1
    assert "12 instances to train on, 5 to measure on" in command(*graphs)[1]


def test_parts_of_folders_are_found_separately(module: str, command: Command) -> None:
    for n, name in ((30, "train"), (7, "dev"), (5, "other")):
        write_conll(Path(f"{name}.conll"), np.random.default_rng(n), n)
    for name, files in {
        "only": ["train.conll"], "onlydev": ["dev.conll"], "kept": ["train.conll", "train.conll~", "dev.conll"],
        "several": ["train.conll", "train.old", "dev.conll"], "whole": ["other.conll"],
    }.items():  # fmt: skip
        Path(name).mkdir()
        for file in files:
            Path(name, file).write_text(Path(f"{file.partition('.')[0]}.conll").read_text("utf-8"), "utf-8")
    words = "train", f"{module}:Tagger", *OPTIONS, "--epochs", 1
    for data, options, told in (
        ("only", ("--dev", "dev.conll"), "30 instances to train on, 7 to measure on"),
        ("only", ("--checkpoint", "run"), "27 instances to train on, 3 to measure on"),
        ("only", ("--split", 0.2), "24 instances to train on, 6 to measure on"),
        ("kept", (), "30 instances to train on, 7 to measure on"),
        ("kept", ("--dev", "other.conll"), "30 instances to train on, 5 to measure on"),
        ("train.conll", ("--dev", "other.conll"), "30 instances to train on, 5 to measure on"),
        ("train.conll", ("--split", 0.5), "15 instances to train on, 15 to measure on"),
    ):
        status, out, error = command(*words, "--data", data, *options)
        assert (status, error, told in out) == (0, "", True), (data, options, out)
    for data, n in (("onlydev", 7), ("kept", 7), ("only", 30)):
        out = command("eval", f"{module}:Tagger", "--checkpoint", "run", "--data", data)[1]
        assert out.startswith(f"{data}, {n} instances:"), out
    for data, options, told in (
        ("onlydev", (), "cannot train on 'onlydev': it holds development data, but neither train nor train.*"),
        ("several", (), "several must hold one train or train.*, got train.conll, train.old"),
        ("several", ("--dev", "dev.conll"), "got train.conll, train.old"),
        ("kept", ("--class-weights", "balanced"), f"{module}:Tagger is a class, so make an autobatch.models.ModelSpec"),
        ("kept", ("--seed=1", "--scale-targets"), f"{module}:Tagger is a class, so make an autobatch.models.ModelSpec"),
        ("kept", ("--split", 0.5), "cannot hold out 0.5 of 'kept'"),
        ("whole", (), "cannot read sentences from whole: is a directory"),
    ):
        status, _, error = command(*words, "--data", data, *options)
        assert (status, told in error, error.count("\n")) == (2, True, 1), error


def test_a_folder_may_be_the_development_data(module: str, command: Command) -> None:
    write_tu(Path("MADE"), np.random.default_rng(0), 12)
    write_tu(Path("OTHER"), np.random.default_rng(1), 5)
    words = "train", f"{module}:Graphs", "--data", "MADE", "--backend", "reference", "--epochs", 1
    assert "12 instances to train on, 5 to measure on" in command(*words, "--dev", "OTHER")[1]


def test_labels_are_those_of_the_whole_file(module: str) -> None:
    """So a rare one may be held out; rare words may not, and an unknown label of other data is named with its place."""
    Path("all.conll").write_text("a X\n\n" * 19 + "b Y\nb Y\n")
    load, n_rare = find_model(f"{module}:Tagger").load, 0
    for seed in range(20):
        data = load("all.conll", np.random.default_rng(seed))
        is_held_out = {"word": [0, 0], "tag": [1, 1]} in data.dev
        assert data.sizes == {"n_word": 2 if is_held_out else 3, "n_tag": 2}
        n_rare += is_held_out
    assert 0 < n_rare < 20
    Path("data").mkdir()
    Path("data/train.conll").write_text("a X\n")
    Path("data/dev.conll").write_text("a X\n\na Y\n")
    with pytest.raises(ab.DataError, match=r"instance 2 of data/dev\.conll: .* a label must be one of .* 'X', got 'Y'"):
        load("data", np.random.default_rng(0))


def test_changed_development_data_is_noticed(module: str, command: Command) -> None:
    for n, name in ((30, "train"), (7, "dev")):
        write_conll(Path(f"{name}.conll"), np.random.default_rng(n), n)
    words = "train", f"{module}:Tagger", *OPTIONS, "--data", "train.conll", "--dev", "dev.conll", "--checkpoint", "run"
    assert command(*words, "--epochs", 1)[0] == 0
    assert command(*words, "--epochs", 2, "--resume")[0] == 0
    write_conll(Path("dev.conll"), np.random.default_rng(8), 7)
    status, _, error = command(*words, "--epochs", 3, "--resume")
    assert (status, "the development data in dev.conll has changed" in error) == (2, True), error


def test_checkpoints_are_those_of_the_fields(module: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write_conll(Path("all.conll"), np.random.default_rng(0), 30)
    trained = f"{module}:Tagger", "--checkpoint", "run"
    assert command("train", *trained, *OPTIONS, "--data", "all.conll", "--epochs", 1)[0] == 0
    arrays, state = load_checkpoint(f"run/{BEST}")
    for change, told in (
        ({"sizes": {**state["sizes"], "n_tag": 9}}, "sizes.n_tag must be 2, the size of the vocabulary, got 9"),
        ({"vocabularies": {"word": state["vocabularies"]["word"]}}, "the vocabulary of tag, which"),
        ({"closed": [], "sizes": {**state["sizes"], "n_tag": 3}}, "tag must be one of the words of"),
        ({"scales": {"target_mean": 0.0, "target_std": 1.0, "n_tag": 1}}, "scales must be target_mean and target_std"),
    ):
        save_checkpoint(f"run/{BEST}", arrays, {**state, **change})
        status, _, error = command("eval", *trained)
        assert (status, told in error, error.count("\n")) == (2, True, 1), error
    save_checkpoint(f"run/{BEST}", arrays, state)
    tagger = sys.modules[module].Tagger
    files = tagger.files
    for fields, told in (
        ({"words": ["word", "lemma"]}, "the vocabulary of lemma, which"),
        ({"words": ["word", "tag"], "labels": []}, "tag must be one of the labels of"),
    ):
        monkeypatch.setattr(tagger, "files", replace(files, **fields))
        status, _, error = command("eval", *trained)
        assert (status, told in error) == (2, True), error
        assert "restore the attribute files of its class, or train it again" in error


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
        ((), "--data"),
        (("--data", "none"), "'none' does not exist"),
        (("--data", "a" * 5000), "cannot load data: 'aaa"),
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
    assert "instance 1 of new.conll: field 'tag': a label must be one of the 2 labels 'ADJ', 'NOUN', got" in error


@each(
    "fields, told",
    [
        ({"words": "words"}, "words of Files must be"),
        ({"min_count": 0}, "min_count of Files must be an int of at least 1, got 0"),
        ({"words": ["a", "b"], "labels": ["b"]}, r"labels of Files must be other fields than words, got \['b'\]"),
    ],
)
def test_files_are_checked(fields: Any, told: str) -> None:
    with pytest.raises(ab.DataError, match=told):
        ab.readers.Files(ab.readers.read_jsonl, **fields)


def test_fields_must_have_values() -> None:
    read = [{"word": ["a", "b"], "tag": ["X", "Y"]}, {"word": []}]
    wrong: tuple[Any, ...] = ({"words": ["form"]}, {"labels": ["tga"]})
    for fields in wrong:
        files = ab.readers.Files(ab.readers.read_jsonl, **fields)
        with pytest.raises(ab.DataError, match=r"must be in the instances, which have the fields word, tag"):
            files.collect(read, read)
    assert len(ab.readers.Files(ab.readers.read_jsonl, words=["word"]).collect(read, read)["word"]) == 1


def test_errors_of_a_reader_and_of_the_class_are_sentences(
    module: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("x.txt").write_text("x\n")
    tagger = sys.modules.get(module) or importlib.import_module(module)

    def fail(path: Path) -> list[Any]:
        return [int(path.read_text())]

    for files, told in (
        (
            ab.readers.Files(fail),
            r"the reader of `files` failed in .*test_own_files\.py, line \d+ \(ValueError: ",
        ),
        (fail, "files of own_.*:Tagger must be an autobatch.readers.Files, got a function"),
    ):
        monkeypatch.setattr(tagger.Tagger, "files", files)
        status, _, error = command("train", f"{module}:Tagger", "--data", "x.txt", *OPTIONS)
        assert (status, error.count("\n")) == (2, 1), error
        assert re.search(told, error), error
