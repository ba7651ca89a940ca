"""Test the conditional random field against all tag sequences, one by one, and its tagger's batches."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.models.bilstm_tagger import CRF_SPEC, BiLSTMCRF
from autobatch.models.crf import CRF
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.vocabulary import Vocabulary
from helpers.runs.ways import each


def score(crf: CRF, scores: Any, tags: tuple[int, ...]) -> float:
    """Return the score of a sequence by its definition."""
    words = sum(float(word[tag]) for word, tag in zip(scores, tags, strict=True))
    steps = sum(float(crf.transitions.data[tag, before]) for before, tag in pairwise(tags))
    return words + steps + float(crf.start.data[tags[0]] + crf.end.data[tags[-1]])


@each("n_words", [1, 2, 5])
def test_sums_and_best_sequences_are_those_of_all_sequences(n_words: int) -> None:
    rng = np.random.default_rng(n_words)
    crf = CRF(3, rng).astype("float64")
    for parameter in crf.parameters().values():
        parameter.data *= 20.0
    scores = list(rng.standard_normal((n_words, 3)))
    every = {tags: score(crf, scores, tags) for tags in product(range(3), repeat=n_words)}
    total = np.logaddexp.reduce(list(every.values()))
    for tags, its_score in every.items():
        assert float(crf.loss(scores, tags)) == pytest.approx(total - its_score, rel=1e-12, abs=1e-12)
    assert tuple(crf.best(scores)) == max(every, key=lambda tags: every[tags])


def test_scores_so_large_that_their_exponentials_overflow() -> None:
    crf = CRF(2, np.random.default_rng(0)).astype("float64")
    scores = [np.array([2000.0, 0.0]), np.array([0.0, -3000.0])]
    assert float(crf.loss(scores, [0, 0])) == pytest.approx(0.0, abs=1e-9)
    assert float(crf.loss(scores, [0, 1])) == pytest.approx(3000.0, rel=1e-3)


def test_a_sentence_without_words_has_no_loss_and_no_tags() -> None:
    model = BiLSTMCRF(n_words=3, n_tags=2, dim=4, rng=np.random.default_rng(0))
    empty, other = Sentence[int]([], []), Sentence([1], [1])
    assert ab.batched(model.loss)([empty, other])[0] == 0.0
    assert [len(tags) for tags in ab.batched(model.tags)([empty, other])] == [0, 1]


def test_sentences_of_all_lengths_share_their_batches() -> None:
    """Sentences of 7 and 3 words: a batch per step of each direction and of the path, and one per other type."""
    model = BiLSTMCRF(n_words=3, n_tags=2, dim=6, rng=np.random.default_rng(0))
    sentences = [Sentence([1] * 7, [1] * 7), Sentence([2] * 3, [1] * 3)]
    loss, tags = ab.batched(model.loss), ab.batched(model.tags)
    loss(sentences)
    tags(sentences)
    assert loss.last is not None
    assert tags.last is not None
    assert loss.last.batches == loss.last.lower_bound == 2 * 7 + 6 + 6
    assert tags.last.batches == tags.last.lower_bound == 2 * 7 + 2 * 6 + 4


def test_tags_are_counted_and_told() -> None:
    names = {"tags": Vocabulary(["O", "B-PER", "I-PER"])}
    sentences = [Sentence([1, 2, 3], [2, 3, 1]), Sentence([4], [2])]
    found = [[2, 3, 1], [1]]
    assert CRF_SPEC.count_correct is not None
    assert CRF_SPEC.predict is not None
    assert CRF_SPEC.count_correct(found, sentences, names) == {"tag_accuracy": (3, 4), "entity_f1": (2, 3)}
    assert CRF_SPEC.predict(found, sentences, names) == [{"tags": ["B-PER", "I-PER", "O"]}, {"tags": ["O"]}]
