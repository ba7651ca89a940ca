"""Checkpoints and exported files with modified JSON and a valid checksum are refused in a sentence."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.cli.main import dispatch
from autobatch.cli.training.stored import LAST
from autobatch.params.checkpoint import read_safetensors, write_arrays
from helpers.runs.commands import Command
from helpers.runs.ways import each

MODELS = {"tree-lstm": "(3 (2 good) (2 film))\n(1 (2 bad) (2 film))\n", "bilstm-tagger": "Rome|A is|B\nRome|A\n"}
RUN = ("--dim", 4, "--batch-size", 8, "--epochs", 1, "--lr", 0.03, "--backend", "reference")
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 10**9, 2**63, 10**30, 1.5, float("nan"), float("inf"), "", "x", "\0", "\ud800",
    "a" * 5000, [], {}, [[]], ["a"], ["a", "a"], [1], {"a": 1}, {"a": "b"}, {"a": None},
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write data, a checkpoint and an exported file for each model; return the folder."""
    path = tmp_path_factory.mktemp("hostile")
    for model, lines in MODELS.items():
        data, run = path / f"{model}.txt", path / model
        data.write_text(lines * 10)
        words = ("train", model, "--data", data, *RUN, "--checkpoint", run)
        assert not dispatch([*map(str, words)])
        assert not dispatch([*map(str, ("export", model, "--checkpoint", run, "--out", path / f"{model}.ab"))])
    return path


def content_of(path: Path) -> Any:
    _, metadata = read_safetensors(path, "a test")
    return json.loads(metadata["state" if "state" in metadata else "content"])


def write(source: Path, target: Path, change: Callable[[Any], None] | str) -> None:
    """Copy a file with its JSON changed in place, or replaced by another text, and a valid checksum."""
    arrays, metadata = read_safetensors(source, "a test")
    key, content = "state" if "state" in metadata else "content", content_of(source)
    if not isinstance(change, str):
        change(content)
    text = change if isinstance(change, str) else json.dumps(content)
    write_arrays(target, arrays, {**{k: v for k, v in metadata.items() if k != "checksum"}, key: text}, "writing")


def mutate(content: Any, rng: np.random.Generator) -> None:
    """Change, drop or rename one value of a run's description; the many deep ones less often."""
    at, key = content, ""
    while True:
        keys = [*at] if isinstance(at, dict) else [*range(len(at))]
        key = keys[int(rng.integers(len(keys)))]
        if not isinstance(at[key], (dict, list)) or not at[key] or rng.random() < 0.2:
            break
        at = at[key]
    match int(rng.integers(8)):
        case 0:
            del at[key]
        case 1 if isinstance(at, dict):
            at["x"] = at.pop(key)
        case 2 if isinstance(at, list):
            at.append(at[key])
        case 3 if type(at[key]) is int:
            at[key] += int(rng.integers(-3, 4))
        case 4:
            for _ in range(int(rng.integers(1, 900))):
                at[key] = [at[key]]
        case _:
            at[key] = VALUES[int(rng.integers(len(VALUES)))]


def is_refused(command: Command, *words: object) -> bool:
    """Run a command; return whether it was refused in a sentence."""
    status, _, err = command(*words)
    assert status in (0, 2), err
    assert status == 0 or (err.startswith("autobatch: ") and err.count("\n") == 1), err
    return status == 2


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("use", ["predict", "exported", "resume"])
def test_changed_json_works_or_is_refused_in_a_sentence(
    model: str, use: str, folder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng, n_refused, n = np.random.default_rng(0), 0, 60
    for _ in range(n):
        if use == "exported":
            changed, source = tmp_path / "changed.ab", folder / f"{model}.ab"
            words: tuple[object, ...] = ("predict", "--model", changed, "--data", folder / f"{model}.txt")
            write(source, changed, lambda content: mutate(content["about"], rng))
        else:
            changed, source = tmp_path / LAST, folder / model / LAST
            write(source, changed, lambda content: mutate(content, rng))
            words = ("train", model, "--checkpoint", tmp_path, "--resume", "--epochs", 2)
            if use == "predict":
                words = ("predict", model, "--checkpoint", changed, "--data", folder / f"{model}.txt")
        n_refused += is_refused(command, *words)
    assert n_refused > n // 4


@each("model", ["antigravity:x", "evil:Model", "evil:", ":", "autobatch.models.tree_lstm:SPEC", "os:system"])
def test_a_file_does_not_choose_what_is_imported(
    model: str, folder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('imported', 'w')")
    write(folder / "tree-lstm.ab", Path("x.ab"), lambda content: content["about"]["settings"].update(model=model))
    data = "--data", folder / "tree-lstm.txt"
    for words in (("predict", *data), ("eval", *data), ("serve", "--port", 0), ("warm",)):
        status, _, err = command(*words, "--model", "x.ab")
        assert (status, "a file must not cause an import" in err) == (2, True), err
    assert not Path("imported").exists()
    assert "antigravity" not in sys.modules


def test_a_model_that_the_user_names_is_taken_from_a_file(
    folder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, data = "autobatch.models.tree_lstm:SPEC", ("--data", folder / "tree-lstm.txt")
    write(folder / "tree-lstm.ab", Path("x.ab"), lambda content: content["about"]["settings"].update(model=name))
    expected = command("predict", "--model", folder / "tree-lstm.ab", *data)
    assert expected[0] == 0
    assert command("predict", name, "--model", "x.ab", *data) == expected


@each("kind", ["tree-lstm.ab", "tree-lstm/" + LAST])
def test_json_of_any_depth_is_refused(kind: str, folder: Path, tmp_path: Path, command: Command) -> None:
    changed = tmp_path / LAST
    file = ("--model", changed) if kind.endswith(".ab") else ("tree-lstm", "--checkpoint", changed)
    words = (*file, "--data", folder / "tree-lstm.txt")
    content = content_of(folder / kind)
    for depth in (10, 900, 1100, 200_000):
        for opening, closing in (("[", "]"), ('{"a": ', "}")):
            inner = f"{opening * depth}1{closing * depth}"
            write(folder / kind, changed, inner)
            status, _, err = command("predict", *words)
            assert (status, str(changed) in err, err.count("\n")) == (2, True, 1)
            write(folder / kind, changed, f'{json.dumps(content)[:-1]}, "sizes": {inner}}}')
            is_refused(command, "predict", *words)


@each("dim", [41, 40_000, 10**6, 2**40])
def test_a_width_takes_no_memory_that_the_file_does_not(
    dim: int, folder: Path, tmp_path: Path, command: Command
) -> None:
    for model in MODELS:
        changed = tmp_path / LAST
        write(folder / model / LAST, changed, lambda content: content["settings"].update(dim=dim))
        tracemalloc.start()
        status, _, err = command("predict", model, "--checkpoint", changed, "--data", folder / f"{model}.txt")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (status, str(changed) in err) == (2, True)
        assert peak < 1 << 26
