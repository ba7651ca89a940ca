"""Sentences with their translations: two files of aligned lines as in IWSLT, or random sentences of a small language.

The files are `train.en` beside `train.vi`. Words are separated by plain spaces or tabs. Lines that are blank in both
files are skipped. Lines that are blank in only one are skipped with a warning. If answers are not required, the other
file is not read, and blank lines are sentences without words, so that predictions match line numbers.

Source of the data: Cettolo et al. 2015, The IWSLT 2015 evaluation campaign, in the form of Luong and Manning 2015.

Random sentences are translated into a language of another word order:

    two broken lamp sings and the river will finds the bright letter
    ilu ilu tek jada e rodi kir sul neku ha

A clause is a subject, a verb and perhaps an object; clauses are joined by conjunctions. In the translation, the order
is object, subject, verb; adjectives follow their noun, the nearest one first; "the" has no translation; a noun after
"two" is repeated; and "will" becomes the last word of its clause. Words thus move far, some become two words and some
none, and a sentence and its translation differ in length.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from itertools import zip_longest
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from autobatch.errors import DataError
from autobatch.readers.lines import read_lines

W = TypeVar("W")

_WORD = re.compile(r"[^ \t]+")


@dataclass(frozen=True)
class Pair(Generic[W]):
    """A sentence and its translation: words as read, or ids after encoding by vocabularies."""

    source: list[W]
    target: list[W]
    reference: str
    """The translation as text, including unknown words; blank if not read."""


def read_pairs(path: Path, answered: bool = True) -> list[Pair[str]]:
    """Read every sentence of a file, and its translation from the file beside it that differs only in the suffix.

    Args:
        path: a UTF-8 text file, one sentence per line, such as `train.en`, beside a file such as `train.vi`.
        answered: whether to read translations, which every sentence must then have.

    Raises:
        DataError: there is not exactly one such file, or the files are unreadable, empty or differ in length.
    """
    if not answered:
        pairs = [make_pair(line.text, "") for line in read_lines(path, "sentences")]
        return _refuse_none(pairs, path)
    others = find_translations(path)
    if len(others) != 1:
        found = f"{len(others)} files" if others else "no file"
        raise DataError(
            f"cannot read translations of {path}: there must be one file beside it that differs only in the suffix, "
            f"such as {path.with_suffix('.vi').name}, with a translation per line; got {found}."
        )
    pairs, one_sided = list[Pair[str]](), list[int]()
    lines = zip_longest(read_lines(path, "sentences"), read_lines(others[0], "translations"))
    for number, (source, target) in enumerate(lines, start=1):
        if source is None or target is None:
            longer, shorter = (others[0], path) if source is None else (path, others[0])
            raise DataError(
                f"cannot align {path} with {others[0].name}: {longer.name} has a line {number}, but {shorter.name} "
                f"ends before it; give one translation per line."
            )
        pair = make_pair(source.text, target.text)
        if pair.source and pair.target:
            pairs.append(pair)
        elif pair.source or pair.target:
            one_sided.append(number)
    if one_sided:
        n_lines = f"{len(one_sided)} line{'s are' if len(one_sided) > 1 else ' is'}"
        warnings.warn(
            f"skipped because {n_lines} blank in only one of {path} and {others[0].name}, first line {one_sided[0]}.",
            stacklevel=2,
        )
    return _refuse_none(pairs, path)


def find_translations(path: Path) -> list[Path]:
    """List the files beside a file that differ from it only in the suffix."""
    return sorted(p for p in path.parent.glob(f"{escape(path.stem)}.*") if p.stem == path.stem and p.name != path.name)


def _refuse_none(pairs: list[Pair[str]], path: Path) -> list[Pair[str]]:
    if not pairs:
        raise DataError(f"cannot read sentences from {path}: the file holds none; expected one per line.")
    return pairs


def make_pair(source: str, target: str) -> Pair[str]:
    """Split two sentences into words.

    >>> make_pair("the river sings", "sul  tova").target
    ['sul', 'tova']
    """
    return Pair(_WORD.findall(source), _WORD.findall(target), " ".join(_WORD.findall(target)))


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
