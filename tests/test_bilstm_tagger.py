"""The bidirectional tagger: batched against eager, against its PyTorch twin, its metrics, and learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.models.bilstm_tagger import SPEC, BiLSTMTagger, count_correct
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.tagging import draw_sentences
from autobatch.models.data.vocabulary import Vocabulary
from twins.bilstm_tagger import BiLSTMTaggerTwin, name_in_twin

POLICIES = ("unbatched", "depth", "agenda")
LAYERS = (1, 2)
TO_EAGER = 1e-10
TO_TWIN = 1e-9


def draw_workload(
    n_layers: int, seed: int = 0, n_sentences: int = 12, dim: int = 6
) -> tuple[BiLSTMTagger, list[Sentence[int]]]:
    """Draw a model in float64, and sentences of different lengths, one of them a single word."""
    rng = np.random.default_rng(seed)
    drawn = [Sentence(["song"], ["O"]), *draw_sentences(n_sentences - 1, rng)]
    words = Vocabulary.count(word for sentence in drawn for word in sentence.words)
    tags = Vocabulary.count(tag for sentence in drawn for tag in sentence.tags)
    model = BiLSTMTagger(len(words), len(tags), dim, rng, n_layers).astype("float64")
    sentences = [Sentence(list(map(words.id, s.words)), list(map(tags.id, s.tags))) for s in drawn]
    return model, sentences


def relative(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected number."""
    expected = np.asarray(expected)
    return float(np.max(np.abs(np.asarray(found) - expected)) / np.max(np.abs(expected)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n_layers", LAYERS)
def test_batched_losses_are_the_eager_ones(policy: str, n_layers: int) -> None:
    model, sentences = draw_workload(n_layers)
    loss = ab.batched(model.loss, policy=policy)
    expected = [float(model.loss(sentence)) for sentence in sentences]
    assert relative(loss(sentences), expected) < TO_EAGER
    assert relative(loss(loss.record_all(sentences)), expected) < TO_EAGER


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n_layers", LAYERS)
@pytest.mark.parametrize("seed", range(2))
def test_losses_and_gradients_are_the_twins(policy: str, n_layers: int, seed: int) -> None:
    model, sentences = draw_workload(n_layers, seed)
    twin = BiLSTMTaggerTwin.with_state(model.state_dict())
    twin_losses = torch.stack([twin.loss(sentence) for sentence in sentences])
    twin_losses.mean().backward()  # type: ignore[no-untyped-call]

    loss = ab.batched(model.loss, policy=policy)
    value, grads = loss.value_and_grad(sentences)
    assert relative(loss(sentences), twin_losses.detach()) < TO_TWIN
    assert relative(value, twin_losses.detach().mean()) < TO_TWIN
    expected = {name: parameter.grad for name, parameter in twin.named_parameters()}
    assert {name_in_twin(name) for name in grads} == expected.keys()
    for name, gradient in grads.items():
        assert relative(gradient, expected[name_in_twin(name)]) < TO_TWIN, name


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n_layers", LAYERS)
def test_scores_are_the_twins(policy: str, n_layers: int) -> None:
    model, sentences = draw_workload(n_layers)
    twin = BiLSTMTaggerTwin.with_state(model.state_dict())
    for scores, sentence in zip(ab.batched(model.scores, policy=policy)(sentences), sentences, strict=True):
        assert relative(scores, twin.scores(sentence).detach()) < TO_TWIN


@pytest.mark.parametrize(("n_layers", "batches"), [(1, 2 * 7 + 3), (2, 4 * 7 + 3)])
def test_sentences_of_all_lengths_share_their_batches(n_layers: int, batches: int) -> None:
    """Sentences of 7 and of 3 words: a batch per step, and one each for the zeros, the tags and the sums, at best."""
    model, _ = draw_workload(n_layers)
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


def test_a_few_steps_lower_the_loss() -> None:
    model, sentences = draw_workload(1, n_sentences=32, dim=16)
    loss = ab.batched(model.loss)
    optimizer = ab.optim.Adam(model, lr=3e-2)
    graphs = loss.record_all(sentences)
    before = loss(graphs).mean()
    for _ in range(30):
        _, grads = loss.value_and_grad(graphs)
        optimizer.step(grads)
    assert loss(graphs).mean() < 0.5 * before
