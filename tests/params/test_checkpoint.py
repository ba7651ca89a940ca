"""Test checkpoint files, and that interrupted runs end with the same parameters."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from autobatch.cli.ending import run_to_the_end
from autobatch.cli.main import dispatch
from autobatch.cli.training.keeping import Keeper, Stopped
from autobatch.cli.training.stored import BEST, LAST
from autobatch.errors import CheckpointError
from autobatch.params.checkpoint import FORMAT, VERSION, load_checkpoint, save_checkpoint
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter

TREES = ["(3 (2 good) (2 film))", "(1 (2 bad) (1 (2 long) (2 film)))", "(2 film)", "(4 (3 very) (3 good))"]
MODEL = """
import autobatch as ab
from autobatch.models.tree_lstm import TreeLSTM

class Dropping(TreeLSTM):
    '''A Tree-LSTM with dropout.'''

    @ab.cell
    def node_loss(self, state, label):
        h, _ = state
        return ab.cross_entropy(self.output(ab.dropout(h, 0.5)), label)
"""
RUN = ("--dim", "4", "--batch-size", "8", "--epochs", "3", "--lr", "0.03", "--checkpoint-steps", "1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with 48 trees in a file, and a model with dropout in another."""
    (tmp_path / "trees.txt").write_text("\n".join(TREES * 12) + "\n")
    (tmp_path / "my_dropping.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_dropping", raising=False)
    return tmp_path


def train(checkpoint: str, *more: str, model: str = "my_dropping:Dropping") -> int:
    arguments = ["train", model, "--data", "trees.txt", *RUN, "--checkpoint", checkpoint, *more]
    return run_to_the_end(lambda: dispatch(arguments))


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arrays and state without the duration of the run."""
    arrays, state = load_checkpoint(path)
    state["position"].pop("seconds")
    return {name: (array.dtype, array.tolist()) for name, array in arrays.items()}, state


# --- files


def test_arrays_and_state_survive_a_round_trip(tmp_path: Path) -> None:
    arrays = {
        "matrix": np.arange(6.0, dtype=np.float32).reshape(2, 3).T,
        "number": np.array(np.pi),
        "none": np.zeros((0, 3)),
        "counts": np.array([1, 2**62]),
    }
    state = {"state": 2**127 + 1, "lr": 0.1, "words": ["naïve", "<b>"], "none": None}
    save_checkpoint(tmp_path / "last", arrays, state)
    loaded = load_checkpoint(tmp_path / "last")
    assert loaded.state == state
    assert loaded.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded.arrays[name], array, strict=True)
    assert os.listdir(tmp_path) == ["last"]


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "whole", {"weight": np.ones(3)}, {"epoch": 1})
    content = (tmp_path / "whole").read_bytes()
    for length in range(len(content)):
        (tmp_path / "part").write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"it is truncated or not a safetensors file"):
            load_checkpoint(tmp_path / "part")


def stored_as(**metadata: str) -> bytes:
    return safetensors.numpy.save({"weight": np.ones(2)}, metadata)


FOREIGN = {
    "pickle": (pickle.dumps({"weight": 1}), "it is truncated or not a safetensors file"),
    "arrays": (stored_as(), r"it holds arrays but not a checkpoint; .*save_checkpoint"),
    "other": (stored_as(format="pt"), "it holds arrays but not a checkpoint"),
    "newer": (
        stored_as(format=FORMAT, version=str(VERSION + 1), state="{}"),
        r"format version must be at most 2, got '3'",
    ),
    "no version": (stored_as(format=FORMAT, state="{}"), "format version must be at most 2, got ''"),
    "no checksum": (stored_as(format=FORMAT, version=str(VERSION), state="{}"), "its checksum is missing"),
    "no state": (stored_as(format=FORMAT, version="1"), "its state is missing or is not valid JSON"),
    "no JSON": (stored_as(format=FORMAT, version="1", state="{"), "its state is missing or is not valid JSON"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_or_newer_file_is_refused(tmp_path: Path, kind: str) -> None:
    content, message = FOREIGN[kind]
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"^cannot load '.*file': .*{message}"):
        load_checkpoint(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize("state", [{"array": np.ones(2)}, {"loss": float("nan")}])
def test_a_state_that_is_not_json_is_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"state must be a JSON value "):
        save_checkpoint(tmp_path / "last", {}, state)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_disk_that_fails_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    save_checkpoint(tmp_path / "last", {}, {"epoch": 1})

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(CheckpointError, match=r"cannot save '.*last': No space left on device"):
        save_checkpoint(tmp_path / "last", {}, {"epoch": 2})
    assert load_checkpoint(tmp_path / "last").state == {"epoch": 1}
    assert os.listdir(tmp_path) == ["last"]


def test_what_a_killed_process_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    kept = {".last.tmp", ".hidden", "0123456789abcdef.tmp", ".predictions.jsonl.0123456789abcdef.tmp"}
    for name in (*kept, ".last.0123456789abcdef.tmp", ".best.safetensors.00000000000000ff.tmp"):
        (tmp_path / name).write_bytes(b"part")
    save_checkpoint(tmp_path / "last", {}, {})
    assert set(os.listdir(tmp_path)) == {"last", *kept}


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file or directory"):
        save_checkpoint(tmp_path / "no" / "last", {}, {})


def test_what_module_save_wrote_is_no_checkpoint(tmp_path: Path) -> None:
    module = Module()
    module.weight = Parameter([1.0])  # type: ignore[attr-defined]
    module.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="it holds arrays but not a checkpoint"):
        load_checkpoint(tmp_path / "model")


# --- runs


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("model", ["tree-lstm", "my_dropping:Dropping"])
def test_a_run_stopped_anywhere_ends_as_the_unbroken_one(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    assert train("unbroken", model=model) == 0
    write = Keeper.write

    def write_and_stop(keeper: Keeper, name: str) -> None:
        write(keeper, name)
        if name == LAST:
            raise Stopped(signal.SIGTERM)

    n_stops = 0
    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "write", write_and_stop)
        while train("stopped", "--resume", model=model) == 128 + signal.SIGTERM:
            n_stops += 1
    assert n_stops == 3 * (6 + 1)  # after each of 6 mini-batches, and after each epoch
    for name in (LAST, BEST):
        assert contents(Path("stopped", name)) == contents(Path("unbroken", name)), name


@pytest.mark.usefixtures("folder")
def test_a_run_may_be_lengthened() -> None:
    assert train("once", "--epochs", "4") == 0
    assert train("twice", "--epochs", "2") == 0
    assert train("twice", "--resume", "--epochs", "4") == 0
    assert contents(Path("once", LAST)) == contents(Path("twice", LAST))


def kill_and_resume(folder: Path, n_kills: int, n_epochs: int) -> int:
    """Start and kill a run repeatedly at random moments; return how often it was unfinished."""
    command = [sys.executable, "-m", "autobatch.cli.main", "train", "my_dropping:Dropping", "--data", "trees.txt"]
    command += [*RUN, "--checkpoint", "killed", "--resume", "--epochs", str(n_epochs)]
    rng, n_killed = random.Random(n_kills), 0
    for _ in range(n_kills):
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
            assert child.stdout is not None
            first = child.stdout.readline()
            if first.startswith(b"no checkpoint in killed yet"):
                first = child.stdout.readline()
            assert first.startswith(b"my_dropping:Dropping, dim 4")
            try:
                child.wait(timeout=rng.uniform(0.0, 0.6))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                n_killed += 1
        assert len(os.listdir(folder / "killed")) <= 3  # two checkpoints, and one being written
        if Path(folder, "killed", LAST).exists():
            load_checkpoint(folder / "killed" / LAST)
    return n_killed


@pytest.mark.cases(0, 1)
@pytest.mark.parametrize("n_kills", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_as_the_unbroken_one(folder: Path, n_kills: int) -> None:
    n_epochs = 10 * n_kills
    assert kill_and_resume(folder, n_kills, n_epochs) > n_kills // 3
    seldom = ("--epochs", str(n_epochs), "--checkpoint-steps", "1000")
    assert train("killed", "--resume", *seldom) == 0
    assert train("unbroken", *seldom) == 0
    for name in (LAST, BEST):
        assert contents(folder / "killed" / name) == contents(folder / "unbroken" / name), name
    assert sorted(os.listdir(folder / "killed")) == [BEST, LAST]
