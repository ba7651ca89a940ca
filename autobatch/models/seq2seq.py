"""LSTMs that translate sentences, one instance at a time: without attention, or with two kinds of it.

`LSTMNMT` has no attention. An encoder of several LSTM layers reads the sentence from its last word to its first. The
decoder, with as many layers, continues from the states of all layers, and a linear layer scores the next word. Source:
Sutskever, Vinyals and Le 2014, Sequence to sequence learning with neural networks (arXiv:1409.3215).

`Seq2Seq` attends to all states of the encoder. With h the state of the decoder and m_j the states of the encoder after
each word, the context is the sum of the m_j weighted by the softmax of (W h) · m_j, and the scores of the next word are
W' tanh(W'' [context; h]) + b. Source: Luong, Pham and Manning 2015, Effective approaches to attention-based neural
machine translation (arXiv:1508.04025), section 3.1 with the score "general"; one layer, without input feeding.

`LSTMNMTAttention` has additive attention. Two LSTMs read the sentence in opposite directions; m_j concatenates their
states at word j. Before each word of the translation, a small network compares the decoder's state h with every m_j;
with [a; b] for concatenation:

    e_j = v · tanh(W h + U m_j),   context = Σ_j softmax(e)_j m_j,   h', c' = LSTM([y; context], h, c)

where y is the previous word. The first h is tanh(W' m + b), with m the leftward state at the first word. A linear layer
of [h'; context] scores the next word. Source: Bahdanau, Cho and Bengio 2015, Neural machine translation by jointly
learning to align and translate (arXiv:1409.0473), section 3; with LSTMs for their gated units, and without the maxout
layer. `Seq2Seq` instead has multiplicative attention after reading the previous word, and reads in one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import PAIRS, load_pairs
from autobatch.models.metric import bleu
from autobatch.models.spec import ModelSpec
from autobatch.models.translator import Translator, count_correct, predict


class Seq2Seq(Translator):
    """An embedding and an LSTM on either side, attention, and one output layer.

    Args:
        n_source_words: word ids of sentences are 0 to n_source_words - 1.
        n_target_words: V, word ids of translations are 0 to V - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_source_words: int, n_target_words: int, dim: int, rng: np.random.Generator) -> None:
        self.source_words = ab.Parameter(0.1 * rng.standard_normal((n_source_words, dim)))
        self.target_words = ab.Parameter(0.1 * rng.standard_normal((n_target_words + 1, dim)))
        self.encoder = ab.LSTMCell(dim, dim, rng=rng)
        self.decoder = ab.LSTMCell(dim, dim, rng=rng)
        self.attention = ab.Linear(dim, dim, rng=rng, bias=False)
        self.combine = ab.Linear(2 * dim, dim, rng=rng, bias=False)
        self.output = ab.Linear(dim, n_target_words + 1, rng=rng)
        self.zeros = np.zeros(dim)
        self.end = n_target_words

    @ab.cell
    def read(self, word: int, state: Any) -> Any:
        """Return the state, h (H,) and c (H,), after reading a word of the sentence."""
        return self.encoder(ab.lookup(self.source_words, word), state)

    @ab.cell
    def write(self, word: int, state: Any) -> Any:
        """Return the decoder's state after writing a word of the translation."""
        return self.decoder(ab.lookup(self.target_words, word), state)

    def step(self, word: int, state: Any, memory: Sequence[Any]) -> Any:
        """Return the decoder's state after writing a word of the translation; `memory` is not used."""
        return self.write(word, state)

    def scores(self, state: Any, memory: Sequence[Any]) -> Any:
        """Score the next word, inside a cell: logits (V + 1,), the last one for the end."""
        h, _ = state
        context = ab.attend(self.attention(h), memory, memory, shape=h.shape)
        return self.output(ab.tanh(self.combine(ab.concat((context, h)))))

    def encode(self, source: Sequence[int]) -> tuple[Any, list[Any]]:
        """Read a sentence; return the last state, and the h (H,) after each word."""
        state, memory = (self.zeros, self.zeros), []
        for word in source:
            state = self.read(word, state)
            memory.append(state[0])
        return state, memory


SPEC = ModelSpec(
    name="seq2seq",
    summary="LSTM that translates sentences, with attention (Luong, Pham and Manning 2015)",
    model=Seq2Seq,
    generators=tuple(PAIRS.generators),
    reads=PAIRS.reads,
    default_data="translation",
    load=load_pairs,
    load_inputs=load_pairs.inputs,
    count_correct=count_correct,
    predict=predict,
    predictor="translate",
    given=lambda pair: pair.source,
    metrics={"bleu": bleu},
    requires={"sacrebleu": "bleu"},
)


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


NMT_SPEC = replace(
    SPEC,
    name="lstm-nmt",
    summary="LSTM that translates sentences, without attention (Sutskever, Vinyals and Le 2014)",
    model=LSTMNMT,
)


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


ATTENTION_SPEC = replace(
    SPEC,
    name="lstm-nmt-attention",
    summary="LSTM that translates sentences, with additive attention (Bahdanau, Cho and Bengio 2015)",
    model=LSTMNMTAttention,
)
