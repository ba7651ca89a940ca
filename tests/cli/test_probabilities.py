"""`autobatch predict --probabilities` adds the probabilities of labels."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.training.trained import Trained
from autobatch.models import MODELS, find_model
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import to_probabilities
from autobatch.system.nested_json import to_json
from helpers.runs.commands import Command

CLASSES, TAGS = {"trees": "classes", "labelled": "labels", "pair": "classes"}, "tags"
SCORED = {
    "tree-lstm": "trees", "bilstm-tagger": "tagged", "grid-lstm": "pair", "tree-lstm-childsum": "labelled",
    "tree-lstm-2type": "trees", "tree-gru": "trees", "tree-fc": "trees", "mv-rnn": "trees",
    "tree-transformer": "labelled", "bilstm-char-tagger": "tagged", "lattice-lstm": "tagged", "lattice-gru": "tagged",
    "nested-rnn": "tagged", "random-dag": "tagged", "dag-rnn": "tagged",
}  # fmt: skip


def softmax(logits: Any) -> Any:
    logits = np.asarray(logits, np.float64)
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def train(command: Command, model: str, *more: object) -> None:
    words = "train", model, "--dim", 6, "--epochs", 1, "--lr", 0.05, "--batch-size", 16, "--backend", "reference"
    assert command(*words, "--checkpoint", "run", *more)[0] == 0


@pytest.fixture(autouse=True)
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autobatch.models.data.dataset.N_DRAWN", 90)


def flat(nested: Any) -> list[Any]:
    return [one for part in nested for one in flat(part)] if isinstance(nested, list) else [nested]


@pytest.mark.cases(4)
@pytest.mark.parametrize("model", SCORED)
def test_probabilities_are_the_softmax_of_the_scores(model: str, command: Command) -> None:
    """Of known names alone; everything else in the predictions is unchanged, and an exported file predicts the same."""
    train(command, model)
    predict = "predict", model, "--checkpoint", "run"
    status, out, err = command(*predict, "--probabilities")
    assert (status, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    without = [{name: value for name, value in one.items() if name != "probabilities"} for one in found]
    assert without == [json.loads(line) for line in command(*predict)[1].splitlines()]
    workload = Trained(model, Path("run")).read().load_workload()
    kind, exact = SCORED[model], workload.model.eval().astype("float64")
    names = workload.dataset.vocabularies[CLASSES.get(kind, TAGS)]
    for one, instance in zip(found, workload.dataset.dev, strict=True):
        scores = ab.eager(exact.scores, instance)
        match kind:
            case "trees":
                logits = [scores[0]]
            case "labelled":
                logits = [scores[-1]]
            case _:
                logits = scores
        expected = softmax(np.array(logits).reshape(-1, len(names))[:, names.first :])
        given = flat(one["probabilities"])
        assert [[*each] for each in given] == [names.words] * len(expected)
        np.testing.assert_allclose([[*each.values()] for each in given], expected, rtol=1e-4, atol=1e-6)
        best = flat(one.get("tags", one.get("label")))
        assert [max(each, key=each.__getitem__) for each in given] == [str(label) for label in best]
        assert all(sum(each.values()) == pytest.approx(1.0, abs=1e-12) for each in given)
    if "tags" in found[0]:
        assert json.dumps(found[0]["tags"]).count("[") == json.dumps(found[0]["probabilities"]).count("[")
    assert command("export", model, "--checkpoint", "run", "--out", "x.ab")[0] == 0
    assert command("predict", "--model", "x.ab", "--probabilities") == (0, out, "")


@pytest.mark.parametrize("model", ["early-exit", "graph-network", "bilstm-crf"])
def test_a_model_without_logits_is_refused(model: str, command: Command) -> None:
    train(command, model)
    status, out, err = command("predict", model, "--checkpoint", "run", "--probabilities", "--out", "out.jsonl")
    assert (status, out) == (2, "")
    assert err.startswith(f"autobatch: {model} has no probabilities: it does not score labels by logits")
    assert not Path("out.jsonl").exists()


def test_every_model_with_scored_labels_has_probabilities() -> None:
    assert {name for name in MODELS if find_model(name).probabilities is not None} == {*SCORED}


def test_a_class_of_ones_own_has_probabilities(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are those of a tree-lstm, and so are its probabilities."""
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("own_scored.py").write_text(
        "from autobatch.models.tree_lstm import TreeLSTM\nclass Own(TreeLSTM):\n    pass\nclass Bare(TreeLSTM):\n"
        "    scores = property()\n"
    )
    outs = []
    for model in ("tree-lstm", "own_scored:Own"):
        train(command, model, "--checkpoint", model)
        outs.append(command("predict", model, "--checkpoint", model, "--probabilities"))
    assert outs[0] == outs[1]
    assert outs[0][0] == 0


def test_probabilities_of_large_logits_are_exact_and_of_nan_are_null() -> None:
    names = Vocabulary.of_labels(["a", "b", "c"])
    assert to_probabilities(np.array([1e30, -1e30, 1e30], np.float32), names) == {"a": 0.5, "b": 0.0, "c": 0.5}
    for wrong in (math.nan, math.inf):
        assert set(to_json(to_probabilities([0.0, wrong, 1.0], names)).values()) <= {None, 0.0}
    known = Vocabulary(["a", "b"])  # the first logit is that of unknown names
    assert to_probabilities([50.0, math.log(3), math.log(1)], known) == pytest.approx({"a": 0.75, "b": 0.25})
