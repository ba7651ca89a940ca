"""Commands that train and measure on a device, and checkpoints moved between backends."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.cli.training.stored import LAST
from autobatch.params.checkpoint import load_checkpoint
from helpers.runs.commands import Command

TREES = ["(3 (2 good) (2 film))", "(1 (2 bad) (1 (2 long) (2 film)))", "(2 film)", "(4 (3 very) (3 good))"]
RUN = ("train", "tree-lstm", "--data", "trees.txt", "--dim", 4, "--batch-size", 20, "--lr", 0.03)
TOLERANCE = 1e-4  # of float32 losses

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def command(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs a command in this process, in a folder with data; the processor simulates a GPU."""
    (tmp_path / "trees.txt").write_text("\n".join(TREES * 10) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOBATCH_CUDA", "host")
    return command


def losses_of(path: str) -> list[float]:
    return [json.loads(line)["train_loss"] for line in Path(path).read_text().splitlines()]


def assert_close(one: str, other: str) -> None:
    """Check that the parameters and optimizer states of two runs are equal up to rounding."""
    arrays, others = (load_checkpoint(Path(folder, LAST)).arrays for folder in (one, other))
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, others[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_training_on_a_device_gives_the_losses_of_the_cpu(command: Command) -> None:
    """Also after resuming from the other backend's checkpoint, in both directions; and for measurements."""

    def train(folder: str, backend: str, epochs: int, *more: Any) -> str:
        words = (*RUN, "--epochs", epochs, "--backend", backend, "--checkpoint", folder, "--json", f"{folder}.jsonl")
        status, out, err = command(*words, *more)
        assert (status, err) == (0, "")
        return out

    train("cpu", "cpu", 3)
    for begun_on, finished_on in (("cuda", "cpu"), ("cpu", "cuda")):
        folder = f"from_{begun_on}"
        train(folder, begun_on, 2)
        out = train(folder, finished_on, 3, "--resume")
        assert "with another --backend, results are equal up to rounding, not bit-identical" in out
        np.testing.assert_allclose(losses_of(f"{folder}.jsonl"), losses_of("cpu.jsonl"), rtol=TOLERANCE)
        assert_close("cpu", folder)
    measured = [
        command("eval", "tree-lstm", "--checkpoint", "from_cpu", *backend)
        for backend in ((), ("--backend", "cpu"), ("--backend", "cuda"))
    ]
    assert measured[0][0] == 0
    assert measured[1:] == [measured[0]] * 2
    predicted = [
        command("predict", "tree-lstm", "--checkpoint", "cpu", "--backend", backend)[1] for backend in ("cpu", "cuda")
    ]
    assert predicted[0].count("\n") == predicted[1].count("\n") > 0


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_training_on_a_device_too(command: Command) -> None:
    """The error names the same mini-batch as on the CPU, whether losses are read each step, at checkpoints or late."""
    said = []
    for backend, *checkpoint in (["cpu"], ["cuda"], ["cuda", "--checkpoint", "run", "--checkpoint-steps", 1]):
        status, _, err = command(*RUN[:-1], 1e38, "--epochs", 3, "--backend", backend, *checkpoint)
        assert status == 2
        said += re.findall(r"training stopped in epoch \d/3, mini-batch \d+: the loss of \d+ of", err)
    assert said == [said[0]] * 3
