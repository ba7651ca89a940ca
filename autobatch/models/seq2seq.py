"""LSTMs that translate sentences, one instance at a time: without attention, or with two kinds of it.

Training uses teacher forcing, with an ordinary loss. In translation, greedy or with a beam, the program awaits the most
likely word of each step, and stops at the end of the sentence.

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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import PAIRS, load_pairs
from autobatch.models.data.pair import Pair
from autobatch.models.data.vocabulary import UNKNOWN, Vocabulary
from autobatch.models.metric import bleu, count_ngrams
from autobatch.models.spec import Counts, ModelSpec

FIRST = UNKNOWN + 1
"""The id of the first known word; the id before it, of all unknown words, is never generated."""


class Translator(ab.Module):
    """The base of translators; a subclass adds its parameters and the three methods below.

    With V words in the vocabulary of translations, word V is the end of a sentence; it is also used before the first
    word.
    """

    end: int

    def encode(self, source: Sequence[int]) -> tuple[Any, list[Any]]:
        """Read a sentence; return the decoder's first state, and the memory for attention, empty without attention."""
        raise NotImplementedError

    def step(self, word: int, state: Any, memory: Sequence[Any]) -> Any:
        """Return the decoder's state after writing a word of the translation."""
        raise NotImplementedError

    def scores(self, state: Any, memory: Sequence[Any]) -> Any:
        """Score the next word, inside a cell: logits (V + 1,), the last one for the end."""
        raise NotImplementedError

    @ab.cell
    def word_loss(self, state: Any, memory: Sequence[Any], word: int) -> Any:
        """Compute the cross-entropy of the next word: a scalar."""
        return ab.cross_entropy(self.scores(state, memory), word)

    @ab.cell
    def best_word(self, state: Any, memory: Sequence[Any]) -> Any:
        """Choose the next word, an int counted from the first real word."""
        return ab.argmax(self.scores(state, memory)[FIRST:])

    @ab.cell(static=("width",))
    def best_words(self, state: Any, memory: Sequence[Any], width: int) -> Any:
        """Choose the `width` most likely next words, counted from the first real word.

        Returns:
            Logarithms of their probabilities (width,), and the words (width,).
        """
        return ab.top_k(ab.log_softmax(self.scores(state, memory))[FIRST:], width)

    def loss(self, pair: Pair[int]) -> Any:
        """Sum the cross-entropies of the words of the translation and of its end: a scalar."""
        state, memory = self.encode(pair.source)
        losses = []
        for before, word in zip([self.end, *pair.target], [*pair.target, self.end], strict=True):
            state = self.step(before, state, memory)
            losses.append(self.word_loss(state, memory, word))
        return ab.sum_n(losses)

    async def translate(self, source: Sequence[int]) -> list[int]:
        """Translate greedily, by the most likely word at each step."""
        state, memory = self.encode(source)
        word, words = self.end, list[int]()
        while len(words) < max_words(source):
            state = self.step(word, state, memory)
            word = FIRST + int(await ab.value(self.best_word(state, memory)))
            if word == self.end:
                break
            words.append(word)
        return words

    async def beam(self, source: Sequence[int], width: int = 4) -> list[int]:
        """Find the translation with the highest log-probability per word, by beam search.

        A step extends each unfinished translation by its `width` most likely next words, and keeps the `width` most
        likely of all; finished ones are set aside. The search ends when `width` are finished.
        """
        width = min(width, self.end)  # no more than there are next words
        state, memory = self.encode(source)
        beam, ended = [Hypothesis(0.0, [], state)], list[Hypothesis]()
        for _ in range(max_words(source)):
            before = [one.words[-1] if one.words else self.end for one in beam]
            states = [self.step(word, one.state, memory) for word, one in zip(before, beam, strict=True)]
            found = await ab.value([self.best_words(state, memory, width) for state in states])
            grown = [
                Hypothesis(one.score + float(score), [*one.words, FIRST + int(word)], state)
                for one, state, (scores, words) in zip(beam, states, found, strict=True)
                for score, word in zip(scores, words, strict=True)
            ]
            best = sorted(grown, key=lambda one: -one.score)[:width]
            ended += [one for one in best if one.words[-1] == self.end]
            beam = [one for one in best if one.words[-1] != self.end]
            if len(ended) >= width or not beam:
                break
        likeliest = max(ended or beam, key=lambda one: one.score / len(one.words))
        return [word for word in likeliest.words if word != self.end]


class Hypothesis(NamedTuple):
    """A partial translation: its log-probability, its words, and the state before the last word."""

    score: float
    words: list[int]
    state: Any


def max_words(source: Sequence[int]) -> int:
    """Return the largest length of a translation, which bounds the search."""
    return 10 + 2 * len(source)


def count_correct(outputs: Sequence[list[int]], pairs: Sequence[Pair[int]], names: Mapping[str, Vocabulary]) -> Counts:
    """Count the statistics for BLEU, unless sacrebleu is missing, and the translations equal to the reference.

    Args:
        outputs: results of batched `Translator.translate`: per pair the ids of the words.
        pairs: one per output.
        names: the vocabulary of the translations.
    """
    found, meant = _spell(outputs, names), [pair.reference for pair in pairs]
    right = sum(text.split() == reference.split() for text, reference in zip(found, meant, strict=True))
    ngrams = {"bleu": count_ngrams(found, meant)} if find_spec("sacrebleu") else {}
    return {**ngrams, "exact": (right, len(pairs))}


def predict(
    outputs: Sequence[list[int]], pairs: Sequence[Pair[int]], names: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Return {"translation": "..."} for each pair; blank for a blank line."""
    texts = zip(_spell(outputs, names), pairs, strict=True)
    return [{"translation": text if pair.source else ""} for text, pair in texts]


def _spell(outputs: Sequence[list[int]], names: Mapping[str, Vocabulary]) -> list[str]:
    word = names["target_words"].word
    return [" ".join(map(word, words)) for words in outputs]


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
        # Without the states before reading: the first of `right`, and the last of `left`, which is reversed.
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
