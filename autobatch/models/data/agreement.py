"""Draw sentences in which the verb agrees with a possibly distant noun, and compute their probabilities.

    the letter near the keys behind the lamps falls slowly

A sentence is a noun with any number of places, each with another noun, then a verb and an adverb. The verb agrees with
the first noun, so a language model must remember whether it is singular. All choices are independent with known
probabilities, so the lowest possible perplexity is known.

Source of the idea: Linzen, Dupoux and Goldberg 2016, Assessing the ability of LSTMs to learn syntax-sensitive
dependencies (arXiv:1611.01368).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

NOUNS = ("key", "lamp", "letter", "river", "stone", "garden", "bird", "song")
VERBS = {"falls": "fall", "sings": "sing", "moves": "move", "shines": "shine", "waits": "wait", "burns": "burn"}
"""Singular to plural forms."""
ADVERBS = ("slowly", "again", "today", "alone")
PREPOSITIONS = ("near", "behind", "under")
MORE_PLACES = 0.5  # probability of another place

_N_FORMS = 2 * len(NOUNS)


def draw_texts(n_texts: int, rng: np.random.Generator) -> list[list[str]]:
    """Draw sentences as lists of words, 7 words on average.

    >>> print(" ".join(draw_texts(1, np.random.default_rng(1))[0]))
    the bird under the lamp near the letter moves slowly
    """
    return [_draw_text(rng) for _ in range(n_texts)]


def log_probability(text: Sequence[str]) -> float:
    """Compute the log-probability of a sentence.

    >>> round(math.exp(-log_probability("the key falls slowly".split())))
    768
    """
    n_places = (len(text) - 4) // 3
    nouns = (n_places + 1) * math.log(_N_FORMS)
    places = n_places * (math.log(len(PREPOSITIONS)) - math.log(MORE_PLACES)) - math.log(1 - MORE_PLACES)
    return -(nouns + places + math.log(len(VERBS)) + math.log(len(ADVERBS)))


def _draw_text(rng: np.random.Generator) -> list[str]:
    noun, is_plural = _draw_noun(rng)
    text = ["the", noun]
    while rng.random() < MORE_PLACES:
        text += [_pick(rng, PREPOSITIONS), "the", _draw_noun(rng)[0]]
    verb = _pick(rng, list(VERBS))
    return [*text, VERBS[verb] if is_plural else verb, _pick(rng, ADVERBS)]


def _draw_noun(rng: np.random.Generator) -> tuple[str, bool]:
    is_plural = rng.random() < 0.5
    return _pick(rng, NOUNS) + ("s" if is_plural else ""), is_plural


def _pick(rng: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]
