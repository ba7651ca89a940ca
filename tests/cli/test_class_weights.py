"""Training with --class-weights multiplies the loss of each instance by the weight of its label."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.training.scoring import weigh_instances
from autobatch.cli.training.stored import LAST
from autobatch.cli.training.trained import Trained
from autobatch.cli.workload import Workload, load_workload
from autobatch.params.checkpoint import load_checkpoint
from helpers.runs.commands import Command

LINES = {
    "tree-lstm": "(A (B good) (C film))\n" * 9 + "(B (B bad) (B film))\n" * 5 + "(C (A dull) (B play))\n" * 2,
    "tree-lstm-2type": "(A (B good) (C film))\n" * 9 + "(B (B bad) (B film))\n" * 5 + "(C dull)\n" * 2,
    "tree-lstm-childsum": "(A (B good) (C film))\n" * 9 + "(B (B bad) (B film))\n" * 5 + "(C (A dull))\n" * 2,
    "early-exit": "(A (B good) (C film))\n" * 9 + "(B (B bad) (B film))\n" * 5 + "(C (A dull) (B play))\n" * 2,
    "grid-lstm": "a b\ta c\tA\n" * 9 + "a\tb b\tB\n" * 5 + "b\ta\tC\n" * 2,
}
COUNTS = {"A": 9, "B": 5, "C": 2}
RUN = ("--dim", 4, "--backend", "reference", "--dev", "data.txt", "--data", "data.txt")
GIVEN = {
    "balanced": None,
    "B=0.25,C=3": {"A": 1.0, "B": 0.25, "C": 3.0},
    "weights.json": {"A": 2.0, "B": 0.0, "C": 1.0},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("weights.json").write_text('{"A": 2, "B": 0.0}')


def weights_of(given: str) -> dict[str, float]:
    return GIVEN[given] or {label: 16 / (3 * n) for label, n in COUNTS.items()}


def root_labels(model: str) -> list[str]:
    lines = LINES[model].splitlines()
    return [line[-1] if "\t" in line else line[1] for line in lines]


@pytest.mark.parametrize("model", LINES)
@pytest.mark.parametrize("given", GIVEN)
def test_the_loss_is_the_weighted_mean(model: str, given: str, command: Command) -> None:
    """With a learning rate of 0, that of an epoch equals the sum of eager losses in float64, each times its weight."""
    Path("data.txt").write_text(LINES[model])
    words = "train", model, *RUN, "--lr", 0, "--epochs", 1, "--batch-size", 5, "--class-weights", given
    status, _, err = command(*words, "--checkpoint", "run", "--json", "x.jsonl")
    assert (status, err) == (0, "")
    workload = Trained(model, Path("run")).read().load_workload()
    exact = workload.model.astype("float64")
    losses = [float(ab.eager(exact.loss, instance)) for instance in workload.dataset.train]
    labels = root_labels(model)
    assert Counter(labels) == COUNTS
    weighted = [weights_of(given)[label] * loss for label, loss in zip(labels, losses, strict=True)]
    (result,) = [json.loads(line) for line in Path("x.jsonl").read_text().splitlines()]
    assert result["train_loss"] == pytest.approx(sum(weighted) / 16, rel=1e-5)
    assert abs(sum(weighted) - sum(losses)) > 1e-3


def test_a_step_follows_the_weighted_gradients(command: Command) -> None:
    """Parameters equal those after a step of Adam with the sum of the gradients of single instances, each weighted."""
    Path("data.txt").write_text(LINES["tree-lstm"])
    words = "train", "tree-lstm", *RUN, "--lr", 0.01, "--epochs", 1, "--batch-size", 16
    assert command(*words, "--class-weights", "balanced", "--checkpoint", "run")[0] == 0
    fresh = load_workload("tree-lstm", "data.txt", 4, 0, dev="data.txt")
    loss, total, plain = ab.batched(fresh.model.loss, backend="reference"), dict[str, Any](), dict[str, Any]()
    for tree, label in zip(fresh.dataset.train, root_labels("tree-lstm"), strict=True):
        _, grads = loss.value_and_grad([tree])
        for name, grad in grads.items():
            total[name] = total.get(name, 0.0) + np.asarray(grad, np.float64) * weights_of("balanced")[label] / 16
            plain[name] = plain.get(name, 0.0) + np.asarray(grad, np.float64) / 16
    n_different = 0
    for name, parameter in fresh.model.parameters().items():
        g = total[name]
        expected = np.asarray(parameter.data, np.float64) - 0.01 * g / (np.abs(g) + 1e-8)  # the first step of Adam
        found = load_checkpoint(f"run/{LAST}").arrays[f"parameter.{name}"]
        clear = np.abs(g) > 1e-5
        np.testing.assert_allclose(found[clear], expected[clear], rtol=0, atol=2e-5)
        n_different += int((np.sign(plain[name]) != np.sign(g))[clear].sum())
    assert n_different > 3  # steps that the weights turn round


def test_balanced_weights_are_their_definition() -> None:
    """N / (C n), as in scikit-learn; every class then has the same total."""
    Path("data.txt").write_text(LINES["tree-lstm"])
    workload = load_workload("tree-lstm", "data.txt", 4, 0, dev="data.txt")
    found = weigh_instances(workload, "balanced")
    for label, n in COUNTS.items():
        own = found[[one == label for one in root_labels("tree-lstm")]]
        np.testing.assert_allclose(own, 16 / (3 * n), rtol=1e-15)
        assert own.sum() == pytest.approx(16 / 3)
    assert found.sum() == pytest.approx(16)


def test_a_run_remembers_its_weights(command: Command) -> None:
    """Those of a file, even if it has changed; a run that is resumed is bit-identical."""
    Path("data.txt").write_text(LINES["tree-lstm"])
    words = "train", "tree-lstm", *RUN, "--lr", 0.03, "--batch-size", 4
    weighted = *words, "--class-weights", "weights.json"
    assert command(*weighted, "--epochs", 2, "--checkpoint", "whole")[0] == 0
    assert command(*words, "--epochs", 2, "--checkpoint", "plain")[0] == 0
    assert command(*weighted, "--epochs", 1, "--checkpoint", "run")[0] == 0
    assert command(*weighted, "--epochs", 1, "--checkpoint", "run", "--resume")[0] == 0
    Path("weights.json").write_text('{"A": 7}')
    status, _, err = command(*weighted, "--checkpoint", "run", "--resume")
    assert (status, "class weights must be {'A': 2.0, 'B': 0.0} as before, got {'A': 7.0}" in err) == (2, True)
    assert command(*words, "--epochs", 2, "--checkpoint", "run", "--resume")[0] == 0
    whole, run, plain = (load_checkpoint(f"{name}/{LAST}").arrays for name in ("whole", "run", "plain"))
    np.testing.assert_equal(run, whole)
    assert any(not np.array_equal(plain[name], whole[name]) for name in whole)
    assert command("eval", "tree-lstm", "--checkpoint", "run")[0] == 0


OWN = """
import numpy as np
import autobatch as ab
from autobatch.models.tree_lstm import TreeLSTM

class Own(TreeLSTM):
    pass
"""


def test_a_class_of_ones_own_is_weighted_like_a_tree_lstm(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("own_weighted.py").write_text(OWN)
    Path("data.txt").write_text(LINES["tree-lstm"])
    losses = []
    for model in ("tree-lstm", "own_weighted:Own"):
        words = "train", model, *RUN, "--epochs", 2, "--class-weights", "balanced", "--json", "x.jsonl"
        assert command(*words)[0] == 0
        losses.append([json.loads(line)["train_loss"] for line in Path("x.jsonl").read_text().splitlines()])
    assert losses[0] == losses[1]


def test_unlabelled_roots_have_weight_1() -> None:
    Path("train.jsonl").write_text('{"word": "a", "children": [{"word": "b", "label": "2"}]}\n' * 2)
    unlabelled = load_workload("tree-lstm-childsum", "train.jsonl", 4, 0, dev="train.jsonl")
    with pytest.raises(ab.DataError, match="no training instance of"):
        weigh_instances(unlabelled, "balanced")
    with Path("train.jsonl").open("a") as file:
        file.write('{"word": "a", "label": "x"}\n{"word": "a", "label": "x"}\n{"word": "a", "label": "y"}\n')
    workload: Workload = load_workload("tree-lstm-childsum", "train.jsonl", 4, 0, dev="train.jsonl")
    assert weigh_instances(workload, "balanced").tolist() == [1.0, 1.0, 0.75, 0.75, 1.5]
    assert weigh_instances(workload, {"y": 5.0}).tolist() == [1.0, 1.0, 1.0, 1.0, 5.0]


REFUSED = [
    ("tree-lstm", "equal", "must be balanced, a list such as yes=2,no=0.5, or a file"),
    ("tree-lstm", "", "must be balanced, a list"),
    ("tree-lstm", "data.txt", "must be balanced, a list"),
    ("tree-lstm", "A=1,A=2", "must name each label once"),
    ("tree-lstm", "A=-1", "must map labels to numbers of at least 0"),
    ("tree-lstm", "A=0,B=0", "must map labels to numbers of at least 0, not all 0"),
    ("tree-lstm", "A=nan", "must map labels to numbers of at least 0"),
    ("tree-lstm", "A=1e39", "must map labels to numbers of at least 0"),
    ("tree-lstm", "A", "must be balanced, a list"),
    ("tree-lstm", "empty.json", "must map labels to numbers of at least 0"),
    ("tree-lstm", "list.json", "must map labels to numbers of at least 0"),
    ("tree-lstm", "text.json", "must map labels to numbers of at least 0"),
    ("tree-lstm", "D=2", "must name labels of the training data, such as A, B, C, got 'D'"),
    ("bilstm-tagger", "balanced", "the spec of bilstm-tagger has no label"),
    ("seq2seq", "balanced", "the spec of seq2seq has no label"),
    ("graph-network", "balanced", "the spec of graph-network has no label"),
]


@pytest.mark.parametrize(("model", "given", "why"), REFUSED)
def test_wrong_weights_are_refused(model: str, given: str, why: str, command: Command) -> None:
    Path("data.txt").write_text(LINES["tree-lstm"])
    for name, text in (("empty", "{}"), ("list", "[1]"), ("text", '{"A": "2"}')):
        Path(f"{name}.json").write_text(text)
    data = ("--data", "data.txt") if model == "tree-lstm" else ()
    status, out, err = command("train", model, *data, "--backend", "reference", "--class-weights", given)
    assert (status, out, err.count("\n"), why in err) == (2, "", 1, True), err
