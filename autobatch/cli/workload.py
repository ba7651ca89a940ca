"""Load a model with its data, the first step of every command that runs one; warn about out-of-distribution data."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

import autobatch as ab
from autobatch.backends.base import Backend
from autobatch.errors import DataError
from autobatch.models import ModelSpec, find_model
from autobatch.models.data.dataset import Dataset, Load, Loader
from autobatch.models.data.own_files import FilesLoader
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.plan.plan_cache import DEFAULT_SIZE
from autobatch.schedule.schedule import Policy

LARGE = 0.3  # fraction of unknown words; test data of the same kind has fewer
SPELLED = "characters"  # models that read characters can handle unknown words
ANSWERS = ("classes", "labels", "tags", "target_words")  # vocabularies of predictions


class Counting(Vocabulary):
    """A vocabulary that counts lookups, and lookups of unknown words."""

    def __init__(self, known: Vocabulary) -> None:
        super().__init__(known.words, known.closed)
        self.n_asked, self.n_unknown = 0, 0

    def id(self, word: str) -> int:
        number = super().id(word)
        self.n_asked += 1
        self.n_unknown += number < self.first
        return number


def warn_out_of_distribution(data: str, vocabularies: Mapping[str, Vocabulary]) -> None:
    """Warn on standard error if many words of the data are unknown.

    Args:
        data: name of the data.
        vocabularies: vocabularies of training, by name; only `Counting` ones are considered.
    """
    unknown = " and ".join(_unknown_words(vocabularies))
    if unknown:
        click.echo(f"autobatch: {data} differs from the training data: the model does not know {unknown}.", err=True)


def _unknown_words(vocabularies: Mapping[str, Vocabulary]) -> Iterator[str]:
    for name, words in vocabularies.items():
        is_spelled = name == "words" and SPELLED in vocabularies
        if isinstance(words, Counting) and words.n_asked and not is_spelled:
            share = words.n_unknown / words.n_asked
            if share >= LARGE:
                yield f"{share:.0%} of its {name.replace('_', ' ')}"


RECURSION_LIMIT = 10_000  # calls; Python's default of 1,000 is too low for a sentence parsed into a chain


@dataclass(frozen=True)
class Workload:
    """A model with its data."""

    spec: ModelSpec
    dataset: Dataset
    model: Any
    dim: int
    rng: np.random.Generator
    """Draws the order of the training data."""
    seed: int
    """Seed of dropout."""
    precision: str = "float32"
    """Precision of matrix products."""
    threads: int | str = 1
    """Threads per mini-batch, see `ab.batched`."""

    def batched(
        self,
        method: str,
        policy: str | Policy,
        backend: str | Backend,
        max_bytes: int | None = None,
        plan_cache: int = DEFAULT_SIZE,
    ) -> Any:
        """Make a batched function of the model's method `loss` or `scores`."""
        options: dict[str, Any] = {"seed": self.seed, "max_bytes": max_bytes, "plan_cache": plan_cache}
        function = getattr(self.model, method)
        options |= {"precision": self.precision, "threads": self.threads}
        return ab.batched(function, policy=policy, backend=backend, **options)

    def move_to(self, backend: str) -> None:
        """Move the parameters to the device of this backend."""
        self.model.to("cuda" if backend == "cuda" else "cpu")

    def with_threads(self, threads: int | str) -> Workload:
        return replace(self, threads=threads)

    def first(self, n_instances: int) -> list[Any]:
        """Return the first `n_instances` instances in file order.

        Raises:
            DataError: the data holds fewer.
        """
        items = self.dataset.items
        if len(items) < n_instances:
            raise DataError(
                f"cannot take the first {n_instances} instances of {self.dataset.name}, which holds {len(items)}; "
                f"reduce --batch-size or --minibatches."
            )
        return items[:n_instances]

    def up_to(self, n_instances: int) -> list[Any]:
        """Return the first `n_instances` instances in file order, or all if there are fewer.

        Raises:
            DataError: the data is empty.
        """
        if not self.dataset.items:
            raise DataError(f"{self.dataset.name} must hold at least one instance; give another file with --data.")
        return self.dataset.items[:n_instances]


@dataclass(frozen=True)
class Encoding:
    """The vocabularies, sizes and scales with which a stored model reads data."""

    vocabularies: Mapping[str, Vocabulary]
    sizes: Mapping[str, int]
    scales: Mapping[str, float] = field(default_factory=dict)


def find_here(model: str) -> ModelSpec:
    """Find a model; a user's package.module:Class may also be in the working directory.

    Raises:
        DataError: the model is unknown or unusable.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    return find_model(model)


def load_workload(
    model: str,
    data: str | None,
    dim: int,
    seed: int,
    encoding: Encoding | None = None,
    precision: str = "float32",
    answered: bool = True,
    build: Callable[[ModelSpec, Dataset, np.random.Generator], Any] | None = None,
    dev: str | None = None,
    split: float | None = None,
    scale_targets: bool = False,
) -> Workload:
    """Find a model, load its data and build it; equal seeds give equal workloads.

    Args:
        encoding: encoding of a stored model; by default, vocabularies and sizes are taken from the data.
        answered: whether instances must have answers: the tags, labels or numbers that the model predicts.
        build: builds a stored model; by default, a new one is built.
        dev: path of the development data.
        split: share of a single file to hold out as development data.
        scale_targets: whether a new model is to standardise the numbers that it predicts.

    Raises:
        DataError: the model or the data is unknown, or malformed.
    """
    spec = find_here(model)
    _say_unused_dim(spec, dim)
    # Streams of their own, so that other data does not change the initial parameters, or another model the order.
    data_rng, model_rng, order_rng = np.random.default_rng(seed).spawn(3)
    known = () if encoding is None else (encoding.vocabularies,)
    load = _hold_out(spec, dev, split) if answered else spec.load_inputs or spec.load
    dataset = load(data or spec.default_data, data_rng, *known)
    if encoding is not None:
        warn_out_of_distribution(dataset.name, encoding.vocabularies)
        dataset = replace(dataset, sizes=encoding.sizes, scales=encoding.scales)
    elif scale_targets and dataset.train:
        dataset = spec.with_scales(dataset)
    model_made = spec.build(dataset, dim, model_rng) if build is None else build(spec, dataset, model_rng)
    return Workload(spec, dataset, model_made, dim, order_rng, seed, precision)


def _hold_out(spec: ModelSpec, dev: str | None, split: float | None) -> Load:
    """Make `spec.load` take its development data from the path `dev`, or from a share of its file.

    Raises:
        DataError: `spec.load` is a function of the user, which divides its data itself, and `split` is given.
    """
    load = spec.load
    if dev is None and split is None:
        return load
    if isinstance(load, (Loader, FilesLoader)):
        return replace(load, dev=dev, share=split)
    if split is not None:
        raise DataError(
            f"cannot hold out {split:g} of the data of {spec.name}: its load is a function, which divides the data "
            f"itself; make it a Loader or a FilesLoader of autobatch.models.data, or give --dev."
        )

    def load_both(
        data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None, /
    ) -> Dataset:
        assert dev is not None
        found = load(data, rng, vocabularies)
        train = found.train if found.dev_places is None else found.items  # without dev, some were held out
        other = load(dev, rng, found.vocabularies)
        has_dev = os.path.isdir(dev) and other.dev_places is None  # such as train.txt and dev.txt
        measured, digest = (other.dev, other.dev_digest) if has_dev else (other.items, other.digest)
        return replace(found, train=train, dev=measured, dev_places=None, dev_digest=digest)

    return load_both


def _say_unused_dim(spec: ModelSpec, dim: int) -> None:
    """Warn if --dim was given for a model whose constructor does not take it."""
    command = click.get_current_context(silent=True)
    asked = command is not None and command.get_parameter_source("dim") is ParameterSource.COMMANDLINE
    if asked and not spec.takes("dim"):
        click.echo(f"autobatch: --dim {dim} is ignored: the constructor of {spec.name} has no parameter dim.", err=True)


def say_dim(workload: Workload) -> str:
    """Format the width, as ", dim 128"; "" for a model without one."""
    return f", dim {workload.dim}" if workload.spec.takes("dim") else ""


def record(batched: Any, instances: Sequence[Any]) -> list[Any]:
    """Record instances once for all epochs, with a higher recursion limit."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION_LIMIT))
    try:
        graphs: list[Any] = batched.record_all(instances)
    finally:
        sys.setrecursionlimit(limit)
    return graphs
