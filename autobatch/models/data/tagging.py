"""Draw sentences of a made-up language whose words are tagged with people, places and groups (IOB2, as in CoNLL).

A name is one to three words. All three types use the same names, so that only the words around a name determine its
type: a title comes before a person, a preposition before a place, and a verb of groups after a group. A tagger must
therefore read in both directions.

Rare names are words of one to three parts and an ending, most of which occur once. Only the ending determines their
type, so a tagger must read their letters.
"""

from __future__ import annotations

import numpy as np

from autobatch.models.data.sentence import Sentence

NAMES = tuple(
    first + second for first in ("Bel", "Dor", "Kan", "Mir", "Sul", "Tov") for second in ("a", "en", "is", "or")
)
TITLES = ("sir", "dame", "captain", "doctor")
PREPOSITIONS = ("in", "near", "towards", "beyond")
GROUP_VERBS = ("merged", "elected", "disbanded", "voted")
PLAIN = ("the", "old", "river", "runs", "slowly", "and", "a", "song", "rises", "bright", "morning", "falls")
ENDINGS = {"PER": ("son", "dottir", "ez"), "LOC": ("ville", "mouth", "stan"), "ORG": ("corp", "bank", "tech")}


def draw_sentences(n_sentences: int, rng: np.random.Generator, *, max_parts: int = 5) -> list[Sentence[str]]:
    """Draw sentences of 1 to `max_parts` parts, each a name with the word that determines its type, or plain words.

    Returns:
        Sentences of about 9 words on average, by default.

    >>> print(draw_sentences(1, np.random.default_rng(2), max_parts=2)[0])
    in|O Kanen|B-LOC old|O slowly|O
    """
    return [_draw_sentence(rng, max_parts) for _ in range(n_sentences)]


def draw_rare_names(n_sentences: int, rng: np.random.Generator, *, max_parts: int = 5) -> list[Sentence[str]]:
    """Draw sentences of 1 to `max_parts` parts, each a name of one word that determines its type, or plain words.

    Returns:
        Sentences of about 5 words on average, by default.

    >>> print(draw_rare_names(1, np.random.default_rng(2), max_parts=2)[0])
    Sulorkanisson|B-PER rises|O falls|O river|O morning|O
    """
    return [_draw_rare_names(rng, max_parts) for _ in range(n_sentences)]


def _draw_rare_names(rng: np.random.Generator, max_parts: int) -> Sentence[str]:
    tokens: list[tuple[str, str]] = []
    for _ in range(rng.integers(1, max_parts, endpoint=True)):
        if rng.random() < 0.5:
            kind = _pick(rng, tuple(ENDINGS))
            stem = "".join(_pick(rng, NAMES) for _ in range(rng.integers(1, 3, endpoint=True)))
            tokens.append((stem.capitalize() + _pick(rng, ENDINGS[kind]), f"B-{kind}"))
        else:
            tokens += [(_pick(rng, PLAIN), "O") for _ in range(rng.integers(1, 5))]
    return Sentence([word for word, _ in tokens], [tag for _, tag in tokens])


def _draw_sentence(rng: np.random.Generator, max_parts: int) -> Sentence[str]:
    tokens: list[tuple[str, str]] = []
    for _ in range(rng.integers(1, max_parts, endpoint=True)):
        match rng.integers(4):
            case 0:
                tokens += [(_pick(rng, TITLES), "O"), *_draw_name(rng, "PER")]
            case 1:
                tokens += [(_pick(rng, PREPOSITIONS), "O"), *_draw_name(rng, "LOC")]
            case 2:
                tokens += [*_draw_name(rng, "ORG"), (_pick(rng, GROUP_VERBS), "O")]
            case _:
                tokens += [(_pick(rng, PLAIN), "O") for _ in range(rng.integers(1, 5))]
    return Sentence([word for word, _ in tokens], [tag for _, tag in tokens])


def _draw_name(rng: np.random.Generator, kind: str) -> list[tuple[str, str]]:
    n_words = rng.integers(1, 3, endpoint=True)
    return [(_pick(rng, NAMES), f"{'I' if place else 'B'}-{kind}") for place in range(n_words)]


def _pick(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[rng.integers(len(words))]
