"""Compute the metrics and the predictions of a model on instances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.cli.workload import Workload, record
from autobatch.policies.auto import Auto
from autobatch.schedule.schedule import Policy


class Scorer:
    """A model with instances that are recorded once, and measured as often as wanted."""

    def __init__(
        self,
        workload: Workload,
        instances: Sequence[Any],
        policy: str | Policy,
        backend: str,
        batch_size: int,
        max_bytes: int | None = None,
    ) -> None:
        """Record the instances, unless the model has no `scores`: then there are none to measure.

        With the policy "auto" nothing is learned for this, and nothing learned is used: the rule plans.

        Raises:
            PolicyError, BackendError: there is no such policy or backend.
        """
        self._workload = workload
        self._batch_size = batch_size
        self._instances = instances if workload.spec.count_correct or workload.spec.predict else []
        if self._instances:
            self._scores = workload.batched("scores", policy, backend, max_bytes)
            workload.move_to(str(self._scores.backend.name))
            if isinstance(self._scores.policy, Auto):
                self._scores.policy = self._scores.policy.make_rule()
            self._graphs = record(self._scores, self._instances)

    def measure(self) -> dict[str, float]:
        """Compute the metrics, 0 to 1 each, none if the model has none; what nothing counts towards is 0."""
        count_correct, vocabularies = self._workload.spec.count_correct, self._workload.dataset.vocabularies
        if count_correct is None:
            return {}
        totals: dict[str, tuple[int, int]] = {}
        for outputs, instances in self._outputs():
            for metric, (n_right, n_all) in count_correct(outputs, instances, vocabularies).items():
                right_before, all_before = totals.get(metric, (0, 0))
                totals[metric] = right_before + n_right, all_before + n_all
        return {metric: n_right / max(n_all, 1) for metric, (n_right, n_all) in totals.items()}

    def predict(self) -> Iterator[dict[str, Any]]:
        """Give what a JSON line says of each instance, in order."""
        predict, vocabularies = self._workload.spec.predict, self._workload.dataset.vocabularies
        for outputs, instances in self._outputs():
            assert predict is not None
            yield from predict(outputs, instances, vocabularies)

    def _outputs(self) -> Iterator[tuple[Any, Sequence[Any]]]:
        """Run the model, dropout off, on one mini-batch after the other."""
        model = self._workload.model
        for start in range(0, len(self._instances), self._batch_size):
            part = slice(start, start + self._batch_size)
            model.eval()
            with np.errstate(all="ignore"):
                outputs = self._scores(self._graphs[part])
            model.train()
            yield outputs, self._instances[part]
