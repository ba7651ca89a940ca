"""Bidirectional LSTM that tags every word of a sentence, and reads rare words by characters, one instance at a time.

A frequent word has its own vector. A rare word is read by two LSTMs, character by character in opposite directions, and
its vector is W [h; h'] + b with their last states h and h'. The computation thus differs between words, and no two
mini-batches have the same shape.

Source: the benchmark bilstm-tagger-withchar of Neubig et al. 2017, DyNet (arXiv:1701.03980), without the hidden layer
before its outputs; vectors of characters as in Ling et al. 2015, Finding function in form (arXiv:1508.02096).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.bilstm_tagger import BiLSTMTagger, count_correct
from autobatch.models.data.dataset import SENTENCES, load_spelled_sentences
from autobatch.models.metric import predict_tags, tag_probabilities
from autobatch.models.spec import ModelSpec


class BiLSTMCharTagger(BiLSTMTagger):
    """A `BiLSTMTagger` of one layer, with a table and two LSTMs of characters.

    Args:
        n_words: V, ids of words with a vector are 0 to V - 1.
        n_characters: character ids are 0 to n_characters - 1.
        n_tags: C, tags are 0 to C - 1.
        dim: H, width of embeddings and of the states of each direction.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, n_characters: int, n_tags: int, dim: int, rng: np.random.Generator) -> None:
        super().__init__(n_words, n_tags, dim, rng)
        self.characters = ab.Parameter(0.1 * rng.standard_normal((n_characters, dim)))
        self.spell_rightward = ab.LSTMCell(dim, dim, rng=rng)
        self.spell_leftward = ab.LSTMCell(dim, dim, rng=rng)
        self.join = ab.Linear(2 * dim, dim, rng=rng)

    @ab.cell
    def look_up(self, word: int) -> Any:
        """Look up the vector of a word (H,)."""
        return ab.lookup(self.embedding, word)

    @ab.cell
    def read_character(self, lstm: ab.LSTMCell, character: int, state: Any) -> Any:
        """Return the state, h (H,) and c (H,), after reading a character."""
        return lstm(ab.lookup(self.characters, character), state)

    @ab.cell
    def join_directions(self, right: Any, left: Any) -> Any:
        """Compute the vector of a word (H,) from the last states of its characters."""
        return self.join(ab.concat((right[0], left[0])))

    @ab.cell
    def read_vector(self, lstm: ab.LSTMCell, vector: Any, state: Any) -> Any:
        """Return the state after reading the vector of a word."""
        return lstm(vector, state)

    def spell(self, characters: Sequence[int]) -> Any:
        """Read a word in both directions; return its vector (H,)."""
        right = left = (self.zeros, self.zeros)
        for character in characters:
            right = self.read_character(self.spell_rightward, character, right)
        for character in reversed(characters):
            left = self.read_character(self.spell_leftward, character, left)
        return self.join_directions(right, left)

    def states(self, words: Sequence[int | list[int]]) -> list[Any]:
        """Compute the states at each word: pairs of a rightward and a leftward state."""
        vectors = [self.spell(word) if isinstance(word, list) else self.look_up(word) for word in words]
        right = self.chain(self.rightward[0], vectors)
        left = self.chain(self.leftward[0], vectors[::-1])[::-1]
        return list(zip(right, left, strict=True))

    def chain(self, lstm: ab.LSTMCell, vectors: Sequence[Any]) -> list[Any]:
        """Read vectors in order; return the state after each."""
        states, state = [], (self.zeros, self.zeros)
        for vector in vectors:
            state = self.read_vector(lstm, vector, state)
            states.append(state)
        return states


SPEC = ModelSpec(
    name="bilstm-char-tagger",
    summary="bidirectional LSTM that tags words, and reads rare ones by their characters (DyNet's benchmark)",
    model=BiLSTMCharTagger,
    generators=tuple(SENTENCES.generators),
    reads=SENTENCES.reads,
    default_data="rare-names",
    load=load_spelled_sentences,
    load_inputs=load_spelled_sentences.inputs,
    count_correct=count_correct,
    predict=predict_tags,
    probabilities=tag_probabilities,
)
