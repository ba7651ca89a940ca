"""Training with --patience ends once the development data shows no improvement."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.cli.training.scoring import Scorer
from autobatch.cli.training.stored import BEST, LAST
from autobatch.params.checkpoint import load_checkpoint, save_checkpoint
from helpers.runs.commands import Command

TREES = "(3 (2 good) (2 film))\n(1 (2 bad) (1 (2 long) (2 film)))\n(2 film)\n(4 (3 very) (3 good))\n"
RUN = ("train", "tree-lstm", "--data", "trees.txt", "--dim", 4, "--batch-size", 16, "--lr", 0.03)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with data the current one."""
    (tmp_path / "trees.txt").write_text(TREES * 10)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_json(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def simulate(values: list[float], patience: int, n_epochs: int) -> tuple[int, int]:
    """Return the number of epochs and the best one, 0 without one, by trying each end."""
    for n in range(1, n_epochs + 1):
        finite = [value for value in values[:n] if math.isfinite(value)]
        best = values.index(max(finite)) + 1 if finite else 0
        if n - best >= patience:
            break
    return n, best


@pytest.mark.parametrize("patience", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_training_ends_when_the_metric_does_not_improve(
    seed: int, patience: int, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is resumed after every epoch ends after the same epoch, with the same best one."""
    drawn = np.random.default_rng(seed).choice([math.nan, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 8, p=[0.16, *[0.14] * 6])
    n_epochs, best = simulate(drawn.tolist(), patience, 6)
    values = iter(drawn.tolist())
    monkeypatch.setattr(Scorer, "measure", lambda self: {"root_accuracy": next(values)})
    words = *RUN, "--patience", patience, "--backend", "reference"
    status, out, err = command(*words, "--epochs", 6, "--checkpoint", "whole", "--json", "whole.jsonl")
    assert (status, err) == (0, "")
    assert len(read_json("whole.jsonl")) == n_epochs
    last = out.splitlines()[-1]
    stuck = n_epochs - best >= patience
    assert last.startswith(f"training ended after epoch {n_epochs} ({'no improvement for' if stuck else 'all'}")
    assert (f"best is epoch {best}:" if best else "no epoch has finite metrics") in last
    assert (Path("whole") / BEST).exists() == (best > 0)
    values = iter(drawn.tolist())
    for n in range(1, 7):
        status, resumed, _ = command(*words, "--epochs", n, "--checkpoint", "parts", "--json", "x.jsonl", "--resume")
        assert status == 0
    assert resumed.splitlines()[-1] == last
    for name in [LAST] + [BEST] * (best > 0):
        whole, parts = load_checkpoint(Path("whole", name)), load_checkpoint(Path("parts", name))
        np.testing.assert_equal(parts.arrays, whole.arrays)
        assert (whole.state["best_epoch"], whole.state["best"]) == (parts.state["best_epoch"], parts.state["best"])
    assert whole.state["best_epoch"] == best
    assert whole.state["position"]["epochs"] == (best if best else n_epochs)


def test_the_epochs_that_ran_are_those_of_a_run_without_patience(command: Command, folder: Path) -> None:
    """Bit-identical, and the best epoch is that of the JSON lines; `eval` measures its checkpoint."""
    given = *RUN, "--epochs", 12, "--lr", 0.1
    status, out, _ = command(*given, "--patience", 2, "--checkpoint", "run", "--json", "run.jsonl")
    assert status == 0
    stopped = read_json("run.jsonl")
    assert len(stopped) < 12
    assert command(*given, "--epochs", len(stopped), "--checkpoint", "free", "--json", "free.jsonl")[0] == 0
    fields = "epoch", "train_loss", "dev_root_accuracy", "dev_nodes_accuracy"
    assert [[one[field] for field in fields] for one in stopped] == [
        [one[field] for field in fields] for one in read_json("free.jsonl")
    ]
    for name in (LAST, BEST):
        ended, free = (load_checkpoint(Path(place, name)).arrays for place in ("run", "free"))
        np.testing.assert_equal(ended, free)
    best = max(stopped, key=lambda one: (one["dev_root_accuracy"], one["dev_nodes_accuracy"], -one["epoch"]))
    assert best["epoch"] == len(stopped) - 2
    shown = f"dev root accuracy {best['dev_root_accuracy']:.1%}"
    assert f"(no improvement for 2 epochs); best is epoch {best['epoch']}:  {shown}" in out.splitlines()[-1]
    assert command("eval", "tree-lstm", "--checkpoint", "run", "--json", "eval.jsonl")[0] == 0
    assert read_json("eval.jsonl")[0]["root_accuracy"] == best["dev_root_accuracy"]
    status, out, _ = command(*RUN[:4], "--checkpoint", "run", "--resume", "--patience", 3, "--lr", 0.1)
    assert f"training ended after epoch {len(stopped) + 1}" in out.splitlines()[-1]


def test_a_run_of_an_earlier_version_counts_from_where_it_resumes(command: Command, folder: Path) -> None:
    given = *RUN, "--backend", "reference", "--checkpoint", "run"
    assert command(*given, "--lr", 0, "--epochs", 3)[0] == 0
    arrays, state = load_checkpoint(f"run/{LAST}")
    assert state.pop("best_epoch") == 1
    del state["settings"]["patience"]
    save_checkpoint(f"run/{LAST}", arrays, state)
    status, out, _ = command(*given, "--lr", 0, "--epochs", 9, "--patience", 2, "--resume")
    assert (status, "training ended after epoch 5" in out) == (0, True)


def test_a_patience_needs_measurements(command: Command, folder: Path) -> None:
    Path("few.txt").write_text(TREES)
    Path("own_patience.py").write_text(
        "import autobatch as ab\nclass Bare(ab.Module):\n    def loss(self, tree):\n        return 0.0\n"
    )
    for words, why in (
        (("tree-lstm", "--data", "few.txt", "--patience", 2), "needs development data; few.txt has none"),
        (("own_patience:Bare", "--patience", 2), "own_patience:Bare has none, as its class has no method scores(tree)"),
        (("tree-lstm", "--patience", 0), "must be an int of at least 1, got '0'"),
    ):
        status, _, err = command("train", *words)
        assert (status, why in err, err.count("\n")) == (2, True, 1), err
