"""LSTM that translates sentences, one instance at a time, with attention over all states of the encoder.

With h the state of the decoder and m_j the states of the encoder after each word, the context is the sum of the m_j
weighted by the softmax of (W h) · m_j, and the scores of the next word are W' tanh(W'' [context; h]) + b.

Source: Luong, Pham and Manning 2015, Effective approaches to attention-based neural machine translation
(arXiv:1508.04025), section 3.1 with the score "general"; one layer, without input feeding.
"""

from __future__ import annotations

from collections.abc import Sequence
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
