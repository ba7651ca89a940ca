"""`autobatch train --tensorboard`: TensorBoard reads the results back, including those of resumed runs."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.runs.commands import Command

TREES = ["(3 (2 good) (2 film))", "(1 (2 bad) (1 (2 long) (2 film)))", "(2 film)", "(4 (3 very) (3 good))"]
TRAIN = ("train", "tree-lstm", "--data", "trees.txt", "--dim", 4, "--batch-size", 8)
STEPS_PER_EPOCH = 14  # of 108 trees


@pytest.fixture
def command(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs a command in this process, in a folder with data."""
    (tmp_path / "trees.txt").write_text("\n".join(TREES * 30) + "\n")
    monkeypatch.chdir(tmp_path)
    return command


def read_scalars(folder: str, run: str) -> dict[str, list[tuple[int, float]]]:
    """Return the (step, value) pairs of each tag, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(Path(folder, run)), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def steps_of(scalars: dict[str, list[tuple[int, float]]]) -> dict[str, list[int]]:
    return {tag: [step for step, _ in points] for tag, points in scalars.items()}


def without_speed(scalars: dict[str, Any]) -> dict[str, Any]:
    return {tag: points for tag, points in scalars.items() if tag != "instances_per_s"}


def test_every_mini_batch_and_every_epoch_is_there(command: Command) -> None:
    status, out, err = command(*TRAIN, "--epochs", 2, "--tensorboard", "board")
    assert (status, err) == (0, "")
    steps, epochs = read_scalars("board", "steps"), read_scalars("board", "epochs")
    numbers = list(range(1, 2 * STEPS_PER_EPOCH + 1))
    assert steps_of(steps) == dict.fromkeys(("train/loss", "instances_per_s", "batches"), numbers)
    tags = ("train/loss", "dev/root_accuracy", "dev/nodes_accuracy", "instances_per_s", "batches")
    assert steps_of(epochs) == {tag: [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH] for tag in tags}
    for number, line in enumerate(line for line in out.splitlines() if line.startswith("epoch")):
        assert f"loss {epochs['train/loss'][number][1]:.4f}" in line
        assert f"dev root accuracy {epochs['dev/root_accuracy'][number][1]:.1%}" in line
    weights = [8] * (STEPS_PER_EPOCH - 1) + [108 - 8 * (STEPS_PER_EPOCH - 1)]
    losses = [loss for _, loss in steps["train/loss"][:STEPS_PER_EPOCH]]
    mean = sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / 108
    assert mean == pytest.approx(epochs["train/loss"][0][1], rel=1e-6)


def test_a_resumed_run_appends(command: Command) -> None:
    assert command(*TRAIN, "--epochs", 3, "--tensorboard", "whole", "--checkpoint", "unbroken")[0] == 0
    again = ("--tensorboard", "board", "--checkpoint", "run", "--resume")
    assert command(*TRAIN, *again, "--epochs", 1)[0] == 0
    assert command("train", "tree-lstm", *again, "--epochs", 3)[0] == 0
    for run in ("steps", "epochs"):
        assert without_speed(read_scalars("board", run)) == without_speed(read_scalars("whole", run))


@pytest.mark.slow
def test_a_killed_run_leaves_no_step_twice(command: Command, tmp_path: Path) -> None:
    """The checkpoint is older than the last steps written before the kill; these must appear once."""
    options = ["--tensorboard", "board", "--checkpoint", "run", "--checkpoint-steps", "1000"]
    arguments = [sys.executable, "-m", "autobatch.cli.main", *map(str, TRAIN), *options, "--epochs", "1000000"]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 60
        while not list(Path("run").glob("last*")) or len(read_or_none("board")) < STEPS_PER_EPOCH + 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(child.pid, signal.SIGKILL)
    status, out, _ = command("train", "tree-lstm", *options, "--resume", "--epochs", 1)
    assert status == 0
    n_done = int(out.split("resuming from ")[1].split(": ")[1].split()[0])
    n_epochs = n_done + 2
    assert command("train", "tree-lstm", *options, "--resume", "--epochs", n_epochs)[0] == 0
    for run, stride in (("steps", 1), ("epochs", STEPS_PER_EPOCH)):
        for tag, steps in steps_of(read_scalars("board", run)).items():
            assert steps == list(range(stride, n_epochs * STEPS_PER_EPOCH + 1, stride)), tag


def read_or_none(folder: str) -> list[tuple[int, float]]:
    """Return the losses so far; none before the files exist."""
    if not Path(folder, "steps").is_dir():
        return []
    return read_scalars(folder, "steps").get("train/loss", [])


def test_scalars_change_no_number(command: Command) -> None:
    for options in ([], ["--tensorboard", "board"]):
        assert command(*TRAIN, "--epochs", 2, "--checkpoint", f"run{len(options)}", *options)[0] == 0
    from autobatch.params.checkpoint import load_checkpoint

    plain, watched = (load_checkpoint(Path(run, "last.safetensors")).arrays for run in ("run0", "run2"))
    assert plain
    np.testing.assert_equal(watched, plain)


def test_a_missing_package_is_told_before_the_work(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))
    status, out, err = command(*TRAIN, "--tensorboard", "board", "--checkpoint", "run")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "the package tensorboard is not installed; pip install 'autobatch-nn[tensorboard]'" in err
    assert not Path("board").exists()
    assert not Path("run").exists()


def test_a_folder_that_cannot_be_written_ends_in_one_sentence(command: Command) -> None:
    status, out, err = command(*TRAIN, "--tensorboard", "trees.txt/board")
    assert (status, err.count("\n")) == (2, 1)
    assert "cannot write scalars to 'trees.txt/board': Not a directory" in err
    assert "epoch" not in out
