"""Descriptions of models for the command line: their data, construction and metrics."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.errors import DataError
from autobatch.keywords import checked
from autobatch.models.data.dataset import Dataset, Load
from autobatch.models.data.vocabulary import Vocabulary

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

Counts = Mapping[str, tuple[float, ...]]
Measure = Callable[[Any, Sequence[Any], Mapping[str, Vocabulary]], Counts]
Predict = Callable[[Any, Sequence[Any], Mapping[str, Vocabulary]], list[dict[str, Any]]]
Probabilities = Callable[[Any, Sequence[Any], Mapping[str, Vocabulary]], list[Any]]


@checked()
@dataclass(frozen=True)
class ModelSpec:
    """A model for the command line, given there as `package.module:SPEC` if it is a user's own.

    Attributes:
        name, summary: the model's name, and a phrase that describes it in lists and reports.
        model: makes the module, which has a method `loss(instance)`. Its parameters may be `rng`, `dim` (`--dim`), the
            sizes of the data (`n_words`, `n_classes`, `n_tags`, ...; see `Dataset.sizes`), and with `--scale-targets`
            also `target_mean` and `target_std`. Any other parameter needs a default value.
        generators: names of the generators whose instances the model reads.
        reads: description of the file format.
        default_data: default of `--data`.
        load: `load(data, rng, vocabularies=None)` makes a `Dataset` from the value of `--data`, such as
            `autobatch.models.data.dataset.load_trees`; `vocabularies` are those of a checkpoint.
        count_correct: `count_correct(outputs, instances, vocabularies)` returns, from the outputs of the batched
            predictor, counts by metric name, such as "tag_accuracy", which are summed over mini-batches. The metric is
            the ratio of the first count to the second, unless it is in `metrics`. Missing metrics are left out.
        predict: takes the same arguments; returns the JSON object of each instance's prediction.
        predictor: name of the module's prediction method, which `count_correct` and `predict` need; it may be `async`,
            and branch on awaited values.
        given: converts an instance to the predictor's argument; by default the instance itself.
        metrics: by name, functions from summed counts to metrics that are not ratios of two counts.
        costs: metrics for which lower is better, such as perplexity; for all others 1 is best.
        requires: packages needed by metrics, with the extra of autobatch that installs each; `count_correct` leaves
            out metrics whose package is missing.
        load_inputs: like `load`, for prediction data, whose instances may lack answers; None to use `load`.
        say_missing: explains in a sentence which metrics cannot be computed with given vocabularies; "" if all can.
        target: returns the number that the model predicts for an instance. With `--scale-targets`, the constructor gets
            its mean and standard deviation over the training data; the loss should then compare
            `(target - target_mean) / target_std`, and predictions should be in the unit of the targets.
        label: `label(instance, vocabularies)` returns the name of an instance's label, or None without one. With
            `--class-weights`, the loss of an instance is multiplied by the weight of its label.
        probabilities: takes the arguments of `predict`; returns for each instance the probabilities of its predicted
            labels by name, as JSON, which `autobatch predict --probabilities` adds to its prediction.
    """

    name: str
    summary: str
    model: Callable[..., ab.Module]
    generators: Sequence[str]
    reads: str
    default_data: str
    load: Load
    count_correct: Measure | None = None
    predict: Predict | None = None
    predictor: str = "scores"
    given: Callable[[Any], Any] = lambda instance: instance
    metrics: Mapping[str, Callable[..., float]] = field(default_factory=dict)
    costs: Collection[str] = ()
    requires: Mapping[str, str] = field(default_factory=dict)
    load_inputs: Load | None = None
    say_missing: Callable[[Mapping[str, Vocabulary]], str] = lambda vocabularies: ""
    target: Callable[[Any], float] | None = None
    label: Callable[[Any, Mapping[str, Vocabulary]], str | None] | None = None
    probabilities: Probabilities | None = None

    def lack_of(self, part: str) -> str:
        """Explain that the model lacks an attribute of its spec."""
        return f"the spec of {self.name} has no {part}"

    def takes(self, argument: str) -> bool:
        """Return whether the model's constructor has this parameter."""
        return any(p.name == argument for p in self._arguments())

    def build(self, dataset: Dataset, dim: int, rng: np.random.Generator) -> ab.Module:
        """Construct the model; pass `dim`, `rng`, and the sizes and scales of `dataset` to parameters of these names.

        Raises:
            DataError: the constructor needs another argument.
        """
        offered = {**dataset.sizes, **dataset.scales, "dim": dim, "rng": rng}
        wanted = self._arguments()
        missing = [p.name for p in wanted if p.default is p.empty and p.name not in offered]
        if missing:
            raise DataError(
                f"cannot build {self.name}: its constructor needs {', '.join(missing)}, but the command line passes "
                f"only {', '.join(offered)}; give other parameters default values."
            )
        return self.model(**{p.name: offered[p.name] for p in wanted if p.name in offered})

    def with_scales(self, dataset: Dataset) -> Dataset:
        """Return the dataset with the mean and the standard deviation of its training targets as `scales`.

        Raises:
            DataError: the model cannot use them, or the targets are all equal, too close or too large.
        """
        if self.target is None:
            raise DataError(f"--scale-targets needs a model that predicts numbers; {self.lack_of('target')}.")
        if not (self.takes("target_mean") and self.takes("target_std")):
            raise DataError(
                f"--scale-targets needs a constructor with the parameters target_mean and target_std, which that of "
                f"{self.name} lacks."
            )
        targets = np.array([self.target(instance) for instance in dataset.train], np.float64)
        with np.errstate(all="ignore"):
            mean, std = float(targets.mean()), float(targets.std())
        # By rounding, equal numbers may have a deviation above 0. NaN fails all comparisons.
        if not (np.ptp(targets) > 0 and 0 < std < math.inf):
            raise DataError(
                f"cannot scale the targets of {dataset.name}: they must be different finite numbers, from "
                f"{targets.min():g} to {targets.max():g}."
            )
        return replace(dataset, scales={"target_mean": mean, "target_std": std})

    def say(self, metric: str, value: float, digits: int = 1) -> str:
        """Format a metric: "tag accuracy 97.4%", with `digits` decimals, or "perplexity 4.06", or "mae 0.0123"."""
        if metric not in self.costs:
            return f"{in_words(metric)} {value:.{digits}%}"
        return f"{in_words(metric)} {f'{value:.2f}' if abs(value) >= 1 else f'{value:#.3g}'}"

    def is_better(self, metrics: Mapping[str, float], than: Mapping[str, float]) -> bool:
        """Return whether metrics are better than others, by the first metric in which they differ.

        A metric that `than` lacks counts as better, and one that is NaN or infinite never does.
        """
        for metric, value in metrics.items():
            if not math.isfinite(value):
                return False
            other = than.get(metric)
            if other is None or not math.isfinite(other):
                return True
            if value != other:
                return value < other if metric in self.costs else value > other
        return False

    def missing_packages(self) -> dict[str, str]:
        """Return the missing packages needed by metrics, with the extra that installs each."""
        return {package: extra for package, extra in self.requires.items() if find_spec(package) is None}

    def _arguments(self) -> list[inspect.Parameter]:
        return [p for p in inspect.signature(self.model).parameters.values() if p.kind in _NAMED]


def in_words(metric: str) -> str:
    """Format the name of a metric for people."""
    return metric.replace("_", " ")
