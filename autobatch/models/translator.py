"""The common part of translators: loss, greedy and beam search, and metrics.

Training uses teacher forcing, with an ordinary loss. In translation, the program awaits the most likely word of each
step, and stops at the end of the sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import autobatch as ab
from autobatch.models.data.pair import Pair
from autobatch.models.data.vocabulary import UNKNOWN, Vocabulary
from autobatch.models.metric import count_ngrams
from autobatch.models.spec import Counts

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
        width = min(width, self.end)
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
