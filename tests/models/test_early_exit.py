"""Test the early-exit classifier: rounds, thresholds and metrics; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np

import autobatch as ab
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.early_exit import SPEC, EarlyExit, count_correct
from helpers.runs.ways import each


@each("threshold, rounds", [(0.0, 1), (1.0, 7)])
def test_reading_goes_on_until_the_threshold_is_passed(threshold: float, rounds: int) -> None:
    """Texts of 7 and 3 words: a round per word read."""
    model = EarlyExit(n_words=4, n_classes=2, dim=4, rng=np.random.default_rng(0), threshold=threshold)
    classify = ab.batched(model.classify, policy="agenda")
    labels, n_read = classify([[1] * 7, [2] * 3])
    assert labels.shape == (2,)
    assert n_read.tolist() == ([1, 1] if threshold == 0.0 else [7, 3])
    assert classify.last is not None
    assert classify.last.rounds == rounds


def test_counting_right_labels_and_words_read() -> None:
    trees = [Tree.inner(1, Tree.leaf(0, 1), Tree.leaf(0, 2)), Tree.leaf(2, 3)]
    outputs = np.array([1, 1]), np.array([1, 1])
    assert count_correct(outputs, trees, {}) == {"accuracy": (1, 2), "words_read": (2, 3)}
    assert SPEC.predict is not None
    for name, label in (("1", 1), ("NP", "NP")):
        names = {"classes": Vocabulary(["0", name], closed=True)}
        assert SPEC.predict(outputs, trees, names) == [{"label": label, "words_read": 1}] * 2
