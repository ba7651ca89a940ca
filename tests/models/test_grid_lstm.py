"""Test pairs of texts and the Grid LSTM's batches; test_twins.py compares it with its twin."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError
from autobatch.models.data.comparison import Comparison, draw_edits, parse_comparison
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.grid_lstm import SPEC, GridLSTM
from autobatch.readers.lines import Line
from helpers.runs.ways import each


def test_a_pair_is_two_texts_and_a_label() -> None:
    """Labels may contain blanks."""
    parsed = parse_comparison(Line(Path("p.txt"), 1, " a  cat\tan animal \t not known"))
    assert parsed == Comparison(["a", "cat"], ["an", "animal"], "not known")


@each(
    "text, column, expected, found",
    [
        ("\ta\tb", 1, "a word of the first text", "'\\t'"),
        ("a b", 4, "a tab and a word of the second text", "the end of the line"),
        ("a\t \tb", 3, "a tab and a word of the second text", "' '"),
        ("a\tb\t", 5, "a tab and a label", "the end of the line"),
        ("a\tb\tc\t", 6, "the end of the line after two texts and a label", "'\\t'"),
    ],
)
def test_a_malformed_pair_is_named(text: str, column: int, expected: str, found: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_comparison(Line(Path("p.txt"), 7, text))
    assert str(caught.value) == (
        f"cannot read a pair of texts from p.txt, line 7, column {column}: expected {expected}, found {found}."
    )


def test_labels_are_edit_distances() -> None:
    """Checked by recursion over the last letters, which defines the distance."""

    @cache
    def distance(left: str, right: str) -> int:
        if not (left and right):
            return len(left + right)
        changed = distance(left[:-1], right[:-1]) + (left[-1] != right[-1])
        return min(changed, distance(left[:-1], right) + 1, distance(left, right[:-1]) + 1)

    drawn = draw_edits(200, np.random.default_rng(4), max_edits=6)
    assert [int(pair.label) for pair in drawn] == [distance("".join(x.left), "".join(x.right)) for x in drawn]
    assert {pair.label for pair in drawn} >= set("01234")


def test_the_blocks_of_a_diagonal_are_a_batch() -> None:
    """One batch for each of the 5 + 3 - 1 diagonals of the largest grid, and one per other type."""
    model = GridLSTM(n_words=4, n_classes=3, dim=4, rng=np.random.default_rng(0))
    loss = ab.batched(model.loss, policy="score")
    loss([Comparison([1] * 5, [2] * 3, 1), Comparison([3], [1, 2], 0), Comparison([1, 2], [1] * 4, 2)])
    assert loss.last is not None
    assert loss.last.batches == loss.last.lower_bound == 7 + 3


def test_counting_and_naming_right_labels() -> None:
    assert SPEC.count_correct is not None
    assert SPEC.predict is not None
    logits = np.eye(3)[[1, 2, 0]]
    pairs = [Comparison([1], [1], label) for label in (1, 1, 0)]
    names = {"classes": Vocabulary(["yes", "no"])}
    assert SPEC.count_correct(logits, pairs, names) == {"accuracy": (1, 3)}
    assert SPEC.predict(logits, pairs, names) == [{"label": "yes"}, {"label": "no"}, {"label": "yes"}]
