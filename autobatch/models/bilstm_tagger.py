"""Bidirectional LSTM that tags every word of a sentence, one instance at a time.

Source: Huang, Xu and Yu 2015, Bidirectional LSTM-CRF models for sequence tagging (arXiv:1508.01991), section 2.2:
their BI-LSTM network, without the CRF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import SENTENCES, load_sentences
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_tagged, pick_best, predict_tags, tag_probabilities
from autobatch.models.spec import Counts, ModelSpec


class BiLSTMTagger(ab.Module):
    """Word embeddings, layers of two LSTMs that read in opposite directions, one output layer.

    Args:
        n_words: V, word ids are 0 to V - 1.
        n_tags: C, tags are 0 to C - 1.
        dim: H, width of embeddings and of the states of each direction.
        rng: draws the initial parameters.
        n_layers: layers in each direction; those above the first read the states of both directions.
    """

    def __init__(self, n_words: int, n_tags: int, dim: int, rng: np.random.Generator, n_layers: int = 1) -> None:
        widths = [dim, *[2 * dim] * (n_layers - 1)]
        self.embedding = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.rightward = [ab.LSTMCell(width, dim, rng=rng) for width in widths]
        self.leftward = [ab.LSTMCell(width, dim, rng=rng) for width in widths]
        self.output = ab.Linear(2 * dim, n_tags, rng=rng)
        self.zeros = np.zeros(dim)

    @ab.cell
    def read_word(self, lstm: ab.LSTMCell, word: int, state: Any) -> Any:
        """Return the state, h (H,) and c (H,), after reading a word."""
        return lstm(ab.lookup(self.embedding, word), state)

    @ab.cell
    def read_states(self, lstm: ab.LSTMCell, right: Any, left: Any, state: Any) -> Any:
        """Return the state after reading the rightward and leftward states of the layer below at a word."""
        return lstm(ab.concat((right[0], left[0])), state)

    @ab.cell
    def tag_loss(self, right: Any, left: Any, tag: int) -> Any:
        """Compute the cross-entropy of a word's tag: a scalar."""
        return ab.cross_entropy(self.output(ab.concat((right[0], left[0]))), tag)

    @ab.cell
    def tag_scores(self, right: Any, left: Any) -> Any:
        """Score the tags of a word: logits (C,)."""
        return self.output(ab.concat((right[0], left[0])))

    def states(self, words: Sequence[int]) -> list[Any]:
        """Compute the states of the last layer at each word: pairs of a rightward and a leftward state."""
        inputs: list[Any] = list(words)
        for rightward, leftward in zip(self.rightward, self.leftward, strict=True):
            right = self.chain(rightward, inputs)
            left = self.chain(leftward, inputs[::-1])[::-1]
            inputs = list(zip(right, left, strict=True))
        return inputs

    def chain(self, lstm: ab.LSTMCell, inputs: Sequence[Any]) -> list[Any]:
        """Read words, or the states of the layer below, in order; return the state after each."""
        states, state = [], (self.zeros, self.zeros)
        for read in inputs:
            if isinstance(read, tuple):
                right, left = read
                state = self.read_states(lstm, right, left, state)
            else:
                state = self.read_word(lstm, read, state)
            states.append(state)
        return states

    def loss(self, sentence: Sentence[int]) -> Any:
        """Sum the cross-entropies of all words: a scalar."""
        states = self.states(sentence.words)
        losses = [self.tag_loss(right, left, tag) for (right, left), tag in zip(states, sentence.tags, strict=True)]
        return ab.sum_n(losses, shape=())

    def scores(self, sentence: Sentence[int]) -> Any:
        """Score the tags of every word: a list of (C,)."""
        return [self.tag_scores(right, left) for right, left in self.states(sentence.words)]


def count_correct(outputs: Any, sentences: Sequence[Sentence[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count right tags and entities.

    Args:
        outputs: results of batched `BiLSTMTagger.scores`: per sentence the logits of its words.
        sentences: one per output.
        vocabularies: the names of the tags, such as I-LOC.
    """
    names = vocabularies["tags"]
    return count_tagged(pick_best(outputs, names), [sentence.tags for sentence in sentences], names)


SPEC = ModelSpec(
    name="bilstm-tagger",
    summary="bidirectional LSTM that tags the words of a sentence (Huang, Xu and Yu 2015, without the CRF)",
    model=BiLSTMTagger,
    generators=tuple(SENTENCES.generators),
    reads=SENTENCES.reads,
    default_data="tagging",
    load=load_sentences,
    load_inputs=load_sentences.inputs,
    count_correct=count_correct,
    predict=predict_tags,
    probabilities=tag_probabilities,
)
