"""Compute metrics and predictions of a model, and the weights of training instances by the classes of their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from autobatch.cli.workload import Workload, record
from autobatch.distributed.group import Joined
from autobatch.errors import AutobatchError, DataError
from autobatch.models import ModelSpec
from autobatch.models.data.own_files import FilesLoader
from autobatch.models.registry import ClassSpec
from autobatch.readers.lines import to_number
from autobatch.release import pip_install
from autobatch.schedule.schedule import Policy
from autobatch.system.nested_json import parse_json
from autobatch.trace.record import noted_instance


class Scorer:
    """A model with instances that are recorded once and may be measured repeatedly.

    Programs that await values are recorded again each time, because their decisions depend on the parameters.
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
        """Record the instances, unless the model has neither metrics nor predictions.

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


BALANCED = "balanced"
LARGEST = float(np.finfo(np.float32).max)
MOST_NAMED = 10  # labels in a message
Weights = str | Mapping[str, float]
"""`BALANCED`, or weights by the names of labels."""


def are_weights(x: Any) -> bool:
    """Return whether these are finite weights by name, none negative and not all zero."""
    return isinstance(x, dict) and any(x.values()) and all(map(_is_weight, x.values()))


def to_weights(ctx: click.Context, param: click.Parameter, value: str | None) -> Weights | None:
    """Parse `balanced`, a list such as `yes=2,no=0.5`, or a file with a JSON object such as {"yes": 2, "no": 0.5}."""
    if value is None or value == BALANCED:
        return value
    if "=" in value and not Path(value).exists():
        pairs = [pair.rpartition("=") for pair in value.split(",")]
        found: Any = {name: to_number(number) for name, _, number in pairs}
        if len(found) < len(pairs):
            raise click.BadParameter(f"must name each label once, got {value!r}.")
    else:
        try:
            found = parse_json(Path(value).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise click.BadParameter(
                f"must be balanced, a list such as yes=2,no=0.5, or a file with a JSON object, got {value!r} ({why})."
            ) from error
    if not are_weights(found):
        raise click.BadParameter(f"must map labels to numbers of at least 0, not all 0, got {value!r}.")
    return {name: float(number) for name, number in found.items()}


def weigh_instances(workload: Workload, weights: Weights) -> NDArray[np.float64]:
    """Return a weight for each training instance, float64 (N,); 1 for those without a label, or whose label is not in
    `weights`.

    The balanced weight of a class with n of N labels is N / (C n), for C classes with labels.

    Raises:
        DataError: instances of the model have no label, or a name is not a label of the training data.
    """
    spec, dataset = workload.spec, workload.dataset
    if spec.label is None:
        raise DataError(f"--class-weights needs a model whose instances have one label each; {spec.lack_of('label')}.")
    labels = [spec.label(instance, dataset.vocabularies) for instance in dataset.train]
    counts = Counter(label for label in labels if label is not None)
    if not counts:
        raise DataError(f"--class-weights needs labels; no training instance of {dataset.name} has one.")
    if isinstance(weights, str):
        weights = {label: counts.total() / (len(counts) * n) for label, n in counts.items()}
    for name in weights:
        if name not in counts:
            known = ", ".join(sorted(counts)[:MOST_NAMED])
            raise DataError(f"--class-weights must name labels of the training data, such as {known}, got {name!r}.")
    return np.array([1.0 if label is None else weights.get(label, 1.0) for label in labels])


def _is_weight(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x <= LARGEST
