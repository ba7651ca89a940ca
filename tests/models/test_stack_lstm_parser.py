"""Test the shift-reduce parser's decisions and rounds; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np
import pytest

import autobatch as ab
from autobatch.models.data.tree import write_tree
from autobatch.models.stack_lstm_parser import StackLSTMParser


@pytest.mark.parametrize("words", [[1], [1, 2], [3, 1, 2, 1, 2, 3]], ids=len)
def test_any_decisions_make_a_tree(words: list[int]) -> None:
    """Also with untrained parameters. There is a round for every action with a choice."""
    for seed in range(5):
        model = StackLSTMParser(n_words=4, n_classes=2, dim=4, rng=np.random.default_rng(seed))
        parse = ab.batched(model.parse)
        (actions,) = parse([words])
        assert write_tree(actions, [str(word) for word in words], ["S", "NP"]).count("(") == len(words) - 1
        assert actions.count(0) == len(words)
        assert parse.last is not None
        n_choices = sum(2 * sum(a == 0 for a in actions[:i]) - i > 1 for i in range(len(actions)))
        assert parse.last.rounds == n_choices
