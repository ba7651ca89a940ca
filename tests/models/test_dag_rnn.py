"""Test the DAG-RNN's sweeps, batches and metrics; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np

import autobatch as ab
from autobatch.models.dag_rnn import SPEC, DagRNN
from autobatch.models.data.picture import Picture
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.vocabulary import Vocabulary


def make_model() -> DagRNN:
    return DagRNN(n_words=3, n_tags=4, dim=5, rng=np.random.default_rng(0)).astype("float64")


def make_picture(words: list[list[int]]) -> Picture[int]:
    return Picture([Sentence(row, [1] * len(row)) for row in words])


def test_a_sweep_reads_what_lies_before_a_pixel_and_all_sweeps_read_everything() -> None:
    """Only the middle pixel of 3 x 3 changes."""
    model = make_model()
    one, other = (make_picture([[0, 1, 2], [1, word, 0], [2, 2, 1]]) for word in (0, 1))
    changed = [
        [bool(np.any(a != b)) for a, b in zip(sweep.states(one), sweep.states(other), strict=True)]
        for sweep in model.sweeps
    ]
    assert [[place for place in range(9) if sweep[place]] for sweep in changed] == [
        [4, 5, 7, 8], [3, 4, 6, 7], [1, 2, 4, 5], [0, 1, 3, 4]
    ]  # fmt: skip
    scores = ab.batched(model.scores)([one, other])
    assert [bool(np.any(a != b)) for a, b in zip(*scores, strict=True)] == [True] * 9


def test_pixels_of_one_diagonal_run_together() -> None:
    """Three rows of four pixels have six diagonals, which run one after the other in each of four sweeps.

    Sums are not nodes, except the empty sums of corners, which are one batch, as are the losses and their sum.
    """
    loss = ab.batched(make_model().loss)
    loss([make_picture([[0, 1, 2, 0]] * 3)])
    assert loss.last is not None
    assert loss.last.batches == 1 + 4 * (3 + 4 - 1) + 2


def test_counting_right_pixels() -> None:
    sure = np.eye(4)
    picture = Picture([Sentence([0, 1], [1, 2]), Sentence([1, 1], [0, 3])])
    outputs = [[sure[1], sure[1], sure[0], sure[3]]]
    assert SPEC.count_correct is not None
    assert SPEC.predict is not None
    names = {"tags": Vocabulary(["a", "b", "c"])}
    assert SPEC.count_correct(outputs, [picture], names) == {"pixel_accuracy": (2, 4)}
    assert SPEC.predict(outputs, [picture], names) == [{"tags": [["a", "a"], ["a", "c"]]}]
