"""Test development data: drawn by the seed from a single file, or a separate file of a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.cli.training.stored import LAST_TENTH, read_run
from autobatch.models.data.dataset import load_texts, load_trees
from autobatch.models.data.tree import Tree
from autobatch.models.tree_lstm import load_two_type_trees
from autobatch.params.checkpoint import load_checkpoint, save_checkpoint
from helpers.runs.commands import Command


@pytest.mark.parametrize("n", [1, 9, 10, 57])
def test_a_tenth_is_drawn_by_the_seed(tmp_path: Path, n: int) -> None:
    """Both parts keep the order of the file; together they are the whole file."""
    (tmp_path / "texts.txt").write_text("".join(f"w{number} end\n" * 2 for number in range(n)))
    path = str(tmp_path / "texts.txt")
    splits = [load_texts(path, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    for data in splits:
        assert len(data.items) == 2 * n
        assert (len(data.dev), len(data.train)) == (2 * n // 10, 2 * n - 2 * n // 10)
        assert data.dev_places is not None
        assert list(data.dev_places) == sorted(data.dev_places)
        assert [data.items[place] for place in data.dev_places] == data.dev
    first, again, other = splits
    assert (first.train, first.dev, first.dev_places) == (again.train, again.dev, again.dev_places)
    if n > 9:
        assert first.dev_places != other.dev_places
        assert first.dev_places != range(2 * n - 2 * n // 10, 2 * n)


def test_a_file_sorted_by_label_has_all_labels_in_both_parts(tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    path.write_text("".join(f"({label} word)\n" * 50 for label in ("A", "B", "C")))
    data = load_trees(str(path), np.random.default_rng(0))
    for part in (data.train, data.dev):
        assert {tree.label for tree in part} == {0, 1, 2}
    kinds = load_two_type_trees(str(path), np.random.default_rng(0))
    assert [one.tree for one in kinds.items] == data.items


def test_a_folder_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("(1 a)\n" * 30)
    (tmp_path / "dev.txt").write_text("(1 b)\n" * 3)
    data = load_trees(str(tmp_path), np.random.default_rng(0))
    assert (data.train, data.dev, data.dev_places) == ([Tree.leaf(0, 1)] * 30, [Tree.leaf(0, 0)] * 3, None)


def test_labels_of_the_development_data_that_training_lacks_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("(1 (1 a) (0 b))\n" * 30)
    (tmp_path / "dev.txt").write_text("(9 (1 a) (0 b))\n(x (1 y) (0 b))\n")
    load = replace(load_trees, dev=str(tmp_path / "dev.txt"))
    with pytest.warns(UserWarning, match=r"dev\.txt has labels .* training data lacks, .*: '9', 'x'\."):
        data = load(str(tmp_path / "train.txt"), np.random.default_rng(0))
    assert [tree.label for tree in data.dev] == [-1, -1]
    with pytest.warns(UserWarning, match="'9', 'x'"):
        load_trees(str(tmp_path), np.random.default_rng(0))
    (tmp_path / "dev.txt").write_text("(1 (1 c) (0 b))\n")  # an unknown word is not an unknown label
    load(str(tmp_path / "train.txt"), np.random.default_rng(0))
    load_trees(str(tmp_path), np.random.default_rng(0), data.vocabularies)


def test_a_checkpoint_of_version_0_2_keeps_its_split_and_its_labels(command: Command, tmp_path: Path) -> None:
    """Its settings name no split, so the last tenth is held out, and its labels are the numbers below n_classes."""
    path = tmp_path / "trees.txt"
    path.write_text("".join(f"({label % 3} (1 w{label}) (2 word))\n" for label in range(40)))
    given = "--dim", 4, "--epochs", 1, "--backend", "reference", "--checkpoint", tmp_path / "run"
    assert command("train", "tree-lstm", "--data", path, *given)[0] == 0
    for file in (tmp_path / "run").iterdir():
        arrays, state = load_checkpoint(file)
        del state["settings"]["split"], state["closed"], state["vocabularies"]["classes"]
        save_checkpoint(file, arrays, json.loads(json.dumps(state)))
    stored = read_run(tmp_path / "run" / "last.safetensors")
    assert stored.settings.split == LAST_TENTH
    assert stored.encoding.vocabularies["classes"].words == ["0", "1", "2"]
    data = stored.load_workload().dataset
    assert (data.dev, data.dev_places) == (data.items[-4:], None)
    status, out, err = command("predict", "tree-lstm", "--checkpoint", tmp_path / "run")
    assert (status, len(out.splitlines()), err) == (0, 4, "")
    assert {type(json.loads(line)["label"]) for line in out.splitlines()} == {int}
    status, out, _ = command("train", "tree-lstm", "--checkpoint", tmp_path / "run", "--resume", "--epochs", 2)
    assert (status, "epoch 2:" in out) == (0, True)
    assert read_run(tmp_path / "run" / "last.safetensors").settings == replace(stored.settings, epochs=2)


def test_few_instances_are_predicted_whole(command: Command, tmp_path: Path) -> None:
    """With and without naming the file, although nothing was held out."""
    path = tmp_path / "tags.txt"
    path.write_text("a|O b|X\nb|X\na|O\n")
    given = "--dim", 4, "--epochs", 1, "--backend", "reference", "--checkpoint", tmp_path / "run"
    assert command("train", "bilstm-tagger", "--data", path, *given)[0] == 0
    for data in ((), ("--data", path)):
        status, out, err = command("predict", "bilstm-tagger", "--checkpoint", tmp_path / "run", *data)
        assert (status, err) == (0, "")
        assert [len(json.loads(line)["tags"]) for line in out.splitlines()] == [2, 1, 1]


@pytest.mark.parametrize("share", [0.1, 0.29, 0.3, 0.57, 0.999])
@pytest.mark.parametrize("n", [10, 100, 1001])
def test_a_share_of_a_file_is_held_out(tmp_path: Path, share: float, n: int) -> None:
    """Its number of instances is exact, although 0.29 * 100 < 29 in floats; the share of 0.1 is the default."""
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"w{number} end\n" for number in range(n)))
    data = replace(load_texts, share=share)(str(path), np.random.default_rng(0))
    assert len(data.dev) == int(Fraction(str(share)) * n)
    assert len(data.items) == n
    whole = load_texts(str(path), np.random.default_rng(0))
    assert (data.dev_places == whole.dev_places) == (share == 0.1)


@pytest.mark.parametrize("kind", ["file", "folder", "folder without dev.txt", "generator"])
def test_a_given_file_is_the_development_data(tmp_path: Path, kind: str) -> None:
    """It takes precedence over dev.txt, and all other instances are trained on."""
    (tmp_path / "train.txt").write_text("(1 a)\n" * 30)
    (tmp_path / "other.txt").write_text("(1 b)\n(1 a)\n")
    if kind == "folder":
        (tmp_path / "dev.txt").write_text("(1 a)\n" * 5)
    data = {"file": str(tmp_path / "train.txt"), "generator": "listops"}.get(kind, str(tmp_path))
    found = replace(load_trees, dev=str(tmp_path / "other.txt"))(data, np.random.default_rng(0))
    words = found.vocabularies["words"]
    assert [words.word(tree.word) for tree in found.dev] == ["<unknown>", "a" if kind != "generator" else "<unknown>"]
    assert (len(found.train), found.dev_places) == (4500 if kind == "generator" else 30, None)


def test_a_run_remembers_its_development_file(command: Command, tmp_path: Path) -> None:
    """`eval`, `predict`, `--resume` and an exported file use it, unless they are given other data."""
    train, dev, run = tmp_path / "train.txt", tmp_path / "dev_of_mine.txt", tmp_path / "run"
    train.write_text("(1 (1 a) (0 b))\n(0 (0 b) (0 b))\n" * 20)
    dev.write_text("(1 (1 a) (0 b))\n(1 (1 a) (1 a))\n(0 (0 b) (0 b))\n")
    given = "--dim", 4, "--lr", 0.03, "--backend", "reference", "--checkpoint", run
    words = "train", "tree-lstm", "--data", train, *given, "--json", tmp_path / "train.jsonl"
    assert command(*words, "--dev", dev, "--epochs", 1)[0] == 0
    status, out, err = command(*words, "--epochs", 2, "--resume")
    assert (status, err) == (0, "")
    assert "40 instances to train on, 3 to measure on" in out
    last = json.loads((tmp_path / "train.jsonl").read_text().splitlines()[-1])
    assert command("export", "tree-lstm", "--checkpoint", run / "last.safetensors", "--out", run / "x.ab")[0] == 0
    for model in (("tree-lstm", "--checkpoint", run / "last.safetensors"), ("--model", run / "x.ab")):
        status, out, _ = command("eval", *model, "--json", tmp_path / "eval.jsonl")
        assert (status, out.split(":")[0]) == (0, f"{dev}, 3 instances")
        measured = json.loads((tmp_path / "eval.jsonl").read_text())
        assert measured["root_accuracy"] == last["dev_root_accuracy"]
        predicted = command("predict", *model)
        assert predicted == command("predict", *model, "--data", dev)
        labels = [json.loads(line)["label"] for line in predicted[1].splitlines()]
        right = sum(found == meant for found, meant in zip(labels, [1, 1, 0], strict=True))
        assert measured["root_accuracy"] == right / 3
        assert len(command("predict", *model, "--data", train)[1].splitlines()) == 40
    for other, why in (
        (("--dev", train), f"dev must be {dev} as before, got {train}"),
        (("--split", 0.5), "split must be left out as before, got 0.5"),
    ):
        status, _, err = command(*words, "--epochs", 3, "--resume", *other)
        assert (status, err.count("\n"), why in err) == (2, 1, True), err


def test_a_run_remembers_its_share(command: Command, tmp_path: Path) -> None:
    path, run = tmp_path / "trees.txt", tmp_path / "run"
    path.write_text("".join(f"({n % 3} (1 w{n % 7}) (2 word))\n" for n in range(40)))
    given = "--dim", 4, "--epochs", 1, "--backend", "reference", "--checkpoint", run
    status, out, _ = command("train", "tree-lstm", "--data", path, *given, "--split", 0.35)
    assert (status, "26 instances to train on, 14 to measure on" in out) == (0, True)
    data = read_run(run / "last.safetensors").load_workload().dataset
    assert (len(data.train), len(data.dev)) == (26, 14)
    assert len(command("predict", "tree-lstm", "--checkpoint", run)[1].splitlines()) == 14
    status, _, err = command("train", "tree-lstm", "--checkpoint", run, "--resume", "--split", 0.3)
    assert (status, "split must be 0.35 as before, got 0.3" in err) == (2, True)


def test_a_choice_of_development_data_may_be_refused(command: Command, tmp_path: Path) -> None:
    one, few = tmp_path / "one.txt", tmp_path / "few.txt"
    one.write_text("(1 a)\n" * 30)
    few.write_text("(1 a)\n" * 9)
    (tmp_path / "train.txt").write_text("(1 a)\n" * 30)
    refused: list[tuple[tuple[Any, ...], str]] = [
        (("--data", one, "--dev", few, "--split", 0.5), "give either --dev PATH or --split SHARE"),
        (("--data", tmp_path, "--split", 0.5), "only a single file is split"),
        (("--data", "listops", "--split", 0.5), "only a single file is split"),
        (("--data", few, "--split", 0.1), "less than one of its 9 instances"),
        (("--data", "a" * 5000), "no such file, folder or generator"),
        (("--data", one, "--dev", "a" * 5000), "file name too long"),
        (("--data", one, "--dev", tmp_path / "none.txt"), "none.txt"),
        (("--data", one, "--dev", tmp_path), "is a directory"),
        (("--data", one, "--dev", ""), "must be a path, got ''"),
        *[(("--data", one, "--split", share), "above 0 and below 1, got") for share in (0, 1, -0.1, "10%", "nan")],
    ]
    for words, why in refused:
        status, out, err = command("train", "tree-lstm", *words)
        assert (status, out, err.count("\n"), why in err) == (2, "", 1, True), err


OWN = """
import numpy as np
import autobatch as ab
from autobatch.models import ModelSpec
from autobatch.models.data.dataset import Dataset
from autobatch.models.tree_lstm import SPEC as TREE_LSTM
from dataclasses import replace

class Sums(ab.Module):
    def __init__(self, dim, rng):
        self.hidden, self.output = ab.Linear(1, dim, rng=rng), ab.Linear(dim, 1, rng=rng)

    @ab.cell
    def read(self, x):
        return self.output(ab.tanh(self.hidden(x)))[0]

    @ab.cell
    def error(self, found, target):
        return ab.squared_error(found, target)

    def scores(self, x):
        return self.read(np.array([x]))

    def loss(self, x):
        return self.error(self.scores(x), x)

def load(data, rng, vocabularies=None):
    numbers = [*map(float, np.loadtxt(data))]
    return Dataset(data, numbers[:-1], numbers[-1:], {}, {})

def count(outputs, instances, vocabularies):
    return {"mae": (float(np.abs(outputs - instances).sum()), len(instances))}

SPEC = ModelSpec("sums", "", Sums, (), "numbers", "numbers.txt", load, count_correct=count, costs=("mae",),
                 predict=lambda outputs, instances, vocabularies: [{"of": x} for x in instances])
OWN_SHARE = replace(TREE_LSTM, name="own-share", load=replace(TREE_LSTM.load, share=0.5))
OWN_LOAD = replace(TREE_LSTM, name="own-load", load=lambda *given: TREE_LSTM.load(*given))
BARE = ModelSpec("bare", "", Sums, (), "numbers", "numbers.txt", load)
"""


def test_a_model_with_data_of_its_own_has_the_same_options(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its load reads both files; it must be a `Loader` for a share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_held_out.py").write_text(OWN)
    Path("numbers.txt").write_text("1\n2\n3\n")
    Path("other.txt").write_text("5\n7\n")
    given = "--dim", 4, "--epochs", 1, "--backend", "reference"
    words = "train", "own_held_out:SPEC", *given, "--checkpoint", "run", "--dev", "other.txt"
    status, out, err = command(*words)
    assert (status, err) == (0, "")
    assert "2 instances to train on, 2 to measure on" in out
    status, out, _ = command("predict", "own_held_out:SPEC", "--checkpoint", "run")
    assert [json.loads(line)["of"] for line in out.splitlines()] == [5.0, 7.0]
    Path("trees.txt").write_text("(1 a)\n" * 20)
    for options, n_dev in (((), 10), (("--split", 0.2), 4)):
        out = command("train", "own_held_out:OWN_SHARE", "--data", "trees.txt", *given, *options)[1]
        assert f"{20 - n_dev} instances to train on, {n_dev} to measure on" in out
    for name, option, why in (
        ("SPEC", ("--split", 0.5), "its load is a function, which divides the data itself"),
        (
            "BARE",
            ("--dev", "other.txt"),
            "metrics; bare has none, as its ModelSpec has no count_correct",
        ),
    ):
        status, _, err = command("train", f"own_held_out:{name}", *given, *option)
        assert (status, why in err, err.count("\n")) == (2, True, 1), err
    Path("folder").mkdir()
    Path("folder/train.txt").write_text("(1 a)\n" * 5)
    Path("folder/dev.txt").write_text("(1 a)\n" * 3)
    out = command("train", "own_held_out:OWN_LOAD", "--data", "trees.txt", *given, "--dev", "folder")[1]
    assert "20 instances to train on, 3 to measure on" in out
    assert command("train", "own_held_out:BARE", *given, "--checkpoint", "bare")[0] == 0
    for name, part in (("eval", "count_correct"), ("predict", "predict")):
        status, _, err = command(name, "own_held_out:BARE", "--checkpoint", "bare")
        assert (status, f"its ModelSpec has no {part}" in err, err.count("\n")) == (2, True, 1), err


@pytest.mark.parametrize("model", ["tree-lstm", "own_held_out:OWN_LOAD"])
def test_changed_development_data_is_noticed(
    model: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a `load` that is a function, whose instances are all trained on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_held_out.py").write_text(OWN)
    Path("trees.txt").write_text("(1 a)\n(0 b)\n" * 10)
    words = "train", model, "--data", "trees.txt", "--dev", "dev.txt", "--dim", 4, "--backend", "reference"
    Path("dev.txt").write_text("(1 a)\n")
    status, out, _ = command(*words, "--epochs", 1, "--checkpoint", "run")
    assert (status, "20 instances to train on, 1 to measure on" in out) == (0, True), out
    assert command(*words, "--epochs", 2, "--checkpoint", "run", "--resume")[0] == 0
    Path("dev.txt").write_text("(0 b)\n")
    status, _, err = command(*words, "--epochs", 3, "--checkpoint", "run", "--resume")
    assert (status, "the development data in dev.txt has changed" in err) == (2, True), err


def test_changed_development_data_of_a_folder_is_noticed(command: Command, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("(1 a)\n(0 b)\n")
    (tmp_path / "dev.txt").write_text("(1 a)\n")
    given = "--data", tmp_path, "--dim", 4, "--backend", "reference", "--checkpoint", tmp_path / "run"
    assert command("train", "tree-lstm", *given, "--epochs", 1)[0] == 0
    (tmp_path / "dev.txt").write_text("(0 b)\n")
    status, _, err = command("train", "tree-lstm", *given, "--epochs", 2, "--resume")
    assert (status, f"the development data in {tmp_path} has changed" in err) == (2, True), err


def test_the_split_is_described(command: Command) -> None:
    status, out, _ = command("train", "--help")
    assert status == 0
    assert "10%, or the share of --split, are held out at random, by --seed" in " ".join(out.split())
