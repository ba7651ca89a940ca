"""LSTM that translates sentences with additive attention, one instance at a time.

Two LSTMs read the sentence in opposite directions; m_j concatenates their states at word j. Before each word of the
translation, a small network compares the decoder's state h with every m_j; with [a; b] for concatenation:

    e_j = v · tanh(W h + U m_j),   context = Σ_j softmax(e)_j m_j,   h', c' = LSTM([y; context], h, c)

where y is the previous word. The first h is tanh(W' m + b), with m the leftward state at the first word. A linear layer
of [h'; context] scores the next word.

Source: Bahdanau, Cho and Bengio 2015, Neural machine translation by jointly learning to align and translate
(arXiv:1409.0473), section 3; with LSTMs for their gated units, and without the maxout layer. `seq2seq` instead has
multiplicative attention after reading the previous word, and reads in one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models import seq2seq
from autobatch.models.translator import Translator


class LSTMNMTAttention(Translator):
    """An embedding on either side, two encoder LSTMs, an attention network, a decoder LSTM and an output layer.

    Args:
        n_source_words: word ids of sentences are 0 to n_source_words - 1.
        n_target_words: V, word ids of translations are 0 to V - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_source_words: int, n_target_words: int, dim: int, rng: np.random.Generator) -> None:
        self.source_words = ab.Parameter(0.1 * rng.standard_normal((n_source_words, dim)))
        self.target_words = ab.Parameter(0.1 * rng.standard_normal((n_target_words + 1, dim)))
        self.rightward = ab.LSTMCell(dim, dim, rng=rng)
        self.leftward = ab.LSTMCell(dim, dim, rng=rng)
        self.first = ab.Linear(dim, dim, rng=rng)
        self.query = ab.Linear(dim, dim, rng=rng, bias=False)
        self.key = ab.Linear(2 * dim, dim, rng=rng, bias=False)
        self.compare = ab.Parameter(rng.standard_normal(dim) / np.sqrt(dim))
        self.decoder = ab.LSTMCell(3 * dim, dim, rng=rng)
        self.output = ab.Linear(3 * dim, n_target_words + 1, rng=rng)
        self.zeros, self.no_context = np.zeros(dim), np.zeros(2 * dim)
        self.end = n_target_words

    @ab.cell
    def read(self, lstm: ab.LSTMCell, word: int, state: Any) -> Any:
        """Return the state, h (H,) and c (H,), after reading a word of the sentence."""
        return lstm(ab.lookup(self.source_words, word), state)

    @ab.cell
    def note(self, right: Any, left: Any) -> Any:
        """Combine the states at a word; return the key U m (H,) and m (2H,)."""
        m = ab.concat((right[0], left[0]))
        return self.key(m), m

    @ab.cell
    def begin(self, left: Any) -> Any:
        """Compute the decoder's first h (H,) from the leftward state at the first word."""
        return ab.tanh(self.first(left[0]))

    @ab.cell
    def step(self, word: int, state: Any, memory: Sequence[Any]) -> Any:
        """Attend and read a word of the translation; return the next state, h (H,), c (H,) and a context (2H,)."""
        h, c, _ = state
        query = self.query(h)
        weights = ab.softmax_n([ab.dot(self.compare, ab.tanh(query + key)) for key, _ in memory])
        context = ab.dot_n(weights, [m for _, m in memory], shape=self.no_context.shape)
        return *self.decoder(ab.concat((ab.lookup(self.target_words, word), context)), (h, c)), context

    def scores(self, state: Any, memory: Sequence[Any]) -> Any:
        """Score the next word, inside a cell: logits (V + 1,), the last one for the end."""
        h, _, context = state
        return self.output(ab.concat((h, context)))

    def encode(self, source: Sequence[int]) -> tuple[Any, list[Any]]:
        """Read a sentence in both directions; return the decoder's first state, and a memory of each word."""
        right, left = self.states(self.rightward, source), self.states(self.leftward, source[::-1])[::-1]
        memory = [self.note(*both) for both in zip(right[1:], left[:-1], strict=True)]
        return (self.begin(left[0]), self.zeros, self.no_context), memory

    def states(self, lstm: ab.LSTMCell, words: Sequence[int]) -> list[Any]:
        """Read words in order; return the state before the first word and after each word."""
        states: list[Any] = [(self.zeros, self.zeros)]
        for word in words:
            states.append(self.read(lstm, word, states[-1]))
        return states


SPEC = replace(
    seq2seq.SPEC,
    name="lstm-nmt-attention",
    summary="LSTM that translates sentences, with additive attention (Bahdanau, Cho and Bengio 2015)",
    model=LSTMNMTAttention,
)
