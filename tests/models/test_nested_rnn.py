"""Test repeated words and the steps of the nested RNN; test_twins.py compares it with its twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError
from autobatch.models.data.repeats import SEATS, Repeats, draw_moves, parse_repeats
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.nested_rnn import SPEC, NestedRNN
from autobatch.readers.lines import Line
from helpers.runs.recorded import types_of_nodes
from helpers.runs.ways import each


def test_words_may_hold_stars_and_bars() -> None:
    parsed = parse_repeats(Line(Path("r.txt"), 1, " a*b|c*12|X   **0|Y "))
    assert parsed == Repeats(["a*b|c", "*"], [12, 0], ["X", "Y"])


@each(
    "token",
    [
        "right",
        "right|F",
        "right*|F",
        "right*3",
        "right*3|",
        "*3|F",
        "right*03|F",
        "right*-1|F",
        "right*1000|F",
        "r*٣|F",
    ],
)
def test_a_malformed_token_is_named(token: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_repeats(Line(Path("r.txt"), 7, f"left*1|F {token} left*1|E"))
    assert str(caught.value) == (
        f"cannot read repeated words from r.txt, line 7, column 10: expected a word, '*', a count from 0 to 999, '|' "
        f"and a tag, such as right*3|F left*1|E, found {token!r}."
    )


def test_walks_go_from_seat_to_seat() -> None:
    seats: set[str] = set()
    for walk in draw_moves(200, np.random.default_rng(2)):
        seat = 0
        for word, count, tag in zip(walk.words, walk.counts, walk.tags, strict=True):
            for _ in range(count):
                match word:
                    case "right":
                        seat = 0 if seat == 5 else seat + 1
                    case "left":
                        seat = 5 if seat == 0 else seat - 1
                    case _:
                        seat = seat - 3 if seat >= 3 else seat + 3
            assert SEATS[seat] == tag
            seats.add(tag)
    assert seats == set(SEATS)


def test_words_are_done_as_often_as_they_say() -> None:
    """The longest text has 2 + 3 + 0 inner and 3 outer steps; all other texts run in the same batches."""
    model = NestedRNN(n_words=3, n_tags=3, dim=4, rng=np.random.default_rng(0))
    loss = ab.batched(model.loss, policy="score")
    loss([Repeats([1, 2, 1], [2, 3, 0], [0, 1, 2]), Repeats([2], [1], [1]), Repeats([1, 1], [0, 2], [2, 2])])
    assert loss.last is not None
    names = types_of_nodes(loss)
    assert [names.count(name) for name in ("inner_step", "outer_step", "tag_loss")] == [5 + 1 + 2, 6, 6]
    assert loss.last.batches == loss.last.lower_bound == (2 + 3) + 3 + 3


def test_counting_right_tags() -> None:
    assert SPEC.count_correct is not None
    assert SPEC.predict is not None
    outputs = [list(np.eye(3)[[1, 2]]), list(np.eye(3)[[0]])]
    texts = [Repeats([1, 1], [0, 1], [1, 1]), Repeats([1], [2], [0])]
    names = {"tags": Vocabulary(["A", "B"])}
    assert SPEC.count_correct(outputs, texts, names) == {"tag_accuracy": (1, 3)}
    assert SPEC.predict(outputs, texts, names) == [{"tags": ["A", "B"]}, {"tags": ["A"]}]
