"""LSTM that translates sentences without attention, one instance at a time.

An encoder of several LSTM layers reads the sentence from its last word to its first. The decoder, with as many layers,
continues from the states of all layers, and a linear layer scores the next word.

Source: Sutskever, Vinyals and Le 2014, Sequence to sequence learning with neural networks (arXiv:1409.3215).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models import seq2seq
from autobatch.models.translator import Translator


class LSTMNMT(Translator):
    """An embedding and layers of LSTMs on either side, and one output layer.

    Args:
        n_source_words: word ids of sentences are 0 to n_source_words - 1.
        n_target_words: V, word ids of translations are 0 to V - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
        n_layers: layers on either side, four in the paper.
    """

    def __init__(
        self, n_source_words: int, n_target_words: int, dim: int, rng: np.random.Generator, n_layers: int = 1
    ) -> None:
        self.source_words = ab.Parameter(0.1 * rng.standard_normal((n_source_words, dim)))
        self.target_words = ab.Parameter(0.1 * rng.standard_normal((n_target_words + 1, dim)))
        self.encoder = [ab.LSTMCell(dim, dim, rng=rng) for _ in range(n_layers)]
        self.decoder = [ab.LSTMCell(dim, dim, rng=rng) for _ in range(n_layers)]
        self.output = ab.Linear(dim, n_target_words + 1, rng=rng)
        self.zeros = np.zeros(dim)
        self.end = n_target_words

    @ab.cell
    def read(self, word: int, state: Any) -> Any:
        """Return the state, an h (H,) and a c (H,) per layer, after reading a word of the sentence."""
        return climb(self.encoder, ab.lookup(self.source_words, word), state)

    @ab.cell
    def write(self, word: int, state: Any) -> Any:
        """Return the decoder's state after writing a word of the translation."""
        return climb(self.decoder, ab.lookup(self.target_words, word), state)

    def step(self, word: int, state: Any, memory: Sequence[Any]) -> Any:
        """Return the decoder's state after writing a word of the translation; `memory` is not used."""
        return self.write(word, state)

    def scores(self, state: Any, memory: Sequence[Any]) -> Any:
        """Score the next word, inside a cell: logits (V + 1,), the last one for the end."""
        h, _ = state[-1]
        return self.output(h)

    def encode(self, source: Sequence[int]) -> tuple[Any, list[Any]]:
        """Read a sentence backwards; return the last state, and an empty memory."""
        state = tuple((self.zeros, self.zeros) for _ in self.encoder)
        for word in reversed(source):
            state = self.read(word, state)
        return state, []


def climb(layers: Sequence[ab.LSTMCell], x: Any, state: Any) -> tuple[Any, ...]:
    """Take a step of all layers, inside a cell, where each reads the h of the layer below; return the next state."""
    after: list[Any] = []
    for layer, before in zip(layers, state, strict=True):
        after.append(layer(after[-1][0] if after else x, before))
    return tuple(after)


SPEC = replace(
    seq2seq.SPEC,
    name="lstm-nmt",
    summary="LSTM that translates sentences, without attention (Sutskever, Vinyals and Le 2014)",
    model=LSTMNMT,
)
