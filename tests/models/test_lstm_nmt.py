"""Test the translators without attention and with additive attention; test_twins.py compares them with their twins."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import autobatch as ab
from autobatch.models.data.pair import Pair
from autobatch.models.seq2seq import LSTMNMT, LSTMNMTAttention, Translator
from helpers.runs.ways import each
from helpers.twins.lstm_nmt import LSTMNMTTwin

PAIRS = [Pair([1, 2, 3, 1, 0, 2, 3], [1, 2, 3], ""), Pair([2, 0, 1], [2, 1, 0, 3, 3], "")]


def make(model: Callable[..., Translator], **options: Any) -> Any:
    return model(n_source_words=4, n_target_words=4, dim=6, rng=np.random.default_rng(0), **options).astype("float64")


def test_pairs_of_all_lengths_share_their_batches() -> None:
    """A batch per word of the longest sentence and of the longest translation with its end, and one per other type."""
    for model, batches in ((LSTMNMT, 7 + 6 + 3), (LSTMNMTAttention, 2 * 7 + 6 + 5)):
        loss = ab.batched(make(model).loss)
        loss(PAIRS)
        assert loss.last is not None
        assert loss.last.batches == loss.last.lower_bound == batches, model


@each("n_layers", [2, 3])
def test_layers_on_layers_are_those_of_torch(n_layers: int) -> None:
    model = make(LSTMNMT, n_layers=n_layers)
    twin = LSTMNMTTwin.with_state(model.state_dict())
    expected = torch.stack([twin.loss(pair) for pair in PAIRS]).detach().numpy()
    np.testing.assert_allclose(ab.batched(model.loss)(PAIRS), expected, rtol=1e-9)


def test_without_attention_the_last_word_is_read_first() -> None:
    """So the last word of a long sentence goes through more steps than the first, and matters less."""
    model = make(LSTMNMT)
    (h, _), *_ = model.encode([1, 2, 3])[0]
    state = ((model.zeros, model.zeros),)
    for word in (3, 2, 1):
        state = model.read(word, state)
    assert np.array_equal(h, state[0][0])


def test_attention_sees_every_word() -> None:
    """A change of any word's memory changes the context, which is a weighted mean of the memory."""
    model = make(LSTMNMTAttention)
    _, memory = model.encode([0, 1, 2])
    state = (model.zeros, model.zeros, model.no_context)
    _, _, context = model.step(1, state, memory)
    for place in range(3):
        changed = [(key, m + (place == at)) for at, (key, m) in enumerate(memory)]
        _, _, other = model.step(1, state, changed)
        assert np.all(other > context), place
        assert np.all(other < context + 1), place


@each("model", [LSTMNMT, LSTMNMTAttention])
def test_beams_of_one_are_greedy(model: Callable[..., Translator]) -> None:
    made = make(model)
    for parameter in made.parameters().values():
        parameter.data *= 5.0
    sources = [pair.source for pair in PAIRS] + [[]]
    words = ab.batched(made.translate)(sources)
    assert words == ab.batched(partial(made.beam, width=1))(sources)
    assert words == [ab.eager(made.translate, source) for source in sources]
