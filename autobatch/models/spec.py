"""Descriptions of models for the command line: their data, construction and metrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.errors import DataError
from autobatch.models.data.dataset import Dataset, Load
from autobatch.models.data.vocabulary import Vocabulary

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

Counts = Mapping[str, tuple[int, int]]
Measure = Callable[[Any, Sequence[Any], Mapping[str, Vocabulary]], Counts]
Predict = Callable[[Any, Sequence[Any], Mapping[str, Vocabulary]], list[dict[str, Any]]]


@dataclass(frozen=True)
class ModelSpec:
    """A model that the command line can run.

    `model` has a method `loss(instance)`. With `count_correct` it also has `scores(instance)`, and metrics are
    reported: `count_correct(outputs of batched scores, instances, vocabularies)` gives for each, under a name such as
    "tag_accuracy", two counts that add up over mini-batches; the metric is the first's share in the second.
    `predict`, of the same arguments, returns the content of each instance's JSON line.
    """

    name: str
    summary: str
    model: Callable[..., ab.Module]
    generators: Sequence[str]
    """Built-in generators whose instances it takes."""
    reads: str
    """The format of files that it takes."""
    default_data: str
    load: Load
    count_correct: Measure | None = None
    predict: Predict | None = None

    def build(self, dataset: Dataset, dim: int, rng: np.random.Generator) -> ab.Module:
        """Construct the model with those of `dim`, `rng` and the data's sizes that its constructor names.

        Raises:
            DataError: the constructor needs an argument that is none of these.
        """
        offered = {**dataset.sizes, "dim": dim, "rng": rng}
        wanted = [p for p in inspect.signature(self.model).parameters.values() if p.kind in _NAMED]
        missing = [p.name for p in wanted if p.default is p.empty and p.name not in offered]
        if missing:
            raise DataError(
                f"cannot build {self.name}: its constructor needs {', '.join(missing)}, but the command line gives "
                f"only {', '.join(offered)}; give the others default values."
            )
        return self.model(**{p.name: offered[p.name] for p in wanted if p.name in offered})
