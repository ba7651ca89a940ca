"""LSTM that predicts the next word of a sentence, one instance at a time: a language model.

The probability of a sentence w_1 ... w_n is the product of the probabilities of each word given those before it, and of
its end, word V:

    P(w) = Π_i softmax(W h_i + b)[w_i],   h_i, c_i = LSTM(E[w_(i-1)], h_(i-1), c_(i-1)),   w_0 = w_(n+1) = V

The loss is -log P(w). Perplexity is exp of its mean over all words and ends.

Source: Sundermeyer, Schlüter and Ney 2012, LSTM neural networks for language modeling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import TEXTS, load_texts
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import perplexity
from autobatch.models.spec import Counts, ModelSpec


class LSTMLM(ab.Module):
    """An embedding, an LSTM, and one output layer.

    The end of a sentence is the word after the last of the vocabulary; it also stands before the first word.

    Args:
        n_words: V, word ids are 0 to V - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, dim: int, rng: np.random.Generator) -> None:
        self.embedding = ab.Parameter(0.1 * rng.standard_normal((n_words + 1, dim)))
        self.lstm = ab.LSTMCell(dim, dim, rng=rng)
        self.output = ab.Linear(dim, n_words + 1, rng=rng)
        self.zeros = np.zeros(dim)
        self.end = n_words

    @ab.cell
    def read(self, word: int, state: Any) -> Any:
        """Return the state, h (H,) and c (H,), after reading a word."""
        return self.lstm(ab.lookup(self.embedding, word), state)

    @ab.cell
    def word_loss(self, state: Any, word: int) -> Any:
        """Compute the cross-entropy of the next word: a scalar."""
        return ab.cross_entropy(self.output(state[0]), word)

    @ab.cell
    def word_score(self, state: Any, word: int) -> Any:
        """Compute the log-probability of the next word: a scalar."""
        return ab.lookup(ab.log_softmax(self.output(state[0])), word)

    def states(self, words: Sequence[int]) -> list[Any]:
        """Compute the state before each word, and before the end."""
        states, state = [], (self.zeros, self.zeros)
        for word in [self.end, *words]:
            state = self.read(word, state)
            states.append(state)
        return states

    def loss(self, words: Sequence[int]) -> Any:
        """Compute the negative log-probability of a sentence: a scalar."""
        nexts = zip(self.states(words), [*words, self.end], strict=True)
        return ab.sum_n([self.word_loss(state, word) for state, word in nexts])

    def scores(self, words: Sequence[int]) -> list[Any]:
        """Compute the log-probabilities of all words and of the end: a list of scalars."""
        nexts = zip(self.states(words), [*words, self.end], strict=True)
        return [self.word_score(state, word) for state, word in nexts]


def count_correct(outputs: Any, texts: Sequence[Sequence[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Sum the log-probabilities of batched `LSTMLM.scores`, and count words and ends."""
    return {"perplexity": (sum(map(math.fsum, outputs)), sum(map(len, outputs)))}


def predict(
    outputs: Any, texts: Sequence[Sequence[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Return the probability of each sentence: {"log_probability": -9.1, "perplexity": 4.2}."""
    sums = [(math.fsum(scores), len(scores)) for scores in outputs]
    return [{"log_probability": total, "perplexity": perplexity(total, n)} for total, n in sums]


SPEC = ModelSpec(
    name="lstm-lm",
    summary="LSTM that predicts the next word of a sentence (Sundermeyer, Schlüter and Ney 2012)",
    model=LSTMLM,
    generators=tuple(TEXTS.generators),
    reads=TEXTS.reads,
    default_data="agreement",
    load=load_texts,
    load_inputs=load_texts.inputs,
    count_correct=count_correct,
    predict=predict,
    metrics={"perplexity": perplexity},
    costs=("perplexity",),
)
