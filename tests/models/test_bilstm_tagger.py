"""Test the bidirectional tagger's batches and metrics; test_twins.py compares it with its twin."""

from __future__ import annotations

import numpy as np
import pytest

import autobatch as ab
from autobatch.models.bilstm_tagger import SPEC, BiLSTMTagger, count_correct
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.vocabulary import Vocabulary


@pytest.mark.parametrize(("n_layers", "batches"), [(1, 2 * 7 + 3), (2, 4 * 7 + 3)])
def test_sentences_of_all_lengths_share_their_batches(n_layers: int, batches: int) -> None:
    """Sentences of 7 and 3 words. The bound is a batch per step, and one each for the zeros, the tags and the sums."""
    model = BiLSTMTagger(n_words=3, n_tags=2, dim=6, rng=np.random.default_rng(0), n_layers=n_layers)
    loss = ab.batched(model.loss, policy="agenda")
    loss([Sentence([1] * 7, [1] * 7), Sentence([2] * 3, [1] * 3)])
    assert loss.last is not None
    assert loss.last.lower_bound == batches
    assert loss.last.batches <= batches + 2 * n_layers


def test_counting_right_tags_and_entities() -> None:
    names = {"tags": Vocabulary(["O", "B-PER", "I-PER"])}
    sure = np.eye(4)
    sentences = [Sentence([1, 2, 3], [2, 3, 1]), Sentence([4], [2])]
    outputs = [[sure[2], sure[3], sure[1]], [sure[1]]]
    assert count_correct(outputs, sentences, names) == {"tag_accuracy": (3, 4), "entity_f1": (2, 3)}
    assert SPEC.predict is not None
    assert SPEC.predict(outputs, sentences, names) == [{"tags": ["B-PER", "I-PER", "O"]}, {"tags": ["O"]}]
