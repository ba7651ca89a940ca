"""Bidirectional LSTM with a conditional random field on top, which tags a sentence as a whole, one instance at a time.

The tagger's logits are the scores P_i of the words; see `autobatch.models.crf` for the equations.

Source: Huang, Xu and Yu 2015, Bidirectional LSTM-CRF models for sequence tagging (arXiv:1508.01991), section 2.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autobatch.models.bilstm_tagger import BiLSTMTagger
from autobatch.models.crf import CRF
from autobatch.models.data.dataset import SENTENCES, load_sentences
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_tagged, describe_tags
from autobatch.models.spec import Counts, ModelSpec


class BiLSTMCRF(BiLSTMTagger):
    """A `BiLSTMTagger` with learned transitions between tags; arguments are those of the tagger."""

    def __init__(self, n_words: int, n_tags: int, dim: int, rng: np.random.Generator, n_layers: int = 1) -> None:
        super().__init__(n_words, n_tags, dim, rng, n_layers)
        self.crf = CRF(n_tags, rng)

    def loss(self, sentence: Sentence[int]) -> Any:
        """Compute the negative log-probability of the tags: a scalar."""
        return self.crf.loss(self.scores(sentence), sentence.tags)

    def tags(self, sentence: Sentence[int]) -> list[Any]:
        """Find the most likely tags: a list of ints."""
        return self.crf.best(self.scores(sentence))


def count_correct(found: Any, sentences: Sequence[Sentence[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count correct tags and entities, from the results of batched `BiLSTMCRF.tags`."""
    return count_tagged(found, [sentence.tags for sentence in sentences], vocabularies["tags"])


SPEC = ModelSpec(
    name="bilstm-crf",
    summary="bidirectional LSTM and a CRF that tag the words of a sentence (Huang, Xu and Yu 2015)",
    model=BiLSTMCRF,
    generators=tuple(SENTENCES.generators),
    reads=SENTENCES.reads,
    default_data="tagging",
    load=load_sentences,
    load_inputs=load_sentences.inputs,
    count_correct=count_correct,
    predict=describe_tags,
    predictor="tags",
)
