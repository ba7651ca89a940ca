"""LSTM that translates sentences, one instance at a time, with attention over all states of the encoder.

The decoder learns from right words (teacher forcing: an ordinary loss), and translates by its own: it awaits the word
that it finds most likely, and stops where that is the end.

Source: Luong, Pham and Manning 2015, Effective approaches to attention-based neural machine translation
(arXiv:1508.04025), section 3.1 with the score "general"; one layer, without input feeding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import PAIRS, load_pairs
from autobatch.models.data.pair import Pair
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import bleu, count_ngrams
from autobatch.models.spec import Counts, ModelSpec


class Seq2Seq(ab.Module):
    """An embedding and an LSTM on either side, attention, and one output layer.

    The end of a sentence is the word after the last of the vocabulary; it also stands before the first word.

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
        """Read a word of the sentence in a state, h (H,) and c (H,): the next state."""
        return self.encoder(ab.lookup(self.source_words, word), state)

    @ab.cell
    def write(self, word: int, state: Any) -> Any:
        """Note that a word of the translation was written, in a state: the next state."""
        return self.decoder(ab.lookup(self.target_words, word), state)

    @ab.cell
    def word_loss(self, state: Any, memory: Sequence[Any], word: int) -> Any:
        """Compare the next word with the right one: a scalar."""
        return ab.cross_entropy(self.scores(state, memory), word)

    @ab.cell
    def best_word(self, state: Any, memory: Sequence[Any]) -> Any:
        """Choose the next word: an int."""
        return ab.argmax(self.scores(state, memory))

    @ab.cell(static=("width",))
    def best_words(self, state: Any, memory: Sequence[Any], width: int) -> Any:
        """Choose the `width` most likely next words: logarithms of their probabilities (width,), and ids (width,)."""
        return ab.top_k(ab.log_softmax(self.scores(state, memory)), width)

    def scores(self, state: Any, memory: Sequence[Any]) -> Any:
        """Score the words that may follow, inside a cell: logits (V + 1,), the last for the end."""
        h, _ = state
        context = ab.attend(self.attention(h), memory, memory, shape=h.shape)
        return self.output(ab.tanh(self.combine(ab.concat((context, h)))))

    def encode(self, source: Sequence[int]) -> tuple[Any, list[Any]]:
        """Read a sentence: the last state, and the h (H,) after each word."""
        state, memory = (self.zeros, self.zeros), []
        for word in source:
            state = self.read(word, state)
            memory.append(state[0])
        return state, memory

    def loss(self, pair: Pair[int]) -> Any:
        """Sum the cross-entropies of the words of the translation and of its end: a scalar."""
        state, memory = self.encode(pair.source)
        losses = []
        for before, word in zip([self.end, *pair.target], [*pair.target, self.end], strict=True):
            state = self.write(before, state)
            losses.append(self.word_loss(state, memory, word))
        return ab.sum_n(losses)

    async def translate(self, source: Sequence[int]) -> list[int]:
        """Write the word that is most likely, one after the other."""
        state, memory = self.encode(source)
        word, words = self.end, list[int]()
        while len(words) < max_words(source):
            state = self.write(word, state)
            word = int(await ab.value(self.best_word(state, memory)))
            if word == self.end:
                break
            words.append(word)
        return words

    async def beam(self, source: Sequence[int], width: int = 4) -> list[int]:
        """Search for the translation whose words are most likely, per word, among `width` at a time.

        A step makes of each unfinished translation those with its `width` likeliest next words, and keeps the `width`
        likeliest of all; one that has ended is put aside. The search ends when `width` have ended.
        """
        state, memory = self.encode(source)
        beam, ended = [Hypothesis(0.0, [], state)], list[Hypothesis]()
        for _ in range(max_words(source)):
            states = [self.write(one.words[-1] if one.words else self.end, one.state) for one in beam]
            found = await ab.value([self.best_words(state, memory, width) for state in states])
            grown = [
                Hypothesis(one.score + float(score), [*one.words, int(word)], state)
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
    """The beginning of a translation: the logarithm of its probability, its words, and the state before the last."""

    score: float
    words: list[int]
    state: Any


def max_words(source: Sequence[int]) -> int:
    """Limit the length of a translation, which might never end."""
    return 10 + 2 * len(source)


def count_correct(outputs: Sequence[list[int]], pairs: Sequence[Pair[int]], names: Mapping[str, Vocabulary]) -> Counts:
    """Count what BLEU is computed of, and the translations that are the reference's, word for word.

    Args:
        outputs: of batched `Seq2Seq.translate`: per pair the ids of the words.
        pairs: one per output.
        names: the vocabulary of the translations.
    """
    found, meant = _spell(outputs, names), [pair.reference for pair in pairs]
    right = sum(text.split() == reference.split() for text, reference in zip(found, meant, strict=True))
    return {"bleu": count_ngrams(found, meant), "exact": (right, len(pairs))}


def predict(
    outputs: Sequence[list[int]], pairs: Sequence[Pair[int]], names: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Spell the translations, {"translation": "..."} for each pair."""
    return [{"translation": text} for text in _spell(outputs, names)]


def _spell(outputs: Sequence[list[int]], names: Mapping[str, Vocabulary]) -> list[str]:
    word = names["target_words"].word
    return [" ".join(map(word, words)) for words in outputs]


SPEC = ModelSpec(
    name="seq2seq",
    summary="LSTM that translates sentences, with attention (Luong, Pham and Manning 2015)",
    model=Seq2Seq,
    generators=tuple(PAIRS.generators),
    reads=PAIRS.reads,
    default_data="translation",
    load=load_pairs,
    count_correct=count_correct,
    predict=predict,
    predictor="translate",
    given=lambda pair: pair.source,
    metrics={"bleu": bleu},
    requires={"sacrebleu": "bleu"},
)
