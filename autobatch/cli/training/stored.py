"""A run of `autobatch train` in a checkpoint: its settings, its parameters, and its progress."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autobatch import policies
from autobatch.arguments import RAW
from autobatch.cli.results import Tally
from autobatch.cli.strange import ANSWERS, Counting
from autobatch.cli.training.described import SPARE, Bounded, check_described, check_encoding, check_run, naming
from autobatch.cli.training.fitting import Fitting, Position
from autobatch.cli.workload import Encoding, Workload, find_here, load_workload
from autobatch.deploy.loading import load
from autobatch.deploy.policy import describe_policy
from autobatch.errors import CheckpointError, DataError
from autobatch.models import MODELS, ModelSpec
from autobatch.models.data.dataset import Dataset
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.params.checkpoint import load_checkpoint, save_checkpoint
from autobatch.policies.files import from_text
from autobatch.policies.rules.directed import Directed
from autobatch.schedule.schedule import Policy

LAST, BEST = "last.safetensors", "best.safetensors"
FREE = ("epochs", "max_bytes", "backend")  # the settings that may change from one command to the next
LAST_TENTH = "last"  # how version 0.2 chose the development data of a single file
PARAMETER, OPTIMIZER = "parameter.", "optimizer."  # begin the names of arrays


@dataclass(frozen=True)
class Settings:
    """The arguments that decide what a run computes."""

    model: str
    data: str
    dim: int
    batch_size: int
    epochs: int
    lr: float
    policy: str
    backend: str
    seed: int
    max_bytes: int | None = None
    precision: str = "float32"
    split: str = "drawn"
    """Return how the development data of a single file was chosen: by seed, or `LAST_TENTH`."""


@dataclass(frozen=True)
class StoredModel:
    """What a file holds of a trained model: a checkpoint, or one that was exported."""

    path: Path
    settings: Settings
    encoding: Encoding
    learned: Directed | None
    """The policy of the loss, if it was learned or was read from a file."""
    parameters: dict[str, Any]

    @property
    def policy(self) -> str | Policy:
        """What a loss or scores are to be batched with, whatever has become of a policy's file since."""
        return self.settings.policy if self.learned is None else self.learned

    def refuse_model(self, model: str) -> None:
        """Refuse a model other than the one stored; CheckpointError."""
        if model != self.settings.model:
            raise CheckpointError(
                f"cannot use {str(self.path)!r} for {model}: a {self.settings.model} was trained there; name that "
                f"model, or another folder."
            )

    def find_spec(self) -> ModelSpec:
        """Find the stored model.

        Raises:
            DataError: there is no such model, or it cannot be used.
            CheckpointError: its vocabularies or sizes are others.
        """
        spec = find_here(self.settings.model)
        with naming(self.path, "use"):
            check_encoding(spec, self.encoding)
        return spec

    def build(self, spec: ModelSpec, dataset: Dataset, rng: np.random.Generator) -> Any:
        """Build the stored model, with its parameters.

        Raises:
            CheckpointError: the model is not what it was.
        """
        with naming(self.path, "use", (*RAW, MemoryError)):
            model = spec.build(dataset, self.settings.dim, Bounded(rng, _n_numbers(self.parameters) + SPARE))
            model.load_state_dict(self.parameters)
        return model

    def load_workload(self, data: str | None = None, answered: bool = True) -> Workload:
        """Load the stored model with its training data, or with other data, which may lack answers.

        Raises:
            DataError: there is no such data, or it is malformed.
            CheckpointError: the model is not what it was.
        """
        settings, encoding = self.settings, self.encoding
        self.find_spec()  # what it raises is not about data
        if data not in (None, settings.data):
            ignored = () if answered else ANSWERS
            vocabularies = {k: v if k in ignored else Counting(v) for k, v in encoding.vocabularies.items()}
            encoding = replace(encoding, vocabularies=vocabularies)
        try:
            workload = load_workload(
                settings.model, data or settings.data, settings.dim, settings.seed, encoding, settings.precision,
                answered, self.build,
            )  # fmt: skip
        except DataError as error:
            if data is not None:
                raise
            raise DataError(f"{error} The model was trained on that; name other data by --data.") from error
        if settings.split == LAST_TENTH and workload.dataset.dev_places is not None:
            workload = replace(workload, dataset=workload.dataset.hold_out_the_last())
        return workload


@dataclass(frozen=True)
class StoredRun(StoredModel):
    """What a checkpoint of a run holds."""

    n_train: int
    """Training instances."""
    digest: str
    """`Dataset.digest`; "" in checkpoints that were written before there was one."""
    position: Position
    best: dict[str, float]
    """Metrics of the best epoch; empty before the first one."""
    draws: dict[str, int]
    """Seed and step that random numbers of the loss depend on."""
    optimizer: dict[str, Any]

    def settle(self, given: dict[str, Any]) -> Settings:
        """Take the stored settings, but the epochs, the memory and the backend that are given.

        None of them changes what is learned, up to rounding.

        Args:
            given: the settings that the user chose.

        Raises:
            CheckpointError: one of them differs from what was stored.
        """
        stored = asdict(self.settings)
        for name, value in given.items():
            if name not in FREE and value not in (stored[name], "auto"):
                raise CheckpointError(
                    f"cannot go on from {str(self.path)!r}: it was trained with {name.replace('_', ' ')} "
                    f"{stored[name]} and {value} was asked for; leave that out, or name another folder."
                )
        return replace(self.settings, **{name: given[name] for name in FREE if given.get(name, "auto") != "auto"})

    def restore(self, fitting: Fitting, dataset: Dataset) -> None:
        """Put training where it was; `dataset` is there now.

        Raises:
            CheckpointError: the data or the optimizer is not what it was.
        """
        doing, n_train = f"cannot go on from {str(self.path)!r}", len(dataset.train)
        if n_train != self.n_train:
            raise CheckpointError(
                f"{doing}: {self.settings.data} held {self.n_train} training instances and now holds {n_train}; give "
                f"the data as it was."
            )
        if self.digest and dataset.digest and self.digest != dataset.digest:
            raise CheckpointError(
                f"{doing}: the training data in {self.settings.data} has changed since; give the data as it was."
            )
        with naming(self.path, "go on from"):
            fitting.optimizer.load_state_dict(self.optimizer)  # type: ignore[arg-type]
        fitting.loss.seed, fitting.loss.step = self.draws["seed"], self.draws["step"]
        fitting.position = self.position
        if self.learned is not None:
            fitting.loss.policy = self.learned


def store_run(path: Path, settings: Settings, workload: Workload, fitting: Fitting, best: Mapping[str, float]) -> None:
    """Write a checkpoint of a run.

    Raises:
        CheckpointError: it cannot be written; what was there still is.
    """
    fitting.read_losses()
    optimizer: dict[str, Any] = dict(fitting.optimizer.state_dict())
    arrays = {PARAMETER + name: array for name, array in workload.model.state_dict().items()}
    arrays |= {OPTIMIZER + name: array for name, array in optimizer.pop("arrays").items()}
    state = {
        **describe(settings, workload),
        "n_train": len(workload.dataset.train),
        "digest": workload.dataset.digest,
        "position": {**asdict(fitting.position), "metrics": _finite(fitting.position.metrics)},
        "best": _finite(best),
        "draws": {"seed": fitting.loss.seed, "step": fitting.loss.step},
        "policy": describe_policy(fitting.loss.policy, "cannot store the policy").get("text"),
        "optimizer": optimizer,
    }
    save_checkpoint(path, arrays, state)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def describe(settings: Settings, workload: Workload) -> dict[str, Any]:
    """What a model is made of again, with its parameters, as JSON values."""
    dataset = workload.dataset
    vocabularies = {name: vocabulary.words for name, vocabulary in dataset.vocabularies.items()}
    return {
        "settings": asdict(settings),
        "sizes": dict(dataset.sizes),
        "vocabularies": vocabularies,
        "closed": [name for name, vocabulary in dataset.vocabularies.items() if vocabulary.closed],
    }


def read_run(path: Path) -> StoredRun:
    """Read a checkpoint of a run.

    Raises:
        CheckpointError: there is none, it is cut short, or it was written by something else.
    """
    try:
        arrays, state = load_checkpoint(path)
    except CheckpointError as error:  # the message names save_checkpoint, which commands have not
        raise CheckpointError(str(error).replace("save_checkpoint", "autobatch train --checkpoint")) from error
    parameters = _named(arrays, PARAMETER)
    try:
        with naming(path, "load"):
            check_run(state)
        position = {**state["position"], "tally": Tally(**state["position"]["tally"])}
        text, doing = state.get("policy"), f"cannot load the policy in {str(path)!r}"
        return StoredRun(
            path=path,
            **_made_of(path, state, parameters),
            n_train=state["n_train"],
            digest=state.get("digest", ""),
            position=Position(**position),
            best=_best_of(state),
            draws=state["draws"],
            learned=None if text is None else from_text(text, policies.KINDS, doing),
            parameters=parameters,
            optimizer={**state["optimizer"], "arrays": _named(arrays, OPTIMIZER)},
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"cannot load {str(path)!r}: it is a checkpoint, but not of autobatch train; give a folder that "
            f"autobatch train --checkpoint wrote."
        ) from error


def _best_of(state: Mapping[str, Any]) -> dict[str, float]:
    """Read the metrics of the best epoch; version 0.2 stored the first alone."""
    best = state["best"]
    if best is None:
        return {}
    return best if isinstance(best, dict) else {next(iter(state["position"]["metrics"])): best}


def _made_of(path: Path, described: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Read the result of `describe` in a file, from this version or an earlier one."""
    with naming(path, "load"):
        check_described(described, _n_numbers(parameters))
    closed, sizes = described.get("closed", ()), dict(described["sizes"])
    vocabularies = {name: Vocabulary(words, name in closed) for name, words in described["vocabularies"].items()}
    if "n_classes" in sizes and "classes" not in vocabularies:  # version 0.2: tree labels were numbers
        vocabularies["classes"] = Vocabulary.of_labels(map(str, range(sizes["n_classes"])))
    return {
        "settings": Settings(**{"split": LAST_TENTH, **described["settings"]}),
        "encoding": Encoding(vocabularies, sizes),
    }


def read_exported(path: Path, named: Collection[str] = ()) -> StoredModel:
    """Read what `autobatch export` wrote.

    Args:
        named: models named on the command line; the file may import these, and those of autobatch.

    Raises:
        CheckpointError: the file is missing or damaged, or `ab.export` wrote it, of a model that has no name here.
    """
    model = load(path)
    policy, parameters = model.options["policy"], model.state_dict()
    try:
        made_of = _made_of(path, model.about, parameters)
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"cannot use {str(path)!r}: ab.export wrote it, of a model that commands do not know; load it by "
            f"ab.load, or write a model of the package by autobatch export."
        ) from error
    name = made_of["settings"].model
    if name not in MODELS and name not in named:
        raise CheckpointError(
            f"cannot use {str(path)!r}: its model {name!r} is not part of autobatch, and a file must not choose "
            f"which module is imported; if you trust that module, also give its name as MODEL."
        )
    learned = policy if isinstance(policy, Directed) else None
    return StoredModel(path=path, **made_of, learned=learned, parameters=parameters)


def _n_numbers(parameters: Mapping[str, Any]) -> int:
    return sum(array.size for array in parameters.values())


def _named(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
