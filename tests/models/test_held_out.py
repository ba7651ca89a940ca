"""Test development data: drawn by the seed from a single file, or a separate file of a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autobatch.cli.training.stored import LAST_TENTH, read_run
from autobatch.models.data.dataset import load_texts, load_trees
from autobatch.models.data.tree import Tree
from autobatch.models.data.two_type_tree import load_two_type_trees
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


def test_the_split_is_described(command: Command) -> None:
    status, out, _ = command("train", "--help")
    assert status == 0
    assert "10%, drawn by --seed, are held out" in " ".join(out.split())
