"""Bidirectional LSTMs that tag every word of a sentence, one instance at a time: plain, with characters, or with a CRF.

`BiLSTMTagger` is the BI-LSTM network of Huang, Xu and Yu 2015, Bidirectional LSTM-CRF models for sequence tagging
(arXiv:1508.01991), section 2.2, without the CRF.

`BiLSTMCharTagger` reads rare words by characters. A frequent word has its own vector. A rare word is read by two LSTMs,
character by character in opposite directions, and its vector is W [h; h'] + b with their last states h and h'. The
computation thus differs between words, and no two mini-batches have the same shape. Source: the benchmark
bilstm-tagger-withchar of Neubig et al. 2017, DyNet (arXiv:1701.03980), without the hidden layer before its outputs;
vectors of characters as in Ling et al. 2015, Finding function in form (arXiv:1508.02096).

`BiLSTMCRF` tags a sentence as a whole, with a conditional random field on top. The tagger's logits are the scores P_i
of the words; see `autobatch.models.crf` for the equations. Source: Huang, Xu and Yu 2015, section 2.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.crf import CRF
from autobatch.models.data.dataset import SENTENCES, load_sentences, load_spelled_sentences
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_tagged, describe_tags, pick_best, predict_tags, tag_probabilities
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


CHAR_SPEC = ModelSpec(
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


class BiLSTMCRF(BiLSTMTagger):
    """A `BiLSTMTagger` with learned transitions between tags; arguments are those of the tagger."""

    def __init__(self, n_words: int, n_tags: int, dim: int, rng: np.random.Generator, n_layers: int = 1) -> None:
        super().__init__(n_words, n_tags, dim, rng, n_layers)
        self.crf = CRF(n_tags, rng)

    def loss(self, sentence: Sentence[int]) -> Any:
        """Compute the negative log-probability of the tags: a scalar."""
        return self.crf.loss(self.scores(sentence), sentence.tags)

    def tags(self, sentence: Sentence[int]) -> list[Any]:
        """Find the most likely tags: a list of ints."""
        return self.crf.best(self.scores(sentence))


def count_correct_whole(
    found: Any, sentences: Sequence[Sentence[int]], vocabularies: Mapping[str, Vocabulary]
) -> Counts:
    """Count correct tags and entities, from the results of batched `BiLSTMCRF.tags`."""
    return count_tagged(found, [sentence.tags for sentence in sentences], vocabularies["tags"])


CRF_SPEC = ModelSpec(
    name="bilstm-crf",
    summary="bidirectional LSTM and a CRF that tag the words of a sentence (Huang, Xu and Yu 2015)",
    model=BiLSTMCRF,
    generators=tuple(SENTENCES.generators),
    reads=SENTENCES.reads,
    default_data="tagging",
    load=load_sentences,
    load_inputs=load_sentences.inputs,
    count_correct=count_correct_whole,
    predict=describe_tags,
    predictor="tags",
)
