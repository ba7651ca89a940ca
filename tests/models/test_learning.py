"""Test that models learn generated data, measured on unseen instances."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from autobatch.cli.progress import show_progress
from autobatch.cli.training.fitting import Fitting
from autobatch.cli.workload import load_workload


@dataclass(frozen=True)
class Course:
    """How to train a model, and the required metrics on development data."""

    model: str
    dim: int
    lr: float
    n_epochs: int
    at_least: dict[str, float]
    at_most: dict[str, float] = field(default_factory=dict)
    batch_size: int = 32


COURSES = [
    Course("bilstm-char-tagger", dim=48, lr=0.005, n_epochs=3, at_least={"tag_accuracy": 0.98, "entity_f1": 0.95}),
    Course("lattice-gru", dim=48, lr=0.005, n_epochs=2, at_least={"tag_accuracy": 0.72}),
    Course("seq2seq", dim=48, lr=0.008, n_epochs=3, at_least={"bleu": 0.9, "exact": 0.8}),
    Course("tree-gru", dim=64, lr=0.003, n_epochs=5, at_least={"root_accuracy": 0.98}, batch_size=64),
    Course("early-exit", dim=48, lr=0.01, n_epochs=3, at_least={"accuracy": 0.95}, at_most={"words_read": 0.75}),
    Course("bilstm-crf", dim=48, lr=0.005, n_epochs=2, at_least={"tag_accuracy": 0.96, "entity_f1": 0.88}),
    Course("lattice-lstm-ner", dim=64, lr=0.004, n_epochs=3, at_least={"tag_accuracy": 0.92, "entity_f1": 0.75}),
    Course("lstm-lm", dim=48, lr=0.01, n_epochs=4, at_least={}, at_most={"perplexity": 4.2}),
    Course("lstm-nmt", dim=96, lr=0.005, n_epochs=8, at_least={"bleu": 0.7, "exact": 0.5}),
    Course("lstm-nmt-attention", dim=48, lr=0.008, n_epochs=3, at_least={"bleu": 0.9, "exact": 0.75}),
    Course("stack-lstm-parser", dim=64, lr=0.005, n_epochs=3, at_least={"bracket_f1": 0.98, "exact": 0.95}),
    Course("doubly-recurrent", dim=64, lr=0.01, n_epochs=5, at_least={"edge_f1": 0.85, "exact": 0.7}),
    Course("tree-lstm-childsum", dim=64, lr=0.003, n_epochs=20, at_least={"root_accuracy": 0.68}, batch_size=64),
    Course("dag-rnn", dim=32, lr=0.003, n_epochs=5, at_least={"pixel_accuracy": 0.9}, batch_size=64),
    Course("tree-transformer", dim=64, lr=0.001, n_epochs=20, at_least={"root_accuracy": 0.68}, batch_size=64),
    Course("tree-fc", dim=64, lr=0.003, n_epochs=20, at_least={"root_accuracy": 0.64}, batch_size=64),
    Course("mv-rnn", dim=16, lr=0.003, n_epochs=5, at_least={"root_accuracy": 0.97}, batch_size=64),
    Course("graph-network", dim=32, lr=0.005, n_epochs=5, at_least={"explained_variance": 0.94}),
    Course(
        "molecule-forces",
        dim=32,
        lr=0.005,
        n_epochs=5,
        at_least={"explained_variance_of_forces": 0.96, "explained_variance_of_energies": 0.96},
    ),
    Course("grid-lstm", dim=48, lr=0.005, n_epochs=10, at_least={"accuracy": 0.9}),
    Course("nested-rnn", dim=32, lr=0.005, n_epochs=12, at_least={"tag_accuracy": 0.95}),
    Course("random-dag", dim=32, lr=0.005, n_epochs=10, at_least={"tag_accuracy": 0.98, "exact": 0.85}),
]


@pytest.mark.cases(0, 2)
@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.model)
def test_unseen_instances_are_predicted(course: Course) -> None:
    workload = load_workload(course.model, None, course.dim, seed=0)
    fitting = Fitting(workload, "auto", "auto", batch_size=course.batch_size, lr=course.lr)
    with show_progress(course.n_epochs * fitting.steps_per_epoch) as progress:
        *_, last = fitting.epochs(course.n_epochs, progress)
    too_low = [metric for metric, share in course.at_least.items() if not last.metrics[metric] >= share]
    too_high = [metric for metric, share in course.at_most.items() if not last.metrics[metric] <= share]
    assert course.at_least.keys() | course.at_most.keys()
    assert (too_low, too_high) == ([], []), last.metrics
