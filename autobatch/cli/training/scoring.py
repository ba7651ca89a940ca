"""Compute metrics and predictions of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import click
import numpy as np

from autobatch.cli.workload import Workload, record
from autobatch.distributed.group import Joined
from autobatch.errors import AutobatchError
from autobatch.models import ModelSpec
from autobatch.models.data.own_files import FilesLoader
from autobatch.models.registry import ClassSpec
from autobatch.release import pip_install
from autobatch.schedule.schedule import Policy
from autobatch.trace.record import noted_instance


class Scorer:
    """A model with instances that are recorded once and may be measured repeatedly.

    Programs that await values are recorded anew each time, because their decisions depend on the parameters.
    """

    def __init__(
        self,
        workload: Workload,
        instances: Sequence[Any],
        policy: str | Policy,
        backend: str,
        batch_size: int,
        max_bytes: int | None = None,
        joined: Joined | None = None,
    ) -> None:
        """Record the instances; none if the model has neither metrics nor predictions.

        Each process of the group `joined` records and measures some of them.

        Raises:
            PolicyError, BackendError: the policy or backend is unknown.
        """
        spec = workload.spec
        self._workload = workload
        self._batch_size = batch_size
        self._joined = joined
        own = instances if joined is None else instances[joined.rank :: joined.size]
        self._instances = own if spec.count_correct or spec.predict else []
        if self._instances:
            self._predictor = workload.batched(spec.predictor, policy, backend, max_bytes)
            workload.move_to(str(self._predictor.backend.name))
            self._given = [spec.given(instance) for instance in self._instances]
            if not self._predictor.recorder.is_async:
                is_whole = joined is None and not workload.dataset.dev
                self._given = _record(self._predictor, self._given, workload.dataset.name if is_whole else "")

    def measure(self) -> dict[str, float]:
        """Compute the metrics; {} if the model has none. A fraction of zero cases is 0."""
        spec, vocabularies = self._workload.spec, self._workload.dataset.vocabularies
        if spec.count_correct is None:
            return {}
        own = [spec.count_correct(outputs, instances, vocabularies) for outputs, instances in self._outputs()]
        parts = own if self._joined is None else [*chain.from_iterable(self._joined.gather(own))]
        totals: dict[str, list[float]] = {}
        for part in sorted(parts, key=len, reverse=True):  # metrics in the order of the mini-batch with the most
            for metric, counts in part.items():
                before = totals.get(metric, [0] * len(counts))
                totals[metric] = [sum(both) for both in zip(before, counts, strict=True)]
        return {metric: spec.metrics.get(metric, _share)(*counts) for metric, counts in totals.items()}

    def predict(self, probabilities: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the prediction for each instance, as a JSON object, with the probabilities of labels if asked for."""
        spec, vocabularies = self._workload.spec, self._workload.dataset.vocabularies
        for outputs, instances in self._outputs():
            assert spec.predict is not None
            found = spec.predict(outputs, instances, vocabularies)
            if probabilities:
                assert spec.probabilities is not None
                of_labels = spec.probabilities(outputs, instances, vocabularies)
                found = [one | {"probabilities": each} for one, each in zip(found, of_labels, strict=True)]
            yield from found

    def _outputs(self) -> Iterator[tuple[Any, Sequence[Any]]]:
        """Yield the outputs and instances of each mini-batch, with dropout off."""
        model = self._workload.model
        for start in range(0, len(self._instances), self._batch_size):
            part = slice(start, start + self._batch_size)
            model.eval()
            with np.errstate(all="ignore"):
                outputs = self._predictor(self._given[part])
            model.train()
            yield outputs, self._instances[part]


def _record(predictor: Any, instances: Sequence[Any], file: str) -> list[Any]:
    """Record instances; errors name the instance, if these are all instances of a file."""
    try:
        return record(predictor, instances)
    except AutobatchError as error:
        number = noted_instance(error)
        if number is None or not file:
            raise
        raise type(error)(f"{file}, instance {number + 1}: {error}") from None


def say_missing_metrics(workload: Workload) -> None:
    """Warn about metrics that cannot be computed because a package is missing or the data lacks names."""
    for package, extra in workload.spec.missing_packages().items():
        click.echo(
            f"autobatch: the package {package} is not installed, so its metrics are left out; {pip_install(extra)}.",
            err=True,
        )
    missing = workload.spec.say_missing(workload.dataset.vocabularies)
    if missing:
        click.echo(f"autobatch: {workload.dataset.name}: {missing}", err=True)


def say_lack(spec: ModelSpec, part: str) -> str:
    """Explain why a model has no `predict` or `count_correct`."""
    if part == "predict" and isinstance(spec.load, FilesLoader):
        return "a model with files must be exported first; run autobatch export, and give --model FILE"
    return "its class has no method scores(tree)" if isinstance(spec, ClassSpec) else f"its ModelSpec has no {part}"


def _share(n_right: float, n_all: float) -> float:
    return n_right / max(n_all, 1)
