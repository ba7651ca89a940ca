"""The weights of training instances by the classes of their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from autobatch.cli.workload import Workload
from autobatch.errors import DataError
from autobatch.readers.lines import to_number
from autobatch.system.nested_json import parse_json

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
        raise click.BadParameter(f"must be numbers of at least 0 by label, not all 0, got {value!r}.")
    return {name: float(number) for name, number in found.items()}


def weigh_instances(workload: Workload, weights: Weights) -> NDArray[np.float64]:
    """Return a weight for each training instance, float64 (N,); 1 for those without a label or with another one.

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
