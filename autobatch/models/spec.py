"""Descriptions of models for the command line: their data, construction and metrics."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
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


@checked()
@dataclass(frozen=True)
class ModelSpec:
    """A model that the command line can run, named there as `package.module:SPEC` if it is a user's own.

    Attributes:
        name, summary: for lists and reports.
        model: makes the module, which has a method `loss(instance)`. Of `rng`, `dim` (of `--dim`) and the sizes that
            the data has (`n_words`, `n_classes`, `n_tags`, ...; `Dataset.sizes`) it is given those that it names as
            arguments; other arguments need defaults.
        generators: names of built-in generators whose instances it takes.
        reads: the format of the files that it takes, in words.
        default_data: what `load` is given without `--data`.
        load: `load(data, rng, vocabularies=None)` makes a `Dataset` of what `--data` names, such as
            `autobatch.models.data.dataset.load_trees`; `vocabularies` are those of a checkpoint.
        count_correct: makes metrics of what the model predicts.
            `count_correct(outputs of the batched predictor, instances, vocabularies)` gives for each, under a name such
            as "tag_accuracy", numbers that add up over mini-batches; the metric is the share of the first in the other.
            Metrics that it gives for no mini-batch are left out.
        predict: of the same arguments; gives the content of the JSON line of each instance.
        predictor: the method that predicts, which the module has if there is one of these two; it may be `async`, and
            then decide by values that it awaits.
        given: what of an instance the predictor is given; all of it by default.
        metrics: by name, the metrics that are no share of two counts: functions of the summed counts.
        costs: the metrics of which less is better, such as perplexity; of all others 1 is the best.
        requires: packages that metrics need, with the extra of autobatch that installs each; `count_correct` leaves
            out the metrics whose package is missing.
        load_inputs: like `load`, for prediction data, whose instances may lack answers; None to use `load`.
        say_missing: says in one sentence which metrics cannot be computed with these vocabularies, and what to do; ""
            if all can.
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

    def takes(self, argument: str) -> bool:
        """Whether the model's constructor has this argument."""
        return any(p.name == argument for p in self._arguments())

    def build(self, dataset: Dataset, dim: int, rng: np.random.Generator) -> ab.Module:
        """Construct the model with those of `dim`, `rng` and the sizes of `dataset` that its constructor names.

        Raises:
            DataError: the constructor needs an argument that is none of these.
        """
        offered = {**dataset.sizes, "dim": dim, "rng": rng}
        wanted = self._arguments()
        missing = [p.name for p in wanted if p.default is p.empty and p.name not in offered]
        if missing:
            raise DataError(
                f"cannot build {self.name}: its constructor needs {', '.join(missing)}, but the command line gives "
                f"only {', '.join(offered)}; give the others default values."
            )
        return self.model(**{p.name: offered[p.name] for p in wanted if p.name in offered})

    def say(self, metric: str, value: float, digits: int = 1) -> str:
        """Say a metric in words: "tag accuracy 97.4%", with so many digits of percents, or "perplexity 4.06"."""
        return f"{in_words(metric)} {f'{value:.2f}' if metric in self.costs else f'{value:.{digits}%}'}"

    def is_better(self, metrics: Mapping[str, float], than: Mapping[str, float]) -> bool:
        """Whether a model is better by these metrics than by others: by the first metric in which both differ.

        A metric that only `metrics` has counts as better, and one that is NaN or infinite never.
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
        """The packages that metrics need and that are not installed, with the extra that installs each."""
        return {package: extra for package, extra in self.requires.items() if find_spec(package) is None}

    def _arguments(self) -> list[inspect.Parameter]:
        return [p for p in inspect.signature(self.model).parameters.values() if p.kind in _NAMED]


def in_words(metric: str) -> str:
    """Spell the name of a metric for people."""
    return metric.replace("_", " ")
