"""Models that await what they predict learn generated data: on instances that they have not seen."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from autobatch.cli.progress import show_progress
from autobatch.cli.training.fitting import Fitting
from autobatch.cli.workload import load_workload


@dataclass(frozen=True)
class Course:
    """How a model is trained, and what its metrics on development data are to be."""

    model: str
    dim: int
    lr: float
    n_epochs: int
    at_least: dict[str, float]


COURSES = [
    Course("seq2seq", dim=48, lr=0.008, n_epochs=3, at_least={"bleu": 0.9, "exact": 0.8}),
]


@pytest.mark.slow
@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.model)
def test_unseen_instances_are_predicted(course: Course) -> None:
    workload = load_workload(course.model, None, course.dim, seed=0)
    fitting = Fitting(workload, "auto", "auto", batch_size=32, lr=course.lr)
    with show_progress(course.n_epochs * fitting.steps_per_epoch) as progress:
        *_, last = fitting.epochs(course.n_epochs, progress)
    found = {metric: last.metrics[metric] for metric in course.at_least}
    assert all(found[metric] >= share for metric, share in course.at_least.items()), found
