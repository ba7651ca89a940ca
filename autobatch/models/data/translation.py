"""Draw sentences of a small language, with translations into a language of another word order.

    two broken lamp sings and the river will finds the bright letter
    ilu ilu tek jada e rodi kir sul neku ha

A clause is a subject, a verb and perhaps an object; clauses are joined by conjunctions. In the translation, the order
is object, subject, verb; adjectives follow their noun, the nearest one first; "the" has no translation; a noun after
"two" is repeated; and "will" becomes the last word of its clause. Words thus move far, some become two words and some
none, and a sentence and its translation differ in length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autobatch.models.data.pair import Pair, make_pair

NOUNS = {
    "river": "sul", "song": "tova", "bird": "mela", "mountain": "karo", "stranger": "beni", "lamp": "ilu",
    "garden": "fasa", "letter": "rodi",
}  # fmt: skip
ADJECTIVES = {"old": "dov", "bright": "kir", "quiet": "pem", "small": "ano", "green": "zul", "broken": "tek"}
VERBS = {"sees": "sati", "follows": "bora", "finds": "neku", "leaves": "vimi", "falls": "lumo", "sings": "jada"}
JOINTS = {"and": "e", "because": "kesu", "while": "den"}
FUTURE = "ha"


def draw_pairs(n_pairs: int, rng: np.random.Generator, *, max_clauses: int = 2) -> list[Pair[str]]:
    """Draw sentences of 1 to `max_clauses` clauses, with their translations.

    Returns:
        Sentences of about 10 words on average, by default, and translations of about 8.

    >>> pair = draw_pairs(1, np.random.default_rng(2), max_clauses=1)[0]
    >>> print(" ".join(pair.source), "->", pair.reference)
    the garden follows two green broken bird -> mela mela tek zul fasa bora
    """
    return [_draw_pair(rng, max_clauses) for _ in range(n_pairs)]


def _draw_pair(rng: np.random.Generator, max_clauses: int) -> Pair[str]:
    source, target = _draw_clause(rng)
    for _ in range(rng.integers(max_clauses)):
        joint = _pick(rng, JOINTS)
        more_source, more_target = _draw_clause(rng)
        source, target = [*source, joint, *more_source], [*target, JOINTS[joint], *more_target]
    return make_pair(" ".join(source), " ".join(target))


def _draw_clause(rng: np.random.Generator) -> tuple[list[str], list[str]]:
    subject, told_subject = _draw_noun_phrase(rng)
    verb, is_future = _pick(rng, VERBS), rng.random() < 0.3
    source, target = [*subject, *(["will"] if is_future else []), verb], [*told_subject, VERBS[verb]]
    if rng.random() < 0.6:
        thing, told_thing = _draw_noun_phrase(rng)
        source, target = [*source, *thing], [*told_thing, *target]
    return source, [*target, *([FUTURE] if is_future else [])]


def _draw_noun_phrase(rng: np.random.Generator) -> tuple[list[str], list[str]]:
    noun, article = _pick(rng, NOUNS), ("the", "two")[rng.integers(2)]
    adjectives = [_pick(rng, ADJECTIVES) for _ in range(rng.integers(3))]
    told = [NOUNS[noun]] * (2 if article == "two" else 1)
    return [article, *adjectives, noun], [*told, *(ADJECTIVES[word] for word in reversed(adjectives))]


def _pick(rng: np.random.Generator, words: Mapping[str, str] | Sequence[str]) -> str:
    return list(words)[rng.integers(len(words))]
