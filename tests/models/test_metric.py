"""Test the entities marked by tags, and their F1, against published conlleval examples and the definition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import Entity, count_entities, count_tagged, count_tags, find_entities, pick_best
from helpers.runs.ways import each

TAGS = st.sampled_from(["O", "B-X", "I-X", "E-X", "S-X", "B-Y", "I-Y", "E-Y", "S-Y", "X", "I-", "<unknown>"])
SENTENCES = st.lists(TAGS, max_size=9)

# The output of conlleval for its example, in two published versions: precision and recall per type in percent,
# the number of entities found, and F1. Source: https://www.clips.uantwerpen.be/conll2000/chunking/output.html
PUBLISHED = [
    ("all", 68.83, 80.83, 539, 74.35),
    ("ADVP", 45.45, 62.50, 11, 52.63),
    ("NP", 64.98, 78.63, 317, 71.16),
    ("PP", 83.18, 98.89, 107, 90.36),
    ("SBAR", 66.67, 33.33, 3, 44.44),
    ("VP", 69.00, 79.31, 100, 73.80),
]
SENTENCE = {  # the sentences shown there, tagged as IOB1 and as IOB2
    "IOB1": "I-NP B-NP I-NP I-NP O I-NP I-VP I-NP I-NP",
    "IOB2": "B-NP B-NP I-NP I-NP O B-NP B-VP B-NP I-NP",
}


@pytest.mark.parametrize(("kind", "precision", "recall", "n_found", "f1"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_figures_follow_from_counts(
    kind: str, precision: float, recall: float, n_found: int, f1: float
) -> None:
    """Sentences with as many correct, found and expected entities as in the published table have its F1."""
    n_right = round(n_found * precision / 100)
    n_meant = round(100 * n_right / recall)
    right, spurious, missed = ["S-X"] * n_right, n_found - n_right, n_meant - n_right
    found = [*right, *["S-X"] * spurious, *["O"] * missed]
    meant = [*right, *["O"] * spurious, *["I-X", *["B-X"] * (missed - 1)][:missed]]
    counted, both = count_entities([found], [meant])
    assert both == n_found + n_meant
    assert round(100 * counted / both, 2) == f1


@pytest.mark.parametrize("tags", SENTENCE.values(), ids=SENTENCE)
def test_both_published_taggings_tell_the_same_entities(tags: str) -> None:
    """Boeing / 's 747 jetliners / . / Rockwell / said / the agreement."""
    assert find_entities(tags.split()) == [
        Entity("NP", 0, 0), Entity("NP", 1, 3), Entity("NP", 5, 5), Entity("VP", 6, 6), Entity("NP", 7, 8)
    ]  # fmt: skip


@each(
    "tags, entities",
    [
        ("", []),
        ("O O", []),
        ("I-X I-X B-X I-X", [("X", 0, 1), ("X", 2, 3)]),
        ("I-X I-Y", [("X", 0, 0), ("Y", 1, 1)]),
        ("B-X I-Y", [("X", 0, 0), ("Y", 1, 1)]),
        ("B-X E-X I-X", [("X", 0, 1), ("X", 2, 2)]),
        ("E-X E-X", [("X", 0, 0), ("X", 1, 1)]),
        ("S-X I-X S-X", [("X", 0, 0), ("X", 1, 1), ("X", 2, 2)]),
        ("I-X O I-X", [("X", 0, 0), ("X", 2, 2)]),
        ("I-X X I-X", [("X", 0, 0), ("X", 2, 2)]),
        ("I-X-Y I-X-Y", [("X-Y", 0, 1)]),
    ],
)
def test_entities_are_told_by_their_tags(tags: str, entities: list[tuple[str, int, int]]) -> None:
    assert find_entities(tags.split()) == entities


def ends_between(before: str, after: str) -> bool:
    """Return whether an entity ends between two tags, by the definition."""
    if not (is_inside(before) and is_inside(after)) or before[2:] != after[2:]:
        return True
    return before[0] in "ES" or after[0] in "BS"


def is_inside(tag: str) -> bool:
    return len(tag) == 3


@given(SENTENCES)
def test_entities_are_the_longest_runs_without_a_border(tags: list[str]) -> None:
    """Tries every span of words: it is an entity if it has borders at both ends and none inside."""
    padded = ["O", *tags, "O"]
    border = [ends_between(before, after) for before, after in pairwise(padded)]
    expected = [
        Entity(tags[first][2:], first, last)
        for first in range(len(tags))
        for last in range(first, len(tags))
        if all(map(is_inside, tags[first : last + 1]))
        and border[first]
        and border[last + 1]
        and not any(border[first + 1 : last + 1])
    ]
    assert find_entities(tags) == expected


@given(st.lists(st.tuples(SENTENCES, SENTENCES), max_size=3))
def test_f1_is_the_harmonic_mean_of_precision_and_recall(pairs: list[tuple[list[str], list[str]]]) -> None:
    found, meant = [a for a, _ in pairs], [b for _, b in pairs]
    placed_found, placed_meant = (
        {(number, entity) for number, tags in enumerate(side) for entity in find_entities(tags)}
        for side in (found, meant)
    )
    counted, both = count_entities(found, meant)
    n_right = len(placed_found & placed_meant)
    if n_right:
        precision, recall = n_right / len(placed_found), n_right / len(placed_meant)
        assert counted / both == pytest.approx(2 * precision * recall / (precision + recall))
    assert (counted, both) == (2 * n_right, len(placed_found) + len(placed_meant))


def test_an_unknown_tag_is_never_right() -> None:
    assert count_tags([[1, 0, 2], []], [[1, 0, 3], []]) == (1, 3)


def test_the_best_name_is_picked_and_never_the_unknown_one() -> None:
    logits = [[np.array([0.0, 2.0, 1.0]), np.array([3.0, 1.0, 2.0])], []]
    assert pick_best(logits, Vocabulary(["a", "b", "c"], closed=True)) == [[1, 0], []]
    assert pick_best(logits, Vocabulary(["a", "b"])) == [[1, 2], []]


def test_entities_are_counted_where_tags_name_them() -> None:
    """Numbers and parts of speech do not name entities."""
    for names, has_entities in ((["B-PER", "O"], True), (["NN", "-LRB-"], False), (["1", "2"], False), (["B"], False)):
        metrics = count_tagged([[1]], [[1]], Vocabulary(names))
        assert ("entity_f1" in metrics) == has_entities
        assert metrics["tag_accuracy"] == (1, 1)
